"""Profiles of devices that nobody measured."""

import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sim
from sim.catalog import names, newer_profile
from sim.costs.carry import carry, nearest, ratios
from sim.costs.profile import CARRY_SIGMA_LOG, derived_profile, load_profile
from sim.specs.catalog import device, devices
from sim.specs.device import Device, Sourced


def own(base: str, **change: object) -> Device:
    """Return a device of the user's that differs from a catalog device by `change`."""
    values = {k: Sourced(value=v, source="user") if isinstance(v, float) else v for k, v in change.items()}
    return replace(device(base), name="own", **values)


@pytest.mark.parametrize("name", names("profiles"))
def test_every_accelerator_has_a_profile(name):
    assert load_profile(name).name == name
    assert {n for n in names("devices") if not device(n).on_host} <= set(names("profiles"))
    newer = [newer_profile(n) for n in names("devices")]
    assert (
        set(names("profiles")) - set(names("devices"))
        == {*newer} - {None}
        == {f"{n}-2026" for n in ("h100-sxm-80gb", "h100-pcie-80gb", "h100-nvl", "b200", "b300", "gb200", "gb300")}
    )


def test_parameters_move_by_their_own_resource():
    by = ratios(device("a100-pcie-80gb"), device("h100-sxm-80gb"), 200e12, 600e12)
    assert by.anchored
    moved = carry({"rate": 1e14, "bandwidth": 1e12, "m0": 108.0, "k0": 50.0, "t0": 1e-6}, by)
    assert moved == pytest.approx({"rate": 3e14, "bandwidth": 1e12 * 3350 / 1935, "m0": 132.0, "k0": 50.0, "t0": 1e-6})


def test_without_measured_peaks_the_datasheets_decide():
    by = ratios(device("a100-pcie-80gb"), device("v100-sxm-32gb"), 200e12, None)
    assert not by.anchored
    assert by.compute == pytest.approx(125 / 312)


@pytest.mark.parametrize("name", names("devices"))
def test_a_device_is_nearest_to_one_with_its_own_figures(name):
    found = nearest(device(name), devices.values())
    by = ratios(found, device(name))
    assert (by.compute, by.bandwidth) == (1, 1)
    assert found.intra_node == device(name).intra_node


@pytest.mark.parametrize("change", [{"power_w": 399.0}, {"sms": 107.0}, {"memory_bytes_per_s": 2.0e12}])
def test_another_chip_than_that_of_like_has_a_wider_interval(change):
    base, made = load_profile("a100-sxm-80gb"), derived_profile(own("a100-sxm-80gb", like="a100-sxm-80gb", **change))
    assert made.estimate
    assert (made.base, made.name) == ("a100-sxm-80gb", "own")
    assert made.scaling_sigma_log**2 == pytest.approx(base.scaling_sigma_log**2 + CARRY_SIGMA_LOG**2, rel=1e-5)
    assert {m.status for m in made.models} == {"scaled"}
    assert made.contention == base.contention != []
    assert derived_profile(own("a100-sxm-80gb")).contention == []  # the nearest is not said to be alike


@pytest.mark.parametrize("name", [n for n in names("profiles") if n in names("devices") and n != "cpu"])
def test_other_links_and_prices_leave_the_profile_of_like_as_it_is(name):
    mine = own(name, like=name, inter_bytes_per_s_per_node=100e9, usd_per_gpu_hour=0.95)
    assert derived_profile(mine) == load_profile(name)


@given(factor=st.floats(0.1, 10))
def test_rates_follow_the_peak(factor):
    base = device("h100-sxm-80gb")
    made = derived_profile(
        own(base.name, like=base.name, peak_bf16_flop_per_s=factor * base.peak_bf16_flop_per_s.value)
    )
    moved = {k: made.values[k] / v for k, v in load_profile(base.name).values.items() if v}
    assert moved["gemm_forward_rate"] == pytest.approx(factor, rel=1e-5)
    assert {k for k, v in moved.items() if abs(v - 1) > 1e-5} <= {k for k in moved if k.endswith("_rate")}


def test_collectives_are_those_of_the_same_kind_of_links():
    made = derived_profile(own("h100-sxm-80gb", like="h100-sxm-80gb", intra_node="pcie", intra_bytes_per_s=64e9))
    assert made.collectives == load_profile("h100-pcie-80gb").collectives
    assert made.collectives_source.startswith("as on ")


def test_the_error_of_carrying_is_the_measured_one():
    """One number in `sim`, measured by the calibration: both must say the same."""
    assert {load_profile(n).scaling_sigma_log for n in ("v100-sxm-32gb", "a10g")} == {CARRY_SIGMA_LOG}


def test_a_file_without_profile_simulates_as_its_like(tmp_path):
    """But for what runs side by side: how streams slow each other is known of measured devices only."""
    plain = {k: v for k, v in asdict(own("a100-sxm-80gb")).items() if v is not None}
    (tmp_path / "own.json").write_text(json.dumps(plain | {"like": "a100-sxm-80gb"}))
    plan = sim.Plan(tp=4, global_batch=64, zero=1, overlap_dp=False)
    mine, theirs = (
        sim.simulate(sim.models["llama3-8b"], sim.Cluster.of(name, nodes=2), plan)
        for name in (str(tmp_path / "own.json"), "a100-sxm-80gb")
    )
    assert mine.step_time_s == pytest.approx(theirs.step_time_s, rel=1e-5)
    assert mine.step_time_interval_s == pytest.approx(theirs.step_time_interval_s, rel=1e-5)
    assert any("profile a100-sxm-80gb: fitted to public data of" in text for text in mine.assumptions)


def test_several_devices_have_no_profile_together():
    cluster = sim.Cluster.of(groups=[{"device": "h100-sxm-80gb"}, {"device": "a100-sxm-80gb"}])
    with pytest.raises(sim.InputError, match=r"cluster\.groups: got 'h100-sxm-80gb \+ a100.*each of the cluster's"):
        load_profile(cluster.profile)
    assert [load_profile(m.profile).name for m in cluster.members] == ["h100-sxm-80gb", "a100-sxm-80gb"]
