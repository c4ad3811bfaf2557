"""Profiles beside timings of kernels: errors, intervals, and what cannot be compared."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from calibration import against
from calibration.against import compare
from calibration.cli import app
from calibration.samples import Samples
from calibration.store import SCHEMA
from sim.catalog import folder
from sim.costs.profile import load_profile
from sim.specs.fields import InputError
from tests.oracle import reference

CPU = Path(str(folder("profiles"))) / "cpu" / "samples.parquet"

DISTURBED = "others disturbed the machine"


def by_kernel(found):
    return {one.kernel: one for one in found}


def written(folder, **columns):
    """Return the CPU's samples in a folder of its own, with columns that hold these values throughout."""
    held = pq.read_table(CPU)
    for name, value in columns.items():
        kind = SCHEMA.field(name)
        at = held.schema.get_field_index(name)
        held = held.set_column(at, kind, pa.array([value] * len(held), kind.type))
    pq.write_table(held, folder / "samples.parquet")
    return folder / "samples.parquet"


@pytest.fixture
def elsewhere(tmp_path):
    """The samples that the profile is of, as if another session had measured them."""
    return written(tmp_path, session="another")


def test_a_profile_meets_samples_like_its_own(elsewhere):
    profile, found, aside = compare("cpu", [elsewhere])
    held = by_kernel(found)
    assert profile.name == "cpu" and list(aside.values()) == [DISTURBED]
    assert {name for name, _ in profile.read} >= {kernel.split()[0] for kernel in held} - {"convolution"}
    assert held["gemm forward"].mape < 10 and 0.7 <= held["gemm forward"].in80 <= 0.95
    assert np.average([one.in80 for one in found], weights=[one.n for one in found]) > 0.75


def test_samples_that_it_has_been_fitted_to_are_left_out(elsewhere):
    all_of_them = sum(one.n for one in compare("cpu", [elsewhere])[1])
    _, found, aside = compare("cpu", [CPU])
    (told,) = (what for what, why in aside.items() if why == "the profile has been fitted to them")
    assert 0 < sum(one.n for one in found) == all_of_them - int(told.removesuffix(" samples of cpu"))


def test_so_are_those_of_a_trace_which_has_no_session(elsewhere):
    """Its profile lies beside them."""
    held = json.loads((CPU.parent / "profile.json").read_text())
    (elsewhere.parent / "profile.json").write_text(json.dumps({k: v for k, v in held.items() if k != "session"}))
    _, found, aside = compare(str(elsewhere.parent), [elsewhere])
    assert sum(one.n for one in found) == sum(one.n for one in compare("cpu", [CPU])[1])
    assert "the profile has been fitted to them" in aside.values()


@pytest.mark.parametrize("kept", [0, 100])
def test_flagged_samples_are_told_and_used_where_there_are_no_others(kept, tmp_path):
    """A calibration with --despite-load flags all of them."""
    path = written(tmp_path, session="another", flagged=True, sentinel_ratio=1.0)
    held = pq.read_table(path)
    flags = pa.array([n >= kept for n in range(len(held))])
    pq.write_table(held.set_column(held.schema.get_field_index("flagged"), SCHEMA.field("flagged"), flags), path)
    _, found, aside = compare("cpu", [path])
    assert sum(one.n for one in found) > 40
    assert {one.device for one in found} == {tmp_path.name + ("" if kept else " (despite load)")}
    assert aside.get(f"{len(held) - kept} samples of {tmp_path.name}") == (DISTURBED if kept else None)


def test_folders_of_one_name_are_told_apart(tmp_path):
    for name in "ab":
        (tmp_path / name / "cpu").mkdir(parents=True)
    paths = [written(tmp_path / name / "cpu", session="another") for name in "ab"]
    found = compare("cpu", paths)[1]
    assert {one.device for one in found} == set(map(str, paths))


def test_another_machine_twice_as_slow_is_told_as_such(elsewhere, monkeypatch):
    usual, real = by_kernel(compare("cpu", [elsewhere])[1])["gemm forward"], against.samples_of
    monkeypatch.setattr(against, "samples_of", lambda *a: replace(s := real(*a), seconds=2 * s.seconds))
    slow = by_kernel(compare("cpu", [elsewhere])[1])["gemm forward"]
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
    assert found["profile"] == "cpu" and found["kernels"][0]["n"] > 5
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("more", [(), ("--from", "x.csv", "--device", "cpu"), ("--from", "x.csv", "--only", "l4")])
def test_it_goes_with_files_alone(more):
    with pytest.raises(InputError, match=r"--against|--only"):
        CliRunner().invoke(app, ["--against", "cpu", *more], catch_exceptions=False)


def test_without_a_profile_to_compare_samples_are_refused():
    with pytest.raises(InputError, match=r"--from: .*with --against"):
        CliRunner().invoke(app, ["--from", str(CPU)], catch_exceptions=False)


def test_kernels_of_other_implementations_are_told(tmp_path):
    held = pq.read_table(CPU)
    names = [
        one if op != "adam" else "by-hand"
        for op, one in zip(*(held[c].to_pylist() for c in ("op", "implementation")), strict=True)
    ]
    at = held.schema.get_field_index("implementation")
    pq.write_table(held.set_column(at, SCHEMA.field("implementation"), pa.array(names)), tmp_path / "samples.parquet")
    _, found, aside = compare("cpu", [tmp_path / "samples.parquet"])
    assert "adam any" not in by_kernel(found)
    assert aside["adam any"] == "of another implementation than the profile's, fused"


def test_kernels_that_a_profile_lacks_are_told_by_what_it_takes_for_them(elsewhere):
    found = by_kernel(compare("cpu", [elsewhere])[1])
    assert ("convolution", "forward") not in load_profile("cpu").read
    assert found["convolution forward"].n > 5


def test_what_it_cannot_compare_is_refused(tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    held = json.loads((CPU.parent / "profile.json").read_text())
    (mine / "profile.json").write_text(json.dumps(held | {"name": "AMD EPYC"}))
    with pytest.raises(
        InputError, match=r"profile l4 has .*samples of float32, uint8, where the profile's are of bfloat16"
    ):
        compare("l4", [CPU])
    with pytest.raises(InputError, match=r"^--against: got 'nosuch'"):
        compare("nosuch", [CPU])
    with pytest.raises(InputError, match="got 'no such file'"):
        compare("cpu", [Path("nosuch.parquet")])
    with pytest.raises(InputError, match="not compared: all-reduces, profile AMD EPYC is of no device"):
        compare(str(mine), [reference("collectives") / "allreduce_h100.csv"])
    with pytest.raises(InputError, match="trainsim validate"):
        compare("cpu", [reference("runs/ptdp_2104_04473.csv")])


def test_samples_without_rows_are_left_aside_where_the_profile_asks_for_them():
    profile, aside = load_profile("cpu"), {}
    by_row = [
        replace(m, parameters=m.parameters | {"row_serial": 1e-9}) if m.op == "norm" else m for m in profile.models
    ]
    x = {"bytes": np.array([1e6]), "columns": np.array([512.0])}
    norms = Samples("d", "norm", "any", x, np.array([1e-3]), ("a",), "made up")
    known = replace(norms, inputs=x | {"rows": np.array([488.0])})
    (told,) = against._kernels(replace(profile, models=by_row), [norms, known], aside)
    assert told.n == 1 and aside == {"norm any": "without rows, on which the profile's time depends"}
