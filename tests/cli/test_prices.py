"""Prices of a job at the shell: every command that reads a job sees them, or is told that it cannot."""

import json

import jsonschema
import pytest
import yaml

from sim.cli.check import checked_file
from sim.market.offers import History, Market
from sim.market.price_files import write_prices
from sim.plans.files import plain
from sim.plans.plan_file import load_plan
from sim.specs import InputError, Job
from sim.specs.schema import file_schema
from sim.sweep.grid import Grid
from tests.market.toys import offer
from tests.market.toys import priced as history
from tests.oracle import ROOT

JOB = """
model: llama3-8b
cluster: {device: h100-sxm-80gb, nodes: 1}
plan: {tp: 4, pp: 2, global_batch: 64, recompute: selective}
"""
TRAINED = "training: {steps: 20000}\n"
FILES = "prices: {files: prices.csv, every_hours: 1}\n"
TUNE = "tune: {global_batch: 64, objective: cost, knobs: {tp: [4], pp: [2], zero: [0]}}\n"
RENTED = {"strategy", "migrations", "preemptions", "transfer_usd", "path", "parts_s", "optimum_usd"}


@pytest.fixture
def job(tmp_path):
    """Write a job beside two offers of eight H100: 24 USD, and 32 USD until hour 10, then 8."""
    one, other = (offer(f"us-east-1{zone}", "h100", 8) for zone in "ab")
    held = (History.constant(one, 24.0), history(*[32.0] * 10, 8.0, of=other))
    write_prices(Market(held), tmp_path / "prices.csv")

    def write(more="", name="job.yaml"):
        (tmp_path / name).write_text(JOB + more)
        return tmp_path / name

    return write


def test_simulate_rents(trainsim, job, tmp_path):
    code, out, _ = trainsim("simulate", job(TRAINED + FILES), "--json")
    run = json.loads(out)["run"]
    assert code == 0
    assert set(run) >= RENTED
    assert [stay["zone"] for stay in run["path"]] == ["us-east-1a", "us-east-1b"]
    assert run["migrations"] == 1
    hours = run["days"] * 24
    assert run["cost_usd"] == pytest.approx(10 * 24 + (hours - 10) * 8)
    assert run["optimum_usd"] <= run["cost_usd"]
    html = tmp_path / "step.html"
    text = " ".join(trainsim("simulate", job(TRAINED + FILES), "--html", html)[1].split())
    assert "dynamic: the run ends after" in text and "1 move, 0 preemptions." in text
    assert "10.0 h on aws us-east-1a 8xh100: 240 USD, moved" in text
    page = html.read_text()
    assert "<h3>Rented</h3>" in page and "With all prices known beforehand" in page and "&quot;prices&quot;" in page


def test_one_price_is_as_a_clusters_price(trainsim, job):
    priced = json.loads(trainsim("simulate", job(TRAINED + "prices: {usd_per_gpu_hour: 1.5}"), "--json")[1])
    old = json.loads(trainsim("simulate", job("training: {steps: 20000, usd_per_gpu_hour: 1.5}"), "--json")[1])
    assert priced["run"] == old["run"]
    assert not RENTED & set(priced["run"])
    assert priced["usd_per_1e9_tokens"] == old["usd_per_1e9_tokens"]
    bare = json.loads(trainsim("simulate", job(), "--json")[1])
    assert priced["usd_per_1e9_tokens"] == pytest.approx(bare["usd_per_1e9_tokens"] * 1.5 / 2.99)


@pytest.mark.slow
def test_tune_asks_the_market_what_devices_cost(trainsim, job, tmp_path):
    """The cheapest is 3 USD a device for ten hours, the mean until the last change."""
    out = tmp_path / "out"
    code, text, _ = trainsim("tune", job(TUNE + TRAINED + FILES), "--json", "--top", 1, "--out", out)
    data = json.loads(text)
    best = data["plans"][0]
    assert code == 0
    tokens_per_s = 64 * 8_192 / best["step_time_s"]
    assert best["usd_per_1e9_tokens"] == pytest.approx(1e9 / tokens_per_s * 8 * 3.0 / 3_600)
    assert any("cluster.usd_per_gpu_hour = 3 USD (the cheapest of 2 offers" in line for line in data["assumptions"])
    again = json.loads(trainsim("simulate", out / "plan-1.json", "--json")[1])
    assert again["run"] == data["run"]
    assert "dynamic: the run ends after" in trainsim("tune", job(TUNE + TRAINED + FILES), "--top", 1)[1]


