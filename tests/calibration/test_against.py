"""Profiles beside timings of kernels: errors, intervals, and what cannot be compared."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from calibration import against
from calibration.against import compare
from calibration.cli import app
from sim.catalog import folder
from sim.specs.fields import InputError
from tests.oracle import reference

CPU = Path(str(folder("profiles"))) / "cpu" / "samples.parquet"


def by_kernel(found):
    return {one.kernel: one for one in found}


def test_a_profile_meets_the_samples_that_it_is_of():
    profile, found, aside = compare("cpu", [CPU])
    held = by_kernel(found)
    assert (profile.name, aside) == ("cpu", {})
    assert {name for name, _ in profile.read} >= {kernel.split()[0] for kernel in held}
    assert held["gemm forward"].mape < 10 and 0.7 <= held["gemm forward"].in80 <= 0.95
    assert np.average([one.in80 for one in found], weights=[one.n for one in found]) > 0.75


def test_another_machine_twice_as_slow_is_told_as_such(monkeypatch):
    usual, real = by_kernel(compare("cpu", [CPU])[1])["gemm forward"], against.samples_of
    monkeypatch.setattr(against, "samples_of", lambda *a: replace(s := real(*a), seconds=2 * s.seconds))
    slow = by_kernel(compare("cpu", [CPU])[1])["gemm forward"]
    assert (1 + slow.total / 100) == pytest.approx((1 + usual.total / 100) / 2)
    assert slow.in80 < 0.05 and slow.mape > 40


def test_public_tables_are_read_as_for_a_fit():
    kernels = reference("kernels")
    paths = [kernels / "attention_h100.csv", kernels / "vector_fp32.csv", kernels / "gemm_fp32.csv"]
    _, found, aside = compare("h100-sxm-80gb", [*paths, reference("collectives") / "allreduce_h100.csv"])
    attention = [one for one in found if one.kernel.startswith("attention")]
    assert len(attention) == 2 and all(one.mape < 3 and one.in80 == 1 for one in attention)
    assert {one.device for one in found if one.kernel == "norm any"} >= {"NVIDIA L4"}
    assert [one.in80 for one in found if one.kernel == "all-reduce"] == [None]
    assert list(aside) == ["gemm_fp32.csv"]


def test_the_command_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["--from", str(CPU), "--against", "cpu", "--json"], catch_exceptions=False)
    found = json.loads(result.stdout)
    assert found["profile"] == "cpu" and found["kernels"][0]["n"] > 10
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("more", [(), ("--from", "x.csv", "--device", "cpu"), ("--from", "x.csv", "--only", "l4")])
def test_it_goes_with_files_alone(more):
    with pytest.raises(InputError, match=r"--against|--only"):
        CliRunner().invoke(app, ["--against", "cpu", *more], catch_exceptions=False)


def test_what_it_cannot_compare_is_refused():
    with pytest.raises(InputError, match="profile l4 has"):  # samples of fp32, kernels of 16 bit
        compare("l4", [CPU])
    with pytest.raises(InputError, match="trainsim validate"):
        compare("cpu", [reference("runs/ptdp_2104_04473.csv")])
