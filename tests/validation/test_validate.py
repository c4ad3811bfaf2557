"""Outcomes and summaries with a predictor made up for the purpose, and with the simulator."""

from collections.abc import Sequence

import pytest

from sim.engine.step import simulate
from sim.validation.accuracy import accuracy, errors_by_source, read_accuracy, write_accuracy
from sim.validation.baselines import busy_share, ideal_s
from sim.validation.predict import Prediction, Range, elsewhere
from sim.validation.table import read_runs
from sim.validation.translate import Case, translate
from sim.validation.validate import data, summary, validate
from tests.oracle import reference
from tests.validation.runs import write

GB = 1e9
MEMORY = {"use_for": "memory", "memory_kind": "allocated", "memory_rank": "max"}


def constant(time_s: float, peaks_bytes: Sequence[float] = (10 * GB,), outside: float = 0.0):
    """Return a predictor that says the same of every case; intervals are +-20 %."""

    def around(value: float) -> Range:
        return Range(value, 0.8 * value, 1.2 * value)

    def predict(cases: Sequence[Case]) -> list[Prediction]:
        held = tuple(around(b) for b in peaks_bytes)
        memory = {"allocated": held, "reserved": held, "nvidia_smi": tuple(around(b + outside) for b in peaks_bytes)}
        return [Prediction(around(time_s), memory) for _ in cases]

    return predict


def rows(tmp_path, *changes: dict[str, str]):
    return read_runs(write(tmp_path / "runs.csv", *changes))


def test_summary_by_hand(tmp_path) -> None:
    table = rows(tmp_path, {"step_time_s": "2"}, {"step_time_s": "1.25"}, {"step_time_s": "1", "use_for": "time?"})
    time = summary(validate(table, constant(1.5)))["time"]
    assert (time["n"], time["coverage80"]) == (2, 0.5)
    assert time["mape"] == pytest.approx((25 + 20) / 2) and time["bias"] == pytest.approx(-2.5)
    assert time["median_width"] == pytest.approx(40)
    # The order takes all three rows; a predictor that sees no difference ties in every pair.
    assert time["pairwise_order"] == 0.5 and time["mean_regret"] == pytest.approx(100 * ((2 + 1.25 + 1) / 3 - 1))
    assert time["baselines"]["constant_mfu"]["mape"] <= time["mape_debiased"] + 1e-9


def test_rows_that_score_nothing_are_listed(tmp_path) -> None:
    found = validate(rows(tmp_path, {}, {"use_for": ""}, {"use_for": "parity"}, {"use_for": "layer_time"}), constant(2))
    assert [r.id for r in found.not_scored] == ["site-2", "site-3", "site-4"]
    assert len(found.outcomes) == 1 and not found.skipped


def test_what_a_row_scores_nothing_for_is_all_said(tmp_path) -> None:
    found = validate(rows(tmp_path, {"use_for": "parity+layer_time"}, {"use_for": "+"}), constant(2)).not_scored
    assert found[0].reason == "time of one layer, not of a step; output of another simulator, not a measurement"
    assert found[1].reason == "use_for is blank: it says neither time, memory nor oom, so that nothing is scored"


def test_rows_that_cannot_be_expressed_are_skipped_with_the_reason(tmp_path) -> None:
    found = validate(rows(tmp_path, {"device": "abacus"}, {}), constant(2))
    assert [(r.id, "device: got 'abacus'" in r.reason) for r in found.skipped] == [("site-1", True)]


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"precision": "fp8"}, "plan.precision: got 'fp8'; allowed: a precision that NVIDIA A100"),
        ({"precision": "fp32"}, "plan.precision: got 'fp32'"),
        ({"device": "v100-sxm-32gb"}, "plan.precision: got 'bf16'; allowed: a precision that NVIDIA V100"),
        ({"pp": "1", "schedule": "2bw"}, "plan.pp: got 1"),
        ({"pp": "4", "vpp": "2", "schedule": "dualpipev", "global_batch": "32"}, "plan.micro_batch: got"),
    ],
)
def test_a_row_that_no_device_can_run_is_skipped_and_the_others_are_predicted(tmp_path, cells, reason) -> None:
    found = validate(rows(tmp_path, cells, {}), elsewhere)
    assert [(r.id, r.reason.startswith(reason)) for r in found.skipped] == [("site-1", True)], found.skipped
    assert [o.row.id for o in found.outcomes] == ["site-2"]


def test_memory_takes_the_stated_kind_and_rank(tmp_path) -> None:
    last = {**MEMORY, "memory_rank": "last", "peak_memory_bytes": "1e10"}
    smi = {**MEMORY, "memory_kind": "nvidia_smi", "peak_memory_bytes": "2.1e10"}
    found = validate(rows(tmp_path, last, smi), constant(1, (20 * GB, 10 * GB), outside=GB))
    memory = summary(found)["memory"]
    assert memory == {"n": 2, "mape": 0.0, "median": 0.0, "max": 0.0, "coverage80": 1.0}