@pytest.mark.slow
def test_the_price_of_training_is_what_a_search_ranks_by(trainsim, tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text(
        "model: llama3.2-1b\ncluster: {device: l4}\ntraining: {steps: 1000, usd_per_gpu_hour: 1.5}\n"
        "tune: {global_batch: 8, objective: cost, target: any, knobs: {tp: [4], zero: [0], unequal_stages: false}}\n"
    )
    data = json.loads(trainsim("tune", file, "--json", "--top", 1)[1])
    tokens = data["run"]["tokens"] / 1e9
    assert data["plans"][0]["usd_per_1e9_tokens"] == pytest.approx(data["run"]["cost_usd"] / tokens)


@pytest.mark.slow
def test_a_plan_file_remembers_prices(trainsim, job, tmp_path):
    file = job(TUNE + FILES)
    trainsim("tune", file, "--top", 1, "--out", tmp_path / "out")
    held = load_plan(tmp_path / "out" / "plan-1.json").job.prices
    assert plain(held) == plain(Job.load(file).prices)
    assert held.files == (str(tmp_path / "prices.csv"),)
    assert checked_file(tmp_path / "out" / "plan-1.json")[:2] == ("plan-file", [])


def test_a_deadline_is_met_at_the_markets_price(trainsim, job):
    tune = "tune: {global_batch: 64, objective: gpus_for_deadline, deadline_days: 30, knobs: {tp: [4], pp: [2]}}\n"
    data = json.loads(trainsim("tune", job(tune + TRAINED + FILES), "--json", "--top", 1)[1])
    assert data["plans"][0]["usd_per_1e9_tokens"] == pytest.approx(
        1e9 * data["plans"][0]["step_time_s"] / (64 * 8_192) * 24 / 3_600
    )


def test_optimal_spends_at_the_markets_price(trainsim, job):
    spent = [
        json.loads(trainsim("optimal", job(more), "--usd", "1000", "--json")[1])["budget_flop"]
        for more in (FILES, "prices: {usd_per_gpu_hour: 1.5}\n")
    ]
    assert spent[1] == pytest.approx(2 * spent[0])


def test_check_reads_the_prices_too(trainsim, job):
    kind, problems, _, assumed = checked_file(job(FILES))
    assert (kind, problems) == ("job", [])
    assert any(line.startswith("prices.boot_s = 120") for line in assumed)
    assert any(line.startswith("cluster.usd_per_gpu_hour = 3 USD") for line in assumed)
    for more, path in (
        ("prices: {files: none.csv}\n", "none.csv"),
        ("prices: {files: prices.csv, device: k80}\n", "prices.device"),
        ("prices: {files: prices.csv, strategi: dynamic}\n", "prices.strategi"),
    ):
        code, out, _ = trainsim("check", job(more), "--json")
        assert code == 2
        assert json.loads(out)["problems"][0]["path"].endswith(path)


@pytest.mark.parametrize(
    "prices, usd",
    [
        (FILES, 3.0),
        ("prices: {usd_per_gpu_hour: 1.5}\n", 1.5),
        ("training: {steps: 9, usd_per_gpu_hour: 1.5}\n", 1.5),
    ],
)
def test_a_sweep_is_at_the_jobs_price(job, prices, usd):
    axes = {"plan.zero": [0, 1]}
    assert Grid(job=str(job(prices)), axes=axes, objective="cost").cluster["usd_per_gpu_hour"] == pytest.approx(usd)
    assert "usd_per_gpu_hour" not in Grid(job=str(job()), axes=axes).cluster


def test_a_sweep_over_devices_has_no_price_of_files(job):
    axes = {"cluster.device": ["h100-sxm-80gb", "a100-sxm-80gb"]}
    with pytest.raises(InputError, match=r"axes.cluster.device: .* left out where the job has prices of files"):
        Grid(job=str(job(FILES)), axes=axes)
    assert Grid(job=str(job("prices: {usd_per_gpu_hour: 1.5}\n")), axes=axes).cluster["usd_per_gpu_hour"] == 1.5
    with pytest.raises(InputError, match=r"prices.usd_per_gpu_hour: got -1"):
        Grid(job=str(job("prices: {usd_per_gpu_hour: -1}\n")), axes=axes)


def test_the_shipped_job_rents_eight_h100(trainsim):
    file = ROOT / "notebooks" / "data" / "llama3-8b-rented.yaml"
    jsonschema.validate(yaml.safe_load(file.read_text("utf-8")), file_schema(Job))
    data = json.loads(trainsim("simulate", file, "--json")[1])
    run = data["run"]
    assert [stay["instance"] for stay in run["path"]] == ["gpu_8x_h100_sxm5"]
    assert run["cost_usd"] == pytest.approx(23.92 * run["days"] * 24)
    assert run["optimum_usd"] == pytest.approx(run["cost_usd"], rel=1e-3)  # of the rent alone
