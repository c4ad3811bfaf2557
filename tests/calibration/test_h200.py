"""What was measured on H200s (2026-11-26 and -29): profile, predictions made before, the allocator's replay, checks."""

import gzip
from pathlib import Path
from statistics import mean, median

import numpy as np
import pytest

from calibration.errors import summary
from calibration.execute.holdout import _predicted, cases
from calibration.fit import predict as predict_kernel
from calibration.measured import build_profile, read_rows
from calibration.memory import check_replay, load_memory
from calibration.store import SAMPLES, SESSION, load_session
from calibration.whole import wholes
from calibration.workloads.predicted import predict
from calibration.workloads.registry import WORKLOADS
from calibration.workloads.results import Results
from sim.catalog import folder
from sim.costs.layers.issue import COMPILED_ISSUE, MEGATRON_ISSUE
from sim.costs.profile import load_profile
from sim.engine.memory_trace import read_trace
from sim.specs import Cluster
from sim.specs.catalog import device
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
        assert (one.key, one.form, one.parameters.keys()) == (other.key, other.form, other.parameters.keys())
        for share in (0, 0.5, 1):  # parameters that the samples hardly tell may differ a little more than times
            sizes = {name: low ** (1 - share) * high**share for name, (low, high) in other.domain.items() if low > 0}
            assert one.seconds(sizes) == pytest.approx(other.seconds(sizes), rel=0.02), one.name


def test_kernels_are_as_well_known_as_is_told():
    (told,) = summary([load_profile(NAME)], [HERE / "profile.json"])["profiles"]
    held = {(f["op"], f["direction"], f["implementation"]): f for f in told["families"]}
    products = [f for (op, _, how), f in held.items() if (op, how) == ("gemm", "matmul")]
    assert len(products) == 3 and all(f["n"] > 200 for f in products)
    assert mean(f["median"] for f in products) < 4 and max(f["mape"] for f in products) < 5.5
    assert max(f["p90"] for f in products) < 11
    attention = [f for (op, _, how), f in held.items() if op == "attention" and how in ("cudnn", "flash")]
    assert len(attention) == 4 and mean(f["mape"] for f in attention) < 5
    assert held["elementwise", "any", "any"]["mape"] < 4
    convolutions = [f for (op, *_), f in held.items() if op == "convolution"]
    assert mean(f["mape"] for f in convolutions) < 15
    for op in ("gelu", "swiglu"):
        assert median(f["median"] for (name, *_), f in held.items() if name == op) < 4


def test_products_beyond_those_fitted_are_known_too():
    """They are throttled when timed alone: without that term they were 9.3 % off."""
    models = [m for m in load_profile(NAME).models if m.op == "gemm" and m.implementation == "matmul"]
    assert all(m.parameters["throttled"] > 0 for m in models)
    assert max(m.held_out["larger"].mape for m in models) < 3


def test_attention_is_that_which_pytorch_takes():
    """By FlashAttention-2's kernels, which it took before 2.11, these steps would be 5.3 % off."""
    found = {m.direction: m.implementation for m in reversed(load_profile(NAME).models) if m.op == "attention"}
    assert found == {"forward": "cudnn", "backward": "cudnn"}


@pytest.mark.slow
def test_blocks_and_steps_that_no_fit_has_seen(whole):
    """Large ones lose what products that follow each other do: else those of 8192 and more are 9 % too fast."""
    flash = [w for w in whole if "flash" in w.name]
    steps = [abs(w.error) for w in flash if w.name.startswith("step")]
    assert len(steps) == 6 and mean(steps) < 0.03 and max(steps) < 0.055
    large = [abs(w.error) for w in flash if w.name.startswith(("block h8192", "block h12288"))]
    assert len(large) == 2 and max(large) < 0.03
    assert len(whole) == 17 and mean(abs(w.error) for w in whole) < 0.08
    assert sum(w.inside for w in whole) >= 12


def executed(file="hold-out.json"):
    return {row["name"]: row for row in load_mapping(HERE / file)["rows"]}


def test_plans_were_predicted_before_they_were_executed():
    rows = executed().values()
    assert len(rows) == 25
    assert median(abs(row["error"]) for row in rows) < 0.09
    assert sum(row["inside"] for row in rows) >= 18
    assert all(row["measured"]["max_gradient_error"] < 7e-3 for row in rows)
    first = executed("checks/executed_second.json").values()
    assert len(first) == 13 and median(abs(row["error"]) for row in first) < 0.06


