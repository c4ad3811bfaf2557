"""The whole run and the compute-optimal budget at the shell."""

import json

import pytest

from sim.report import html
from sim.tuner import baseline, ranking
from sim.tuner import tune as tuning

JOB = """
model: llama3-8b
cluster: {device: h100-sxm-80gb, nodes: 1}
plan: {tp: 4, pp: 2, global_batch: 64, recompute: selective}
"""
TUNE = "tune: {global_batch: 64, knobs: {tp: [4], pp: [2], zero: [0]}}\n"
TWO = "tune: {global_batch: 64, knobs: {tp: 4, zero: [0, 1]}}"
RUN = {"steps", "tokens", "days", "gpu_hours", "cost_usd", "energy_kwh", "goodput", "mean_power_w_per_gpu"}
RUN |= {"losses", "paced_step_time_s", "steps_between_checkpoints"}
AROUND = """
loading:
  dataset: imagenet-1k
  storage: {read_bytes_per_s: 3.0e+5, write_bytes_per_s: 1.0e+6}
  workers: 4
  prep_s: 0.01
checkpointing: {every: 50, storage: sata-ssd, failures: {spares: 1}}
"""


@pytest.fixture
def job(tmp_path):
    def write(more=""):
        (tmp_path / "job.yaml").write_text(JOB + more)
        return tmp_path / "job.yaml"

    return write


def test_simulate_prints_the_run(trainsim, job):
    code, out, _ = trainsim("simulate", job("training: {tokens: 15e12, pue: 1.1}"), "--json")
    data = json.loads(out)
    assert code == 0
    assert set(data["run"]) == RUN | {f"{k}_interval" for k in ("days", "gpu_hours", "cost_usd", "energy_kwh")}
    low, high = data["run"]["days_interval"]
    assert low < data["run"]["days"] < high
    assert data["run"]["cost_usd"] == pytest.approx(data["run"]["gpu_hours"] * 2.99)
    assert any("idle draw" in a for a in data["assumptions"])
    assert {"run", "in_turn"}.isdisjoint(json.loads(trainsim("simulate", job(), "--json")[1]))


def test_sections_join_in_turn(trainsim, job, tmp_path):
    (tmp_path / "others.yaml").write_text(
        "devices: [h100-sxm-80gb]\njobs: {small: {model: gpt2, gpus: [1, 2, 4, 8], plan: {global_batch: 64}}}\n"
    )
    sharing = "sharing: {workload: others.yaml, devices: {h100-sxm-80gb: 96}, every_hours: 4}\n"
    stated = job("training: {tokens: 2e9}\n" + AROUND + sharing)
    data = json.loads(trainsim("simulate", stated, "--json")[1])
    rows = data["in_turn"]
    assert list(rows) == ["steps alone", "with its data", "with checkpoints and failures", "beside other jobs"]
    assert rows["with checkpoints and failures"] == {key: data["run"][key] for key in rows["steps alone"]}
    assert rows["beside other jobs"] == {key: data["run"]["shared"][key] for key in rows["steps alone"]}
    html = tmp_path / "step.html"
    out = " ".join(trainsim("simulate", stated, "--html", html)[1].split())
    assert out.endswith(f"written: {html}")
    assert "Beside other jobs, by max_min_fairness_perf: " in out
    assert "What the run takes as each part of its job joins" in html.read_text()
    bad = job("training: {tokens: 2e9}\n" + sharing.replace("96", "4"))
    code, _, err = trainsim("simulate", bad)
    assert code == 2 and "sharing.devices.h100-sxm-80gb: got 4; allowed: " in err


def test_simulate_says_it_in_one_sentence_and_on_the_page(trainsim, job, tmp_path):
    html = tmp_path / "step.html"
    code, out, _ = trainsim("simulate", job("training: {tokens: 15e12}"), "--html", html)
    text = " ".join(out.split())
    assert code == 0
    assert "15.0 trillion tokens:" in text
    assert all(unit in text for unit in ("days (", " GPU-hours", " million USD", " MWh."))
    page = html.read_text()
    assert "<h2>The whole run</h2>" in page and "15.0 trillion tokens" in page
    assert "&quot;training&quot;" in page  # the job printed for making it again


@pytest.mark.slow
def test_tune_shows_the_winners_run_and_hands_training_on(trainsim, job, tmp_path):
    file = job(TUNE + "training: {steps: 1000, goodput: 0.9}")
    code, out, _ = trainsim("tune", file, "--json", "--top", 2, "--out", tmp_path / "out")
    data = json.loads(out)
    assert code == 0
    assert data["run"]["days"] == pytest.approx(1000 * data["plans"][0]["step_time_s"] / 0.9 / 86_400)
    again = json.loads(trainsim("simulate", tmp_path / "out" / "plan-1.json", "--json")[1])
    assert again["run"] == data["run"]
    assert "<h2>The whole run</h2>" in (tmp_path / "out" / "report.html").read_text()
    assert "GPU-hours" in trainsim("tune", file, "--top", 1)[1]


