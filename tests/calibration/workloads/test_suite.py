"""The benchmark as a command: rows in order, resumed, interrupted, on two processes, compiled, and its file."""

import json
import shutil
import signal
import time
from dataclasses import replace
from functools import partial

import pytest
import torch
from typer.testing import CliRunner

from calibration import gpu_session, session
from calibration.cli import app
from calibration.execute.processes import ExecutionError
from calibration.host import HostStopwatch
from calibration.session import Bench
from calibration.workloads import cli, suite, training
from calibration.workloads.parallel import together
from calibration.workloads.registry import WORKLOADS
from calibration.workloads.results import FILE, Metrics, Results, Row, load_results, off, save_results
from calibration.workloads.suite import Request, peak_rate, run, variants
from sim.specs.catalog import device
from sim.specs.fields import InputError
from sim.specs.files import load_mapping, write_json
from tests.calibration.fakes import FINGERPRINT, FakeMachine
from tests.oracle import ROOT

PARTS = {"weights": 1.0, "activations": 3.0}
FOUND = Metrics(step_time_s=2.0, samples_per_s=4.0, compute_utilisation=0.5, peak_bytes=4.0, memory_bytes=PARTS)


@pytest.fixture
def bench():
    return Bench(FINGERPRINT, FakeMachine().tools())


@pytest.fixture
def quick(monkeypatch):
    """Rows that take no time; returns the names of what was measured."""
    asked = []

    def measured(results, variant):
        workload, framework, processes = variant
        asked.append((workload.name, framework, processes))
        return FOUND

    monkeypatch.setattr(suite, "_measured", measured)
    monkeypatch.setattr(suite, "predict", lambda *given: FOUND)
    monkeypatch.setattr(suite, "peak_rate", lambda bench: (1e11, "made up"))
    return asked


def request(path, *names, **given):
    return Request(path / "r", workloads=names or ("a3c", "wgan"), **given)


def silent(done, total, text):
    pass


def test_every_workload_first_by_itself_then_twofold_then_compiled():
    made = [(w.name, framework, processes) for w, framework, processes in variants(tuple(WORKLOADS))]
    assert made[:8] == [(name, "eager", 1) for name in WORKLOADS]
    assert [m[1:] for m in made[8::8]] == [("eager", 2), ("compiled", 1)]


def test_what_is_done_is_not_run_again(bench, quick, tmp_path):
    first, left = run(request(tmp_path), bench, silent)
    assert (len(first.rows), left) == (6, 0)
    assert len(quick) == 6
    with pytest.raises(InputError, match=r"a folder without tbd\.json; --resume goes on"):
        run(request(tmp_path), bench, silent)
    again, _ = run(request(tmp_path, "a3c", "wgan", "resnet-50", resume=True), bench, silent)
    assert [name for name, *_ in quick[6:]] == ["resnet-50"] * 3
    assert again.rows[:6] == first.rows
    assert load_results(tmp_path / "r") == again


def test_the_time_is_kept_and_an_interruption_leaves_whole_rows(bench, quick, monkeypatch, tmp_path):
    plain = suite._measured
    machine = FakeMachine()

    def slow(*given):
        machine.now_s += 60
        if len(quick) == 3:
            raise KeyboardInterrupt
        return plain(*given)

    monkeypatch.setattr(suite, "_measured", slow)
    bench = Bench(FINGERPRINT, machine.tools())
    results, left = run(request(tmp_path, budget_s=100.0), bench, silent)
    assert (len(results.rows), left) == (2, 4)
    with pytest.raises(KeyboardInterrupt):
        run(request(tmp_path, budget_s=1e3, resume=True), bench, silent)
    assert len(load_results(tmp_path / "r").rows) == 3