def test_plans_that_wait_for_their_host_differ_between_machines():
    """Three machines of a kind, the same plans: those that the device bounds take as long on all of them."""
    machines = [executed(f"checks/executed_{n}.json") for n in ("first", "second")] + [executed()]
    took = {
        name: [held[name]["measured"]["step_time_s"] for held in machines if name in held]
        for name in machines[2]
        if name in machines[1]
    }
    spread = {name: max(seconds) / min(seconds) - 1 for name, seconds in took.items()}
    waits = ("h512 s512 b8", "block h1024", "recompute")
    assert all(spread[name] > 0.1 for name in spread if any(w in name for w in waits))
    assert median(spread[name] for name in spread if not any(w in name for w in waits)) < 0.05


WAITING = ("h512", "h1280", "h1024 s1024 b8 l4 v32000", "h768", "full recompute", "activations offload")
"""Steps that were measured to wait for more than is told: their host (that machine's took up to 1.5 times as long as
another's), or copies beside a backward."""


@pytest.mark.parametrize("case", [c for c in cases("cuda") if c.what == "step"], ids=lambda c: c.name)
def test_steps_and_peaks_of_memory_are_the_executed_ones(case, monkeypatch):
    monkeypatch.setattr("calibration.execute.limits.find_spec", lambda name: name)  # a compiler of kernels was there
    told, row = _predicted(case, HERE, "cuda"), executed()[case.name]["measured"]
    assert told.peak_memory_bytes == (
        pytest.approx(row["peak_memory_bytes"][0], rel=9e-3 if "h8192" in case.name else 2e-3),
    )
    error = told.step_time_s / row["step_time_s"] - 1
    assert -0.31 < error < 0.01 if any(w in case.name for w in WAITING) else abs(error) < 0.055


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


def checked(name):
    return load_mapping(HERE / "checks" / f"{name}.json")["result"]


def test_kernels_on_the_device_were_right():
    names = ("kernel_schedules", "kernel_schedules_fp16", "recurrent_layers", "tempo_layers", "products")
    checks = {name: checked(name) for name in names}
    assert all(found["failed"] == 0 for found in checks.values())
    for name in names[:2]:
        assert checks[name]["max_relative_error"] < 1e-2
        assert checks[name]["schedules"] <= 200
        assert checks[name]["geomean_of_cublas"] >= 0.85
        assert checks[name]["tuning_s"] < 120
    assert checks["recurrent_layers"]["max_relative_error"] < 1e-5
    assert checks["tempo_layers"]["exact"] is True
    assert checks["products"]["max_relative_error"] < 1e-2


def test_products_of_8_bits_are_as_much_faster_as_the_catalog_says():
    stated = device(NAME).fp8_speedup
    rows = [row for row in checked("products")["rows"] if row["kind"] == "8 bits"]
    assert stated is not None and len(rows) == 36
    assert median(row["speedup"] for row in rows) == pytest.approx(stated.value, rel=0.02)
    assert all(1.4 < row["speedup"] < 2.1 for row in rows)


def test_products_of_experts_are_told_like_batched_ones():
    (model,) = (m for m in load_profile(NAME).models if m.key == ("gemm", "forward") and m.implementation == "matmul")
    rows = [row for row in checked("products")["rows"] if row["kind"] == "experts"]
    sizes = {n: np.array([float(row[n]) for row in rows]) for n in ("m", "n", "k", "experts")}
    sizes = sizes | {"batch": sizes.pop("experts"), "element": np.full(len(rows), 2.0)}
    errors = predict_kernel("gemm-pnorm", sizes, model.parameters) / [row["seconds"] for row in rows] - 1
    assert len(rows) == 18 and np.median(abs(errors)) < 0.1
    assert min(errors) > -0.32 and max(errors) < 0.1  # the fewer tokens an expert has, the more is left out


def test_megatrons_modules_issue_as_measured():
    found = checked("issue_ratios")
    assert {part: round(times, 1) for part, times in found["megatron"].items()} == MEGATRON_ISSUE
    assert pytest.approx(found["compiled"], rel=0.06) == COMPILED_ISSUE


@pytest.mark.slow
def test_whole_networks_are_told_as_the_profile_tells_them():
    """Steps of three within 8 %; the others wait for their host, peaks are known but for the smallest network's."""
    found = read(Results, checked("workloads")).measured()
    for name in ("wgan", "a3c"):
        cluster = Cluster.of(NAME, nodes=1, gpus_per_node=1, domain_gpus=1)
        told = predict(WORKLOADS[name], "full", cluster, 989.4e12)
        assert told.step_time_s == pytest.approx(found[name].predicted.step_time_s, rel=1e-5)
    near = {name for name, row in found.items() if abs(row.off["step_time_s"]) < 0.08}
    assert near == {"resnet-50", "inception-v3", "seq2seq"} and len(found) == 8
    assert all(abs(row.off["peak_bytes"]) < 0.04 for name, row in found.items() if name != "a3c")
