"""What was measured on an H200 (2026-11-26): its profile, predictions made before, the allocator's replay, checks."""

import gzip
from pathlib import Path
from statistics import mean, median

import pytest

from calibration.errors import summary
from calibration.execute.holdout import _predicted, cases
from calibration.measured import build_profile, read_rows
from calibration.memory import check_replay, load_memory
from calibration.store import SAMPLES, SESSION, load_session
from calibration.whole import wholes
from calibration.workloads.predicted import predict
from calibration.workloads.registry import WORKLOADS
from calibration.workloads.results import Results
from sim.catalog import folder
from sim.costs.profile import load_profile
from sim.engine.memory_trace import read_trace
from sim.specs import Cluster
from sim.specs.fields import read
from sim.specs.files import load_mapping

NAME = "h200-sxm-141gb"
HERE = folder("profiles") / NAME


@pytest.fixture(scope="module")
def whole():
    return list(wholes(HERE, read_rows(HERE / SAMPLES), "cuda"))


@pytest.mark.slow
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
    products = [f for (op, _, how), f in held.items() if (op, how) == ("gemm", "matmul")]
    assert len(products) == 3 and all(f["n"] > 120 for f in products)
    assert mean(f["median"] for f in products) < 5.5 and max(f["mape"] for f in products) < 7
    assert max(f["p90"] for f in products) < 15
    for op in ("gelu", "swiglu"):
        assert median(f["median"] for (name, *_), f in held.items() if name == op) < 4


def test_products_beyond_those_fitted_are_known_too():
    """They are throttled when timed alone: without that term they were 9.3 % off."""
    models = [m for m in load_profile(NAME).models if m.op == "gemm" and m.implementation == "matmul"]
    assert all(m.parameters["throttled"] > 0 for m in models)
    assert max(m.held_out["larger"].mape for m in models) < 5


@pytest.mark.slow
def test_blocks_and_steps_that_no_fit_has_seen(whole):
    steps = [abs(w.error) for w in whole if w.name.startswith("step") and "flash" in w.name]
    assert len(steps) == 6 and mean(steps) < 0.04
    assert len(whole) == 17 and mean(abs(w.error) for w in whole) < 0.08
    assert sum(w.inside for w in whole) >= 11


def executed():
    return {row["name"]: row for row in load_mapping(HERE / "hold-out.json")["rows"]}


def test_plans_were_predicted_before_they_were_executed():
    rows = executed().values()
    assert len(rows) == 13
    assert median(abs(row["error"]) for row in rows) < 0.06
    assert sum(row["inside"] for row in rows) >= 10
    assert all(row["measured"]["max_gradient_error"] < 6e-3 for row in rows)


def test_plans_that_wait_for_their_host_differ_between_machines():
    """What recompute adds to issuing was unknown to the first predictions; two machines of a kind then differ more."""
    first = {row["name"]: row for row in load_mapping(HERE / "checks" / "executed_first.json")["rows"]}
    again = executed()
    for name in (name for name in first if "recompute" in name):
        shorter, longer = (held[name]["measured"]["step_time_s"] for held in (again, first))
        assert 1.15 < longer / shorter < 1.4
        assert first[name]["predicted"]["step_time_s"] < shorter < again[name]["predicted"]["step_time_s"]


@pytest.mark.parametrize("case", [c for c in cases("cuda") if c.what == "step"], ids=lambda c: c.name)
def test_steps_and_peaks_of_memory_are_the_executed_ones(case):
    """Also where they wait for their host, whose issue was measured on the same machine."""
    told, (measured,) = _predicted(case, HERE, "cuda"), peaks(case)
    assert told.peak_memory_bytes == (pytest.approx(measured, rel=1e-3),)
    assert told.step_time_s == pytest.approx(executed()[case.name]["measured"]["step_time_s"], rel=0.095)


def peaks(case):
    return executed()[case.name]["measured"]["peak_memory_bytes"]


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
    assert checks["kernel_schedules"]["geomean_of_cublas"] >= 0.85
    assert checks["kernel_schedules"]["tuning_s"] < 120
    assert checks["recurrent_layers"]["max_relative_error"] < 1e-5
    assert checks["tempo_layers"]["exact"] is True


@pytest.mark.slow
def test_whole_networks_are_told_as_the_profile_tells_them():
    """Steps of three within 7 %; the others wait for what convolutions take to issue, which nobody has measured."""
    found = read(Results, load_mapping(HERE / "checks" / "workloads.json")["result"]).measured()
    for name in ("wgan", "a3c"):
        cluster = Cluster.of(NAME, nodes=1, gpus_per_node=1, domain_gpus=1)
        told = predict(WORKLOADS[name], "full", cluster, 989.4e12)
        assert told.step_time_s == pytest.approx(found[name].predicted.step_time_s, rel=1e-5)
    near = {name for name, row in found.items() if abs(row.off["step_time_s"]) < 0.07}
    assert near == {"resnet-50", "transformer", "seq2seq"}