def test_the_end_of_the_time_cuts_a_row_short(bench, quick, monkeypatch, tmp_path):
    def endless(*given):
        while True:
            try:
                time.sleep(0.001)
            except Exception:  # as a compiler does
                continue

    monkeypatch.setattr(suite, "_measured", endless)
    results, left = run(request(tmp_path, budget_s=0.05), bench, silent)
    assert (len(results.rows), left) == (0, 6)
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_a_row_that_fails_says_why_and_is_tried_again(bench, quick, monkeypatch, tmp_path):
    errors = iter([RuntimeError("no memory"), *[ValueError("more than 1 value")] * 2])

    def fails(*given):
        raise next(errors)

    plain = suite._measured
    monkeypatch.setattr(suite, "_measured", fails)
    results, _ = run(request(tmp_path, "a3c"), bench, silent)
    assert {row.status for row in results.rows} == {"failed"}
    assert {row.reason for row in results.rows} == {"RuntimeError: no memory", "ValueError: more than 1 value"}
    monkeypatch.setattr(suite, "_measured", plain)
    results, _ = run(request(tmp_path, "a3c", resume=True), bench, silent)
    assert {row.status for row in results.rows} == {"done"}


def test_what_cannot_run_here_is_skipped_with_the_reason(bench, quick, monkeypatch, tmp_path):
    monkeypatch.setattr("calibration.execute.limits.shutil.which", lambda name: None)
    results, _ = run(request(tmp_path, "a3c"), bench, silent)
    assert [row.status for row in results.rows] == ["done", "done", "skipped"]
    assert results.rows[-1].reason == "torch.compile needs a C++ compiler; no g++ here"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert suite._lacking("cuda", "eager", 2) == "2 processes need 2 CUDA devices; 1 here"


def test_another_machines_results_are_not_resumed(bench, quick, tmp_path):
    run(request(tmp_path, "a3c"), bench, silent)
    other = FINGERPRINT.__class__(**{**vars(FINGERPRINT), "name": "Model 2"})
    with pytest.raises(InputError, match="name differ"):
        run(request(tmp_path, "a3c", resume=True), Bench(other, bench.tools), silent)
    with pytest.raises(InputError, match="results of the full sizes, not of the tiny ones"):
        run(request(tmp_path, "a3c", resume=True, size="full"), bench, silent)


def test_the_peak_is_the_catalogs_or_measured():
    known = FINGERPRINT.__class__(**{**vars(FINGERPRINT), "name": "NVIDIA H100 80GB HBM3"})
    peak, source = peak_rate(Bench(known, FakeMachine().tools()))
    assert peak == device("h100-sxm-80gb").peak_bf16_flop_per_s.value
    assert source.startswith("h100-sxm-80gb: ")


def test_off_is_predicted_over_measured():
    said = Metrics(
        step_time_s=3.0, samples_per_s=2.0, peak_bytes=8.0, memory_bytes={"weights": 2.0, "activations": 6.0}
    )
    assert off(FOUND, said) == {
        "step_time_s": 0.5,
        "samples_per_s": -0.5,
        "peak_bytes": 1.0,
        "memory_bytes.weights": 1.0,
        "memory_bytes.activations": 1.0,
    }


def test_parts_that_do_not_add_up_are_refused():
    with pytest.raises(InputError, match="parts that add up to peak_bytes"):
        Metrics(step_time_s=1.0, samples_per_s=1.0, peak_bytes=5.0, memory_bytes=PARTS)


def test_two_processes_are_as_slow_as_the_slower_and_twice_as_much():
    ranks = [
        {"seconds": [1.0, 3.0, 2.0], "compute": 0.5, "flop": 8, "samples": 4, "cpu": 0.4, "weights": 0.5},
        {"seconds": [2.0, 1.0, 2.0], "compute": 0.7, "flop": 8, "samples": 4, "cpu": 0.3, "weights": 0.5},
    ]
    found = together(ranks, 10.0)
    assert (found.step_time_s, found.samples_per_s, found.flop) == (2.0, 4.0, 16.0)
    assert found.cpu_utilisation == pytest.approx(0.7)
    assert found.tensor_utilisation == pytest.approx(16 / (2 * 10 * 0.6 * 2))
    with pytest.raises(ExecutionError, match="weights differ"):
        together([ranks[0], ranks[1] | {"weights": 0.6}], 10.0)


def invoke(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)


