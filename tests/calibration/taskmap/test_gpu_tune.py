"""Tuning of block schedules: kernels timed by a stopwatch, once each; only those that the costs rank first."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch

from calibration.host import HostStopwatch
from calibration.kernels.family import Machine
from calibration.taskmap import gpu_tune
from calibration.taskmap.contraction import BIAS, FORWARD
from calibration.taskmap.gpu import of_catalog
from calibration.taskmap.gpu_cost import START, BlockCosts
from calibration.taskmap.gpu_space import block_schedules
from calibration.taskmap.gpu_tune import BlockBench, learned, ranked, tune
from calibration.taskmap.program import fused_after

H100 = of_catalog("h100-sxm-80gb")
EVERY = block_schedules(H100, 4)
COSTS = BlockCosts(FORWARD, H100, 4, START)
SIZES = {"m": 20, "n": 30, "k": 40}
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


def bench():
    return BlockBench(FORWARD, SIZES, "float32", Machine("cpu", 1e9), HostStopwatch())


@needs_triton
def test_a_bench_times_once():
    made = bench()
    first = made(EVERY[0])
    assert first > 0
    assert made(EVERY[0]) == first
    assert list(made.held) == [EVERY[0]]
    a, b, c = made.sets[0]
    assert torch.allclose(c.view(20, 30), a.view(20, 40) @ b.view(30, 40).T, atol=1e-4)


@needs_triton
def test_an_epilogue_is_given_its_vector():
    made, bias = bench(), torch.randn(30)
    a, b, c = made.sets[0]
    made.kernel(fused_after(EVERY[0].program(FORWARD), BIAS), bias=bias)(a, b, c)
    assert torch.allclose(c.view(20, 30), a.view(20, 40) @ b.view(30, 40).T + bias, atol=1e-4)


@needs_triton
def test_what_a_device_has_no_room_for_takes_forever(monkeypatch):
    from triton.runtime.errors import OutOfResources  # noqa: PLC0415 - where Triton is

    def refuse(*given):
        raise OutOfResources(300_000, 232_448, "shared memory")

    monkeypatch.setattr(gpu_tune, "timed", refuse)
    assert bench()(EVERY[0]) == np.inf


class Fake:
    """A bench that knows the times, and counts who asks; some schedules do not run."""

    def __init__(self, costs, sizes, lacks=()):
        self.sizes, self.lacks, self.asked = sizes, lacks, []
        self.times = dict(zip(EVERY, costs.seconds(EVERY, sizes), strict=True))

    def __call__(self, schedule):
        self.asked.append(schedule)
        return np.inf if schedule in self.lacks else self.times[schedule]


LARGE = {"m": 3000, "n": 4096, "k": 1024}
TRUE = BlockCosts(FORWARD, H100, 4, START | {"efficiency": 0.4, "launch_s": 1e-5})


def test_only_the_first_are_timed():
    made = Fake(TRUE, LARGE)
    chosen = tune(TRUE, made, EVERY, top=7)
    assert (chosen.measured, made.asked) == (7, ranked(TRUE, LARGE, EVERY)[:7])
    assert chosen.seconds == min(made.times.values())


def test_costs_are_learned_from_probes_that_run():
    benches = [Fake(TRUE, LARGE, lacks=EVERY[::2]), Fake(TRUE, LARGE | {"k": 8192})]
    found = learned(COSTS, benches, EVERY)
    assert [len(made.asked) for made in benches] == [gpu_tune.PROBES] * 2
    assert found.seconds(EVERY, LARGE | {"m": 9000}) == pytest.approx(TRUE.seconds(EVERY, LARGE | {"m": 9000}), rel=0.1)
