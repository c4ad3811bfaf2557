"""What was measured on an H200 (2026-11-26): its profile, predictions made before, the allocator's replay, checks."""

import gzip
from pathlib import Path
from statistics import mean, median

import pytest

from calibration.errors import summary
from calibration.measured import build_profile, read_rows
from calibration.memory import check_replay, load_memory
from calibration.store import SAMPLES, SESSION, load_session
from calibration.whole import wholes
from sim.catalog import folder
from sim.costs.profile import load_profile
from sim.engine.memory_trace import read_trace
from sim.specs.files import load_mapping

NAME = "h200-sxm-141gb"
HERE = folder("profiles") / NAME


@pytest.fixture(scope="module")
def whole():
    return list(wholes(HERE, read_rows(HERE / SAMPLES), "cuda"))


def test_the_profile_is_of_its_samples(tmp_path):
    for file in HERE.iterdir():
        if file.is_file() and file.name != "profile.json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    made, shipped = build_profile(tmp_path), load_profile(NAME)
    assert (made.name, made.session) == (NAME, load_session(HERE).session)
    for one, other in zip(made.models, shipped.models, strict=True):
        assert one.parameters == pytest.approx(other.parameters, rel=0.02), (one.op, one.direction)


def test_kernels_are_as_well_known_as_is_told():
    (told,) = summary([load_profile(NAME)], [HERE / "profile.json"])["profiles"]
    held = {(f["op"], f["direction"], f["implementation"]): f for f in told["families"]}
    products = [f["median"] for (op, *_), f in held.items() if op == "gemm"]
    assert mean(products) < 6
    for op in ("gelu", "swiglu"):
        assert median(f["median"] for (name, *_), f in held.items() if name == op) < 4


def test_blocks_and_steps_that_no_fit_has_seen(whole):
    steps = [abs(w.error) for w in whole if w.name.startswith("step") and "flash" in w.name]
    assert len(steps) == 6 and mean(steps) < 0.05
    assert len(whole) == 16 and mean(abs(w.error) for w in whole) < 0.08
    assert sum(w.inside for w in whole) >= 0.8 * len(whole)


def test_plans_were_predicted_before_they_were_executed():
    rows = load_mapping(HERE / "hold-out.json")["rows"]
    assert median(abs(row["error"]) for row in rows) < 0.06
    assert sum(row["inside"] for row in rows) >= 5
    told = [row["memory_error"] for row in rows if row["memory_error"] is not None]
    assert len(told) == 3 and max(map(abs, told)) < 1e-3
    assert all(row["measured"]["max_gradient_error"] < 3e-3 for row in rows)


def test_the_recorded_allocator_is_replayed_to_the_byte(tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_bytes(gzip.decompress((Path(__file__).parent / "h200-allocator.jsonl.gz").read_bytes()))
    found = check_replay(read_trace(trace))
    assert found.equal and found.events > 8_000
    assert found.replayed_allocated_bytes == found.recorded_allocated_bytes == 5_589_041_152
    assert found.replayed_reserved_bytes == found.recorded_reserved_bytes == 6_129_975_296


def test_the_simulators_allocator_has_the_devices_constants():
    held = load_memory(HERE / "memory.json")
    assert held is not None and held.as_simulated
    assert load_profile(NAME).memory.context_bytes == held.context_bytes


def test_contention_of_compute_and_copies():
    (fitted,) = load_profile(NAME).contention
    assert fitted.n >= 100 and fitted.mape < 2


def test_the_session_says_what_it_ran_on():
    session = load_mapping(HERE / SESSION)
    assert session["fingerprint"]["name"] == "NVIDIA H200"
    assert session["fingerprint"]["versions"]["torch"].startswith("2.11.0")


def test_kernels_on_the_device_were_right():
    names = ("kernel_schedules", "recurrent_layers", "tempo_layers")
    checks = {name: load_mapping(HERE / "checks" / f"{name}.json")["result"] for name in names}
    assert all(found["failed"] == 0 for found in checks.values())
    assert checks["kernel_schedules"]["max_relative_error"] < 1e-2
    assert checks["kernel_schedules"]["schedules"] <= 200
    assert checks["recurrent_layers"]["max_relative_error"] < 1e-5
    assert checks["tempo_layers"]["exact"] is True