@pytest.mark.slow
def test_the_command_prints_one_object_or_a_table(bench, quick, monkeypatch, tmp_path):
    monkeypatch.setattr(cli, "open_bench", lambda device: bench)
    monkeypatch.setattr(cli, "Request", lambda *given: Request(*given, workloads=("a3c",)))
    given = ("--device", "cpu", "--suite", "tbd", "--out", tmp_path / "r")
    printed = json.loads(invoke(*given, "--json").stdout)
    assert (printed["done"], printed["skipped"], printed["failed"], printed["left"]) == (3, 0, 0, 0)
    assert printed["path"] == str(tmp_path / "r" / FILE)
    assert printed["rows"][0]["off"]["step_time_s"] == 0.0
    monkeypatch.setenv("COLUMNS", "120")
    shown = invoke(*given, "--resume")
    assert "a3c" in shown.stdout and "activations 75\u00a0%" in shown.stdout
    assert "3 done, 0 skipped, 0 failed, 0 left by the budget" in shown.stderr
    with pytest.raises(InputError, match="--seed: got 3; allowed: 0, as of the results in --out"):
        invoke(*given, "--resume", "--seed", 3)
    with pytest.raises(InputError, match="--budget: got '8x'"):
        invoke(*given, "--budget", "8x")
    with pytest.raises(InputError, match="--device: got 'tpu'"):
        invoke("--device", "tpu", "--suite", "tbd", "--out", tmp_path / "s")


def test_a_busy_machine_is_refused(quick, monkeypatch, tmp_path):
    busy = FakeMachine(others=[0.9])
    monkeypatch.setattr(cli, "open_bench", lambda device: Bench(FINGERPRINT, busy.tools()))
    result = invoke("--device", "cpu", "--suite", "tbd", "--out", tmp_path / "r")
    assert result.exit_code == 1
    assert "not measured: the machine is busy" in result.stderr
    assert not (tmp_path / "r").exists()


@pytest.mark.slow
def test_a_small_network_on_one_and_two_processes_and_compiled(monkeypatch, tmp_path):
    """The real thing, but for the compiler, which takes longest: torch.compile only traces."""
    bench = Bench(FINGERPRINT, replace(FakeMachine().tools(), stopwatch=HostStopwatch()))
    monkeypatch.setattr(training, "BACKEND", "eager")
    monkeypatch.setattr(shutil, "which", lambda name: name)
    results, left = run(request(tmp_path, "a3c"), bench, silent)
    assert left == 0
    one, two, compiled = results.rows
    assert [row.status for row in results.rows] == ["done"] * 3, [row.reason for row in results.rows]
    assert (two.samples, two.measured.flop) == (2 * one.samples, pytest.approx(2 * one.measured.flop))
    assert compiled.measured.flop == one.measured.flop
    for row in (one, two):
        assert row.predicted.flop == pytest.approx(row.measured.flop, rel=1e-6)
        assert row.off["step_time_s"] == pytest.approx(row.predicted.step_time_s / row.measured.step_time_s - 1)
    assert one.off["memory_bytes.weights"] == pytest.approx(0.0, abs=1e-3)


def test_a_wrong_file_is_one_error(tmp_path):
    row = Row(
        workload="a", domain="b", paper="c", size="tiny", framework="eager", processes=1, parameters=1, samples=1,
        status="done",
    )  # fmt: skip
    made = Results(
        date="d", commit="", fingerprint=FINGERPRINT, size="tiny", peak_flop_per_s=1.0, peak_source="s", rows=[row]
    )
    save_results(tmp_path, made)
    assert load_results(tmp_path) == made
    held = json.loads((tmp_path / FILE).read_text())
    held["rows"][0]["processes"] = 3
    (tmp_path / FILE).write_text(json.dumps(held))
    with pytest.raises(InputError, match=r"tbd\.json: rows\.0\.processes|rows\.0\.processes"):
        load_results(tmp_path)


