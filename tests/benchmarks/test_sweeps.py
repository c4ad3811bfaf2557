"""Sweeps: what a task costs on each runner, configurations a second, and simulated steps a second."""

import subprocess
import sys

import pytest

from sim.sweep.evaluate import Evaluate, Span
from sim.sweep.grid import Grid
from sim.sweep.run import sweep
from sim.sweep.runners import RUNNERS
from sim.sweep.store import Store
from tests.benchmarks.table import PEAK, Speed
from tests.contracts.tasks import squared
from tests.oracle import ROOT

TEN_MILLION = ROOT / "notebooks" / "jobs" / "sweeps" / "ten-million.yaml"
DRIVER = f"""
from sim.cli import main
try:
    main()
finally:
    print({PEAK})
"""
TASKS = 2_000
MOST_S = {"here": 1e-4, "pool": 2e-3, "ray": 2e-2}
"""Seconds that a task may cost: far below the 50 ms of a block."""


@pytest.mark.parametrize("name", RUNNERS)
def test_cost_of_a_task(benchmark, speeds, name):
    """Tasks that do nothing, workers warm."""
    with RUNNERS[name](None, None) as runner:

        def run():
            found = runner.run(range(TASKS), squared)
            next(found)
            return sum(1 for _ in found)

        assert benchmark.pedantic(run, rounds=3, warmup_rounds=1) == TASKS - 1
    per_task = benchmark.stats["min"] / TASKS
    benchmark.extra_info["us_per_task"] = per_task * 1e6
    speeds[f"sweep: a task that does nothing, {name}"] = Speed(per_task * 1e3, "ms", f"< {MOST_S[name] * 1e3:g} ms")
    assert per_task < MOST_S[name]


def test_analytic_configurations_per_second(benchmark, speeds):
    """Blocks of ten million, in one process."""
    evaluate = Evaluate(Grid.load(TEN_MILLION))
    spans = [Span(n, n * 16_384, (n + 1) * 16_384) for n in (0, 100, 300, 600)]
    for span in spans:
        evaluate(span)
    benchmark.pedantic(lambda: [evaluate(span) for span in spans], rounds=3)
    rate = len(spans) * 16_384 / benchmark.stats["min"]
    speeds["sweep: analytic configurations, one core"] = Speed(rate, "/s", "> 50 k/s")
    assert rate > 50_000


@pytest.mark.parametrize("name", ["pool", "ray"])
def test_ten_million_analytic_configurations(benchmark, speeds, name, tmp_path):
    """The whole sweep, with start of workers and store, by the command, whose memory is the driver's."""
    asked = ["sweep", str(TEN_MILLION), "--store", str(tmp_path / "a.db"), "--runner", name]

    def run():
        done = subprocess.run([sys.executable, "-c", DRIVER, *asked], capture_output=True, text=True, check=True)
        return int(done.stdout.splitlines()[-1])

    peak_bytes = benchmark.pedantic(run, rounds=1)
    speeds[f"sweep: 10.4 M analytic configurations, {name}"] = Speed(benchmark.stats["min"], "s", "< 300 s")
    speeds[f"sweep: memory of its driver, {name}"] = Speed(peak_bytes / 1e6, "MB", "< 1074 MB")
    with Store(tmp_path / "a.db") as store:
        assert store.counts.left == store.counts.failed == 0 and store.counts.total == 10_368_000
    assert benchmark.stats["min"] < 300
    assert peak_bytes < 2**30


def test_simulated_steps_per_second(benchmark, speeds, tmp_path):
    """The event engine, whole sweep with store and start of workers."""
    axes = {"plan.pp": [1, 2, 4, 8], "plan.micro_batch": [1, 2], "plan.zero": [0, 1]}
    axes |= {"cluster.links.inter_bytes_per_s_per_node": {"min": 1e10, "max": 1e12, "count": 630, "scale": "log"}}
    cluster = {"device": "h100-sxm-80gb", "nodes": 8}
    grid = Grid(model="llama3-8b", cluster=cluster, plan={"global_batch": 128, "tp": 4}, axes=axes, engine="events")
    found = benchmark.pedantic(lambda: sweep(grid, tmp_path / "runs.db"), rounds=1)
    speeds["sweep: 10,080 steps of the event engine"] = Speed(benchmark.stats["min"], "s")
    assert found.counts.ok == grid.size == 10_080
