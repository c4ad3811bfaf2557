"""Speed, run by `make bench`: pooled jobs of more than a million configurations, schedules, one plan again."""

from itertools import product
from time import perf_counter

import pytest

from sim.costs.layers.structure import Structure
from sim.costs.profile import load_profile
from sim.costs.stage import stage_model
from sim.engine.events import run_events
from sim.engine.path import run_path
from sim.engine.step import simulate
from sim.engine.timeline import Durations
from sim.schedules import SCHEDULES, Kind, Shape, Work, build
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
from tests.benchmarks.conftest import PEER_SPEEDS
from tests.oracle import reference


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
    speeds["tuner, configurations/s"] = configurations / benchmark.stats["min"]
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
    speeds["tuner, stage options/s"] = options / benchmark.stats["min"]
    assert speeds["tuner, stage options/s"] > 5_000_000


@pytest.mark.parametrize(("name", "most_s"), [("22b on 32 A100", 30), ("gpt3-175b on 1024 A100", 180)])
def test_whole_searches(benchmark, name, most_s):
    """Every plan that any target could run, ranked by the event engine: the spec's times, on an idle machine."""
    small = Model(name="22b", layers=48, hidden=6144, heads=64, vocab=50_304, seq=2048)
    model, nodes, batch = (small, 4, 512) if name.startswith("22b") else (models["gpt3-175b"], 128, 1536)
    cluster = Cluster.of("a100-sxm-40gb" if nodes == 4 else "a100-sxm-80gb", nodes=nodes)
    found = benchmark.pedantic(lambda: tune(model, cluster, batch, target="any"), rounds=1)
    benchmark.extra_info["gap"] = found.gap
    assert found.gap <= 1e-3
    assert found.seconds["total"] < most_s


def test_validated_rows_per_second(benchmark, speeds):
    """Tables of measured runs, read rows to summaries, engine included where there is no closed form."""
    rows = [row for name in ("llm_foundry_mpt", "vtrain_multi") for row in read_runs(reference(f"runs/{name}.csv"))]
    summary(validate(rows, elsewhere))  # builds every structure
    benchmark.pedantic(lambda: summary(validate(rows, elsewhere)), rounds=3)
    speeds["validate, rows/s"] = len(rows) / benchmark.stats["min"]
    assert speeds["validate, rows/s"] > max(PEER_SPEEDS["calculon"], PEER_SPEEDS["SimuMax"])


def test_build_and_compile(benchmark):
    def run():
        stage_model.cache_clear()
        stage_model(Structure.of(models["gpt3-175b"]))

    benchmark.pedantic(run, rounds=3)


def test_one_plan_again(benchmark, gpt3, h100s, interleaved):
    benchmark(simulate, gpt3, h100s, interleaved)


@pytest.mark.parametrize("engine", [run_path, run_events])
def test_131072_operations(benchmark, engine):
    order = build("interleaved", Shape(64, 512, 2))
    durations = Durations.uniform(order.stages, {Kind.F: 3, Kind.B: 5}, 1)
    engine(order, durations)
    benchmark.pedantic(engine, (order, durations), rounds=3)


def test_search_of_98304_operations(benchmark):
    work = Work.uniform(64, 185, 180, 93, 6)
    benchmark.pedantic(lambda: SCHEDULES["zb-2p"].build(Shape(64, 512), work), rounds=3)


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