def test_the_step_of_a_gpu_session_runs_the_benchmark_here(quick, monkeypatch, tmp_path):
    """The step's own code on a CPU; only what a workload takes is made up."""
    monkeypatch.setattr(session, "open_bench", lambda device: Bench(FINGERPRINT, FakeMachine().tools()))
    place = gpu_session.Place("cpu", tmp_path, "smoke", limit_s=60.0)
    step = next(step for step in gpu_session.STEPS if step.name == "workloads")
    assert gpu_session.in_process(step, place) == 0
    found = json.loads((tmp_path / "workloads.json").read_text())["result"]
    assert (found["left"], len(found["results"]["rows"])) == (0, 3 * len(WORKLOADS))
    assert load_results(place.profile).size == "tiny"
    assert gpu_session.in_process(step, place) == 0
    assert len(quick) == 3 * len(WORKLOADS)


def test_a_steps_samples_are_those_asked_for(bench, quick, tmp_path):
    results, _ = run(request(tmp_path, "a3c", samples=3), bench, silent)
    assert load_results(tmp_path / "r").samples == 3
    assert [row.samples for row in results.rows] == [3, 6, 3]
    with pytest.raises(InputError, match="--samples: got 4; allowed: 3, as for the results in --out"):
        run(request(tmp_path, "a3c", resume=True, samples=4), bench, silent)


def test_the_seed_stays_that_of_what_was_measured(bench, quick, monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(suite, "_measured", lambda results, variant: drawn.append(results.seed) or FOUND)
    assert run(request(tmp_path, "a3c", seed=7), bench, silent)[0].seed == 7
    with pytest.raises(InputError, match="--seed: got 0; allowed: 7, as of the results in --out, or left out"):
        run(request(tmp_path, "a3c", resume=True, seed=0), bench, silent)
    for seed in (7, None):
        assert run(request(tmp_path, "a3c", "wgan", resume=True, seed=seed), bench, silent)[0].seed == 7
    assert drawn == [7] * 6


def test_all_predictions_are_of_the_profile_that_the_results_name(bench, quick, monkeypatch, tmp_path):
    by = []

    def predicted(workload, size, cluster, *given):
        by.append(cluster.profile)
        return replace(FOUND, step_time_s=2.0 if cluster.profile == "l4" else 1.0)

    monkeypatch.setattr(suite, "predict", predicted)
    first, _ = run(request(tmp_path, "a3c", base="t4"), bench, silent)
    again, _ = run(request(tmp_path, "a3c", "wgan", resume=True, base="l4"), bench, silent)
    assert (first.profile, again.profile) == ("t4", "l4")
    assert by == ["t4"] * 2 + ["l4"] * 4
    assert {row.predicted.step_time_s for row in again.rows if row.predicted} == {2.0}
    assert [row.measured for row in again.rows[:3]] == [row.measured for row in first.rows]


def test_a_profile_that_was_fitted_anew_predicts_anew(bench, quick, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(suite, "predict", lambda *given: asked.append(given) or FOUND)
    folder = tmp_path / "fitted"
    folder.mkdir()
    fitted = load_mapping(ROOT / "sim/catalog/profiles/cpu/profile.json")
    write_json(folder / "profile.json", fitted)
    again = partial(run, request(tmp_path, "a3c", resume=True, base=str(folder)), bench, silent)
    run(request(tmp_path, "a3c", base=str(folder)), bench, silent)
    assert again() and len(asked) == 2
    write_json(folder / "profile.json", {**fitted, "issue_s": 2 * fitted["issue_s"]})
    assert again() and len(asked) == 4


def test_sizes_and_samples_belong_to_this_suite(tmp_path):
    out = ("--out", tmp_path / "r")
    with pytest.raises(InputError, match="--size: got 'huge'"):
        invoke("--device", "cpu", "--suite", "tbd", "--size", "huge", *out)
    with pytest.raises(InputError, match="--samples: got 0; allowed: 1 to"):
        invoke("--device", "cpu", "--suite", "tbd", "--samples", 0, *out)
    with pytest.raises(InputError, match="--samples: got 2; allowed: left out, or --suite tbd"):
        invoke("--device", "cpu", "--samples", 2, *out)