def test_optimal_in_flop(trainsim, job):
    code, out, _ = trainsim("optimal", job(), "--budget-flop", "5.76e23", "--json")
    data = json.loads(out)
    assert code == 0
    assert data["law"]["name"] == "besiroglu-2024"
    assert data["optimum"]["parameters"] == pytest.approx(70e9, rel=0.05)
    assert data["model"]["tokens"] == pytest.approx(5.76e23 / 6 / data["model"]["parameters"])
    assert set(data) == {"budget_flop", "budget_flop_interval", "law", "model", "optimum", "balanced", "assumptions"}


def test_optimal_agrees_with_the_run(trainsim, job):
    file = job("training: {tokens: 1e12, goodput: 0.8}")
    run = json.loads(trainsim("simulate", file, "--json")[1])["run"]
    for option, amount in (("--days", run["days"]), ("--gpu-hours", run["gpu_hours"]), ("--usd", run["cost_usd"])):
        found = json.loads(trainsim("optimal", file, option, amount, "--json")[1])
        assert found["model"]["tokens"] == pytest.approx(run["tokens"])


def test_optimal_loses_what_the_run_loses(trainsim, job):
    data = "loading: {dataset: {samples: 10000000, sample_bytes: 32768}, prep_s: 2.0}"
    file = job("training: {tokens: 1e11}\n" + data + "\ncheckpointing: {failures: {device_mtbf_s: 1e6}}")
    run = json.loads(trainsim("simulate", file, "--json")[1])["run"]
    assert run["goodput"] < 0.7
    found = json.loads(trainsim("optimal", file, "--days", run["days"], "--json")[1])
    assert found["model"]["tokens"] == pytest.approx(run["tokens"])


