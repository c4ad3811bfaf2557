"""Speed, run by `make bench`: pooled jobs of more than a million configurations, schedules, one plan again."""

import subprocess
import sys
from itertools import product
from time import perf_counter

import pytest

from sim.costs.layers.structure import Structure
from sim.costs.profile import load_profile
from sim.costs.stage import stage_model
from sim.engine.step import simulate
from sim.schedules import SCHEDULES, Shape, Work
from sim.specs import Cluster, Model
from sim.specs.catalog import models
from sim.tuner.options import Question, Techniques
from sim.tuner.score import score
from sim.tuner.space import build_space
from sim.tuner.stages import StageTables
from sim.tuner.tune import tune
from sim.validation.predict import elsewhere
from sim.validation.table import read_runs
from sim.validation.validate import summary, validate
from tests.benchmarks.table import PEER_SPEEDS, Speed
from tests.oracle import ROOT, reference


def pooled():
    """Return spaces of all catalog models over three clusters and five batch sizes."""
    profile = load_profile("h100-sxm-80gb")
    clusters = [Cluster.of("h100-sxm-80gb", nodes=n) for n in (16, 64, 128)]
    jobs = product(models.values(), clusters, (512, 1024, 1536, 2048, 4096))
    return [(build_space(m, c, batch), profile) for m, c, batch in jobs]


def test_configurations_per_second(benchmark, speeds):
    """Grid building, time, memory and feasibility of distinct legal configurations; compile apart."""
    score(pooled()[:20])  # compiles every structure

    def run():
        spaces = pooled()
        score(spaces)
        return sum(int(s.allowed.sum()) for s, _ in spaces)

    configurations = benchmark.pedantic(run, rounds=5, warmup_rounds=1)
    benchmark.extra_info["configurations"] = configurations
    benchmark.extra_info["per_second"] = configurations / benchmark.stats["min"]
    speeds["tuner: uniform plans"] = Speed(configurations / benchmark.stats["min"], "/s", "> 1 M/s")
    assert configurations >= 1_000_000
    assert configurations / benchmark.stats["min"] >= 1_000_000


def test_stage_options_per_second(benchmark, speeds):
    """Options of single stages of a 22B model on 32 GPUs, shares on the host among them: grid, time, memory, room."""
    model = Model(name="22b", layers=48, hidden=6144, heads=64, vocab=50_304, seq=2048)
    cluster = Cluster.of("l4", nodes=4, gpus_per_node=8)
    eighths = tuple(i / 8 for i in range(9))
    host = {"optimizer": eighths, "activations": eighths}
    techniques = Techniques((1, 2, 4, 8), (0, 1, 2, 3), ("none", "selective", "full"), (), host)

    def run():
        found = [StageTables(Question(model, cluster, 512, stages, 8), techniques) for stages in (2, 4)]
        for tables in found:
            tables.chain()
        return sum(tables.evaluated for tables in found)

    options = benchmark.pedantic(run, rounds=3, warmup_rounds=1)
    rate = options / benchmark.stats["min"]
    speeds["tuner: options of single stages"] = Speed(rate, "/s", "> 5 M/s")
    assert rate > 5_000_000


@pytest.mark.parametrize(
    ("name", "device", "nodes", "most_s"),
    [("22B", "a100-sxm-40gb", 4, 30), ("22B", "l4", 4, 30), ("175B", "a100-sxm-80gb", 128, 180)],
)
def test_whole_searches(benchmark, speeds, name, device, nodes, most_s):
    """Every plan that any target could run, ranked by the event engine: the spec's times, on an idle machine."""
    small = Model(name="22b", layers=48, hidden=6144, heads=64, vocab=50_304, seq=2048)
    model, batch = (small, 512) if name == "22B" else (models["gpt3-175b"], 1536)
    cluster = Cluster.of(device, nodes=nodes, gpus_per_node=8)
    found = benchmark.pedantic(lambda: tune(model, cluster, batch, target="any"), rounds=1)
    speeds[f"tuner: {name} on {cluster.gpus:,} {device}"] = Speed(found.seconds["total"], "s", f"< {most_s} s")
    benchmark.extra_info["gap"] = found.gap
    assert found.gap <= 1e-3
    assert found.seconds["total"] < most_s


def test_validated_rows_per_second(benchmark, speeds):
    """Tables of measured runs, read rows to summaries, engine included where there is no closed form."""
    rows = [row for name in ("llm_foundry_mpt", "vtrain_multi") for row in read_runs(reference(f"runs/{name}.csv"))]
    summary(validate(rows, elsewhere))  # builds every structure
    benchmark.pedantic(lambda: summary(validate(rows, elsewhere)), rounds=3)
    rate, least = len(rows) / benchmark.stats["min"], max(PEER_SPEEDS["calculon"], PEER_SPEEDS["SimuMax"])
    speeds["validate: measured runs"] = Speed(rate, "/s", f"> {least:g}/s")
    assert rate > least


def test_build_and_compile(benchmark, speeds):
    def run():
        stage_model.cache_clear()
        stage_model(Structure.of(models["gpt3-175b"]))

    benchmark.pedantic(run, rounds=3)
    speeds["costs: closed forms of a model, built and compiled"] = Speed(benchmark.stats["min"], "s", "< 2 s")
    assert benchmark.stats["min"] < 2


def test_one_plan_again(benchmark, speeds, gpt3, h100s, interleaved):
    benchmark(simulate, gpt3, h100s, interleaved)
    speeds["engine: one plan again"] = Speed(benchmark.stats["median"] * 1e3, "ms", "< 20 ms")
    assert benchmark.stats["median"] < 0.02


COMMAND = "from sim.cli import main; main()"
STARTS = {
    "start: import sim": ["import sim"],
    "start: trainsim --help": [COMMAND, "--help"],
    "start: trainsim list models": [COMMAND, "list", "models"],
    "demo: search and report": [COMMAND, "tune", "notebooks/jobs/gpt3-175b-128xh100.yaml", "--out"],
}


@pytest.mark.parametrize("what", STARTS)
def test_a_fresh_process(benchmark, speeds, what, tmp_path):
    asked = STARTS[what]
    line = [sys.executable, "-c", *asked, *([str(tmp_path / "out")] if asked[-1] == "--out" else [])]
    rounds = 1 if "tune" in asked else 3
    benchmark.pedantic(lambda: subprocess.run(line, cwd=ROOT, capture_output=True, check=True), rounds=rounds)
    speeds[what] = Speed(benchmark.stats["min"], "s")


def test_search_of_98304_operations(benchmark):
    work = Work.uniform(64, 185, 180, 93, 6)
    benchmark.pedantic(lambda: SCHEDULES["zb-2p"].build(Shape(64, 512), work), rounds=3)


@pytest.mark.slow
def test_symbolic_path_against_the_engine(gpt3, h100s, interleaved):
    """A ratio, not a time: scoring a configuration in bulk is at least 100 times cheaper than running it."""
    space = build_space(gpt3, h100s, 1024)
    jobs = [(space, load_profile("h100-sxm-80gb"))]
    score(jobs)
    simulate(gpt3, h100s, interleaved)
    bulk, single = (
        min(_timed(f) for _ in range(5)) for f in (lambda: score(jobs), lambda: simulate(gpt3, h100s, interleaved))
    )
    assert single / (bulk / int(space.allowed.sum())) > 100


def _timed(call):
    begin = perf_counter()
    call()
    return perf_counter() - begin
