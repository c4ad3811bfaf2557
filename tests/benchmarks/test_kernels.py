"""Kernels of task mappings: how soon one is found, and how fast it is beside torch's."""

import torch

from calibration.taskmap.contraction import FORWARD
from calibration.taskmap.processor import processor
from calibration.taskmap.space import schedules
from calibration.taskmap.tune import Bench, fastest, learned, shortest, tune
from tests.benchmarks.table import Speed

SIZES = {"m": 512, "n": 512, "k": 512}


def test_tuning_over_measuring_all(benchmark, speeds):
    """Kernels compiled before, costs learned before: what each further size takes."""
    torch.set_num_threads(1)
    costs = learned(FORWARD, processor())
    every = schedules(costs.machine)
    fastest(every, Bench(FORWARD, SIZES))  # compiles all of them
    found = benchmark.pedantic(lambda: tune(costs, Bench(FORWARD, SIZES)), rounds=3)
    bench = Bench(FORWARD, SIZES)
    whole = fastest(every, bench)
    a, b = (torch.from_numpy(x).view(512, 512) for x in (bench.a, bench.b))
    torchs = shortest(lambda: a @ b.T)
    speeds["kernels: all schedules of a size over tuning it"] = Speed(
        whole.spent_s / benchmark.stats["min"], "times", "> 10 times"
    )
    speeds["kernels: a tuned product of 512 x 512 x 512"] = Speed(2 * 512**3 / found.seconds / 1e9, "GFLOP/s")
    speeds["kernels: the same over torch's"] = Speed(torchs / found.seconds, "times")