@pytest.mark.parametrize(
    ("predicted_gb", "wanted"),
    [
        (10, {"tp": 1, "fp": 0, "fn": 0, "tn": 2}),
        (8, {"tp": 0, "fp": 0, "fn": 1, "tn": 2}),
        (12, {"tp": 1, "fp": 1, "fn": 0, "tn": 1}),
    ],
)
def test_a_measured_peak_gives_a_device_on_either_side(tmp_path, predicted_gb: float, wanted: dict[str, int]) -> None:
    table = rows(tmp_path, {**MEMORY, "peak_memory_bytes": "1e10"})
    found = summary(validate(table, constant(1, (predicted_gb * GB,))))
    assert found["oom"] == wanted
    assert found["oom_of_runs"] == {"tp": 0, "fp": 0, "fn": 0, "tn": 1}


def test_the_runs_own_verdict_counts_unless_its_recipe_is_incomplete(tmp_path) -> None:
    table = rows(tmp_path, {"oom": "1", "use_for": "oom"}, {"oom": "0", "use_for": "time?"}, {"oom": ""})
    found = validate(table, constant(1, (90 * GB,)))
    assert summary(found)["oom"] == {"tp": 1, "fp": 0, "fn": 0, "tn": 0}
    assert [o.predicted_oom for o in found.outcomes] == [True, True, True]


def test_an_empty_table_has_no_errors(tmp_path) -> None:
    found = summary(validate([], constant(1)))
    assert found["time"]["n"] == 0 and found["time"]["mape"] is None and found["memory"]["max"] is None
    assert found["oom"] == {"tp": 0, "fp": 0, "fn": 0, "tn": 0}


def test_the_analytic_predictor_says_what_simulate_says(tmp_path) -> None:
    row = rows(tmp_path, {"pp": "2", "schedule": "1f1b"})[0]
    case = translate(row)
    step, found = simulate(case.model, case.cluster, case.plan), elsewhere([case])[0]
    assert found.step_time_s.value == pytest.approx(step.step_time_s, rel=0.02)
    assert found.step_time_s.high / found.step_time_s.low == pytest.approx(
        step.step_time_interval_s[1] / step.step_time_interval_s[0], rel=0.02
    )
    assert found.peak("allocated").value == pytest.approx(step.peak_memory_bytes)
    assert found.peak("nvidia_smi").value == pytest.approx(step.device_memory_bytes)
    assert found.peak("reserved").value > found.peak("allocated").value
    assert found.peak("allocated", "last").value == pytest.approx(step.memory[-1].peak_bytes)


def test_baselines_by_hand(tmp_path) -> None:
    case = translate(rows(tmp_path, {"pp": "4", "tp": "2", "schedule": "1f1b", "micro_batch": "8"})[0])
    flop = 64 * 1024 * case.model.flop_per_token("megatron")
    assert ideal_s(case) == pytest.approx(flop / (8 * 312e12))
    assert busy_share(case) == pytest.approx(8 / (8 + 3))


def test_the_derived_table_comes_back_as_it_was_written(tmp_path) -> None:
    table = rows(tmp_path, {"model": "=GPT()"}, {**MEMORY, "peak_memory_bytes": "1e10"}, {"use_for": "time?"})
    written = accuracy(validate(table, constant(1.5)), "=runs")
    write_accuracy(written, tmp_path / "out.csv")
    read = read_accuracy(tmp_path / "out.csv")
    assert (read[0].source, read[0].plan) == (written[0].source, written[0].plan)
    assert "\n'=runs," in (tmp_path / "out.csv").read_text()
    assert [row.ratio for row in read] == [0.75, None, None] and read[1].memory_ratio == 1.0
    assert read[0].constant_mfu_ratio == 1.0 and read[2].constant_mfu_ratio is None
    errors = errors_by_source(written)
    assert list(errors) == ["=runs"] and errors["=runs"].mape == pytest.approx(25)


def test_errors_by_source_agree_with_the_summary() -> None:
    found = validate(read_runs(reference("runs") / "simumax_b200.csv"), elsewhere)
    time, memory = (errors_by_source(accuracy(found, "b200"), what)["b200"] for what in ("time", "memory"))
    told = data(found)["summary"]
    for name in ("n", "mape", "median", "p90", "bias", "mape_debiased", "coverage80"):
        assert getattr(time, name) == pytest.approx(told["time"][name])
    assert memory.mape == pytest.approx(told["memory"]["mape"])
    assert told["time"]["pairwise_order"] >= 0.9 and told["memory"]["mape"] < 10