def test_optimal_in_words(trainsim, job):
    code, out, _ = trainsim("optimal", job(), "--days", 30, "--law", "hoffmann-2022")
    text = " ".join(out.split())
    assert code == 0
    assert "FLOP: llama3-8b trains on" in text and "Compute-optimal:" in text
    assert "Chinchilla as published" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "budget: missing; required: exactly one of --budget-flop"),
        (("--days", 1, "--usd", 1), "allowed: exactly one of"),
        (("--days", "nan"), "days: got nan"),
        (("--days", "soon"), "--days"),
        (("--budget-flop", "-1"), "--budget-flop: got -1.0"),
        (("--budget-flop", "1e23", "--law", "mine"), "--law: got 'mine'; allowed: one of besiroglu-2024"),
    ],
)
def test_optimal_refuses(trainsim, job, arguments, message):
    code, out, err = trainsim("optimal", job(), *arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_time_needs_a_plan_and_flop_do_not(trainsim, tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text("model: llama3-8b\ncluster: {device: l4}\n")
    code, _, err = trainsim("optimal", file, "--days", 3)
    assert code == 2 and "plan: missing; required" in err
    assert trainsim("optimal", file, "--budget-flop", "1e22")[0] == 0


@pytest.fixture
def stopped(monkeypatch):
    """Press Ctrl-C while the n-th plan of the short list runs on the event engine."""

    def at(n):
        calls = iter(range(10**6))

        def simulate(*given):
            if next(calls) == n:
                raise KeyboardInterrupt
            return simulated(*given)

        simulated = ranking.simulate
        monkeypatch.setattr(ranking, "simulate", simulate)

    return at


def test_an_interrupted_search_prints_the_best_so_far(trainsim, job, stopped):
    stopped(1)
    code, out, told = trainsim("tune", job("tune: {global_batch: 64, knobs: {tp: 4, zero: [0, 1]}}"), "--json")
    data = json.loads(out)
    assert code == 0
    assert (data["interrupted"], data["certified"], len(data["plans"])) == (True, False, 1)
    assert "interrupted: the best plan so far, not certified" in told


def test_after_an_interruption_nothing_more_is_run(trainsim, job, stopped):
    stopped(0)
    code, out, told = trainsim(
        "tune", job("tune: {global_batch: 64, knobs: {tp: 4, zero: [0, 1]}}"), "--json", "--top", 2
    )
    data = json.loads(out)
    assert code == 0
    assert [p["contended_step_time_s"] for p in data["plans"]] == [None, None]
    assert data["baseline"] and data["left_out"][0].startswith("the order under contention")
    assert "left out: the order under contention" in told and "what faster hardware would buy" in told


def test_an_interruption_of_the_baseline_keeps_the_plans(trainsim, job, monkeypatch):
    monkeypatch.setattr(baseline, "simulate", interrupt)
    code, out, told = trainsim(
        "tune", job("tune: {global_batch: 64, knobs: {tp: 4, zero: [0, 1]}}"), "--json", "--top", 2
    )
    data = json.loads(out)
    assert (code, data["baseline"], len(data["plans"])) == (0, None, 2)
    assert "left out: the textbook plan, " in told


def test_an_interruption_of_the_report_keeps_what_is_printed(trainsim, job, monkeypatch, tmp_path):
    monkeypatch.setattr(html, "save_html", interrupt)
    asked = job(TWO), "--top", 2, "--out", tmp_path / "out"
    code, out, told = trainsim("tune", *asked)
    assert code == 0 and "Best of " in out
    assert "report.html is left out" in told
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["plan-1.json", "plan-2.json"]


def interrupt(*_, **__):
    raise KeyboardInterrupt


def test_a_search_interrupted_before_any_plan_prints_nothing(trainsim, job, monkeypatch):
    def stop(space):
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning, "scored", stop)
    code, out, told = trainsim("tune", job("tune: {global_batch: 64}"))
    assert code in (1, 130)
    assert out == ""
    assert "Traceback" not in told


@pytest.mark.slow
def test_tune_finds_the_nodes_for_a_deadline(trainsim, tmp_path):
    text = """
model: llama3-8b
cluster: {device: h100-sxm-80gb, nodes: 4}
tune: {global_batch: 64, objective: gpus_for_deadline, deadline_days: %s, knobs: {tp: {max: 2}, pp: 1, zero: 3}}
training: {tokens: 50e9}
"""
    (tmp_path / "job.yaml").write_text(text % 6)
    code, out, _ = trainsim("tune", tmp_path / "job.yaml", "--json", "--top", "1", "--out", tmp_path / "out")
    data = json.loads(out)
    assert code == 0
    assert data["target"] == "torch"
    assert data["run"]["days"] <= 6
    assert 1 <= data["nodes"] < 4
    assert json.loads((tmp_path / "out" / "plan-1.json").read_text())["cluster"]["nodes"] == data["nodes"]
    (tmp_path / "job.yaml").write_text(text % 0.1)
    code, _, told = trainsim("tune", tmp_path / "job.yaml")
    assert code == 2
    assert "tune.deadline_days: got 0.1; allowed: at least" in told


@pytest.mark.slow
def test_data_and_checkpoints_flow_into_the_run(trainsim, job, tmp_path):
    file = job(AROUND + "training: {steps: 1000}")
    code, out, _ = trainsim("simulate", file, "--json")
    data = json.loads(out)
    assert code == 0
    assert data["loading"]["paced_step_time_s"] == data["run"]["paced_step_time_s"] >= data["step_time_s"]
    assert data["checkpointing"]["k"] == data["run"]["steps_between_checkpoints"] == 50
    assert data["run"]["goodput"] + sum(data["run"]["losses"].values()) == pytest.approx(1.0)
    text = " ".join(trainsim("simulate", file)[1].split())
    assert "of the time trains (" in text and "Data: " in text and "Checkpoints: " in text
    plans = trainsim("tune", job(AROUND + TUNE), "--json", "--top", 1, "--out", tmp_path / "out")
    assert plans[0] == 0
    again = json.loads(trainsim("simulate", tmp_path / "out" / "plan-1.json", "--json")[1])
    assert again["checkpointing"]["k"] == 50  # what surrounds the steps is part of the plan's file


@pytest.mark.slow
def test_hours_of_training_come_from_one_run(trainsim, job, tmp_path):
    html, trace = tmp_path / "hour.html", tmp_path / "hour.json"
    asked = ("simulate", job(AROUND), "--hours", 0.2, "--seed", 3, "--html", html, "--trace", trace)
    code, out, _ = trainsim(*asked, "--json")
    data = json.loads(out)["trained"]
    assert code == 0
    assert data["seconds"] == pytest.approx(720, rel=0.1)
    assert sum(data["parts_s"].values()) == pytest.approx(data["seconds"])
    assert data["steps"] > 10
    assert "of training</h2>" in html.read_text()
    assert "simulate job.json --engine path --hours 0.2 --seed 3 --html report.html" in html.read_text()
    assert json.loads(trace.read_text())["traceEvents"]
    assert "steps in" in trainsim("simulate", job(AROUND), "--hours", 0.05)[1]


@pytest.mark.parametrize("hours", ["0", "-1", "20000", "nan"])
def test_hours_have_a_range(trainsim, job, hours):
    code, _, err = trainsim("simulate", job(), "--hours", hours)
    assert code == 2
    assert "--hours: got" in err


def test_contradictions_are_refused(trainsim, job):
    both = job("training: {steps: 9, goodput: 0.9}\ncheckpointing: {every: 5}")
    assert "training.goodput: got 0.9; allowed: left out beside checkpointing" in trainsim("simulate", both)[2]
    sought = job("training: {steps: 9}\ncheckpointing: {}\ntune: {global_batch: 64, objective: gpus_for_deadline,"
                 " deadline_days: 3}")  # fmt: skip
    assert "left out with objective gpus_for_deadline" in trainsim("tune", sought)[2]
