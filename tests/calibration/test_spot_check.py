"""Kernels of a profile timed again: the machine that it is of, one that is slower, and what is told of that."""

from dataclasses import replace

import pytest

from calibration import spot_check as module
from calibration.measure import Sampler, order
from calibration.session import Bench
from calibration.spot_check import SpotCheck, spot_check
from calibration.store import SAMPLES, SESSION, Store
from sim.specs.fields import InputError
from tests.calibration.fakes import FINGERPRINT, MACHINE, METHOD, FakeMachine, families, session

SLOWER = SpotCheck("cpu", {"gemm": 2.0, "norm": 2.0, "adam": 4.0})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Samples of a made-up machine, and what would be sampled on it now."""
    machine, store = FakeMachine(), Store(tmp_path)
    sampler = Sampler(MACHINE, METHOD, machine.tools(), store, {"session": "s", "commit": "c"}, 1e9, 0.01)
    sampler.run(order(families(machine), MACHINE, "smoke", 0))
    session().save(tmp_path)
    monkeypatch.setattr(module, "EACH_S", 1e3)
    monkeypatch.setattr(module, "MOST_S", 1e3)
    return tmp_path


def checked(folder, slower=1.0):
    machine = FakeMachine()
    held = families(machine)
    for family in held:
        family.second_s *= slower
    return spot_check(str(folder), Bench(FINGERPRINT, machine.tools()), held)


def test_the_machine_of_the_profile_is_told_nothing(folder):
    found = checked(folder)
    assert found.ratios == {"gemm": pytest.approx(1.0), "elementwise": pytest.approx(1.0)}
    assert not found.other
    assert found.lines("--base") == ()
    assert found.widened((1.0, 2.0)) == (1.0, 2.0)


def test_a_slower_machine_is_known_by_its_kernels(folder):
    found = checked(folder, slower=3.0)
    assert found.ratios == {"gemm": pytest.approx(3.0), "elementwise": pytest.approx(3.0)}
    assert found.other
    assert found.widened((1.0, 2.0)) == pytest.approx((1.0, 6.0))


def test_a_kernel_that_takes_too_long_is_left_out(folder, monkeypatch):
    monkeypatch.setattr(module, "EACH_S", 1e-9)
    assert checked(folder) is None


def test_an_interval_reaches_to_the_deciles_on_either_side():
    low, high = SLOWER.span
    assert SLOWER.widened((10.0, 20.0)) == (10.0, 20.0 * high)
    faster = SpotCheck("cpu", {name: 1 / ratio for name, ratio in SLOWER.ratios.items()})
    assert faster.widened((10.0, 20.0)) == (pytest.approx(10.0 * faster.span[0]), 20.0)
    assert low == 2.0 < high < 4.0


def test_what_is_told_says_how_to_mend_it():
    (line,) = SLOWER.lines("cluster.profile")
    assert line.startswith("3 kernels take 2.00 times as long here (2.00 - 3.60)")
    assert "`trainsim calibrate --device cpu --out out/my-cpu` measures this one, cluster.profile out/my-cpu" in line
    assert SLOWER.data()["typical"] == 2.0


def test_profiles_without_samples_are_not_checked(tmp_path):
    assert spot_check("h100-sxm-80gb") is None
    assert spot_check(str(tmp_path)) is None


def test_samples_of_a_trace_are_of_no_session_and_not_checked(folder):
    (folder / SESSION).unlink()
    assert checked(folder) is None


def test_damaged_samples_are_one_error(folder):
    (folder / SAMPLES).write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"samples\.parquet"):
        checked(folder)


@pytest.mark.slow
def test_the_shipped_processor_is_checked_on_this_machine():
    found = spot_check("cpu")
    assert len(found.ratios) >= len(module.OPS) - 2
    assert all(0.05 < ratio < 50 for ratio in found.ratios.values())
    assert replace(found, ratios={"gemm": 1.0}).other is False
