"""Speed and memory at scale, run by `make bench`: a step on 16,384 devices, long pipelines, many candidates."""

import subprocess
import sys
from time import perf_counter

import numpy as np
import pytest

from sim.engine.events import run_events
from sim.engine.graph import graph_of
from sim.engine.path import run_path
from sim.engine.timeline import Durations
from sim.schedules import Kind, Shape, _build, build
from tests.benchmarks.table import PEAK, Speed

TIMES = {Kind.F: 3, Kind.B: 5}

LLAMA = f"""
import time
begin = time.perf_counter()
import sim
from sim.validation.translate import uneven
model = sim.models["llama3-405b"]
spread = uneven(model.layers, 16)
again = dict(recompute="full", recompute_layers=2)
plan = sim.Plan(tp=8, pp=16, dp=128, stage_layers=spread, global_batch=2048, zero=1, **again)
step = sim.simulate(model, sim.Cluster.of("h100-sxm-80gb", nodes=2048), plan, "events")
assert step.placed.gpus == 16384 and step.step_time_s > 0
spent = time.perf_counter() - begin
print(spent, {PEAK})
"""


def test_16384_devices_in_a_fresh_process(benchmark, speeds):
    """Imports, compiled costs and the event engine together: at most 5 s and 1 GiB."""

    def run():
        done = subprocess.run([sys.executable, "-c", LLAMA], capture_output=True, text=True, check=True)
        return map(float, done.stdout.split())

    seconds, peak_bytes = benchmark.pedantic(run, rounds=1)
    speeds["engine: a step on 16,384 devices, fresh process"] = Speed(seconds, "s", "< 5 s")
    speeds["engine: memory of that"] = Speed(peak_bytes / 1e6, "MB", "< 1074 MB")
    assert seconds <= 5
    assert peak_bytes <= 2**30


def test_compiled_path_of_131072_operations(benchmark, speeds):
    """At most 2 ms once the graph is built; the best of many, as neighbours on the machine slow it."""
    order = build("interleaved", Shape(64, 512, 2))
    durations = Durations.uniform(order.stages, TIMES, 1)
    run_path(order, durations)
    benchmark.pedantic(run_path, (order, durations), rounds=300)
    speeds["engine: 131,072 operations, compiled path"] = Speed(benchmark.stats["min"] * 1e3, "ms", "< 2 ms")
    assert benchmark.stats["min"] <= 2e-3


def test_events_of_131072_operations(benchmark, speeds):
    order = build("interleaved", Shape(64, 512, 2))
    benchmark.pedantic(run_events, (order, Durations.uniform(order.stages, TIMES, 1)), rounds=3)
    speeds["engine: 131,072 operations, events"] = Speed(benchmark.stats["min"], "s", "< 3 s")
    assert benchmark.stats["min"] <= 3


def test_1000_candidates_from_cache(benchmark):
    """p = 8, m = 64: the order is built once, each candidate has its own durations; at most 0.5 s."""
    order, random = build("1f1b", Shape(8, 64)), np.random.default_rng(0)
    candidates = [
        Durations({kind: random.integers(50, 150, 8) for kind in TIMES}, random.integers(0, 9, 8)) for _ in range(1000)
    ]
    run_path(order, candidates[0])
    spans = benchmark.pedantic(lambda: [run_path(order, c).makespan for c in candidates], rounds=3)
    assert len(set(spans)) > 100
    assert benchmark.stats["min"] <= 0.5


@pytest.mark.parametrize("engine", [run_path, run_events])
def test_530b_pipeline_with_its_construction(benchmark, engine):
    """35 ranks, 3 chunks, 280 microbatches, nothing cached: at most 1 s."""
    run_path(build("1f1b", Shape(2, 2)), Durations.uniform(2, TIMES))  # compiles

    def run():
        _build.cache_clear()
        graph_of.cache_clear()
        begin = perf_counter()
        order = build("interleaved", Shape(35, 280, 3))
        engine(order, Durations.uniform(order.stages, TIMES, 1))
        return perf_counter() - begin

    assert benchmark.pedantic(run, rounds=1) <= 1
