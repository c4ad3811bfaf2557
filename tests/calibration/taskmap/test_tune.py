"""Costs of schedules and the search that measures what they rank first."""

import numpy as np
import pytest

from calibration.taskmap.contraction import FORWARD
from calibration.taskmap.cost import FITTED, START, Costs, fit
from calibration.taskmap.native import compiler
from calibration.taskmap.processor import Processor
from calibration.taskmap.space import schedules
from calibration.taskmap.tune import SIGMAS, Bench, fastest, probes, tune

WIDE = Processor(cores=2, lanes=16, registers=32, cache_bytes=2**20)
EVERY = schedules(WIDE)
SIZES = {"m": 500, "n": 700, "k": 300}
TRUE = dict(zip(FITTED, (4e-10, 2e-9, 3e-10, 8e-10, 5e-10), strict=True))


def test_seconds_of_one_block_by_hand():
    (schedule,) = [s for s in EVERY if (s.rows, s.vectors, s.high, s.wide, s.depth) == (6, 2, 2, 1, 64)]
    found = Costs(FORWARD, WIDE, TRUE).seconds([schedule], {"m": 12, "n": 32, "k": 64})[0]
    computing = 2 * (64 * max(12 / 2, 8 / 2, 4) * 4e-10 + 12 * 2e-9)
    assert found == pytest.approx(computing + 64 * (12 * 3e-10 + 32 * 8e-10) + 12 * 32 * 5e-10)


def test_larger_products_cost_no_less_and_cores_share_blocks():
    costs = Costs(FORWARD, WIDE, START)
    small, twice = (costs.seconds(EVERY, SIZES | {"m": m}) for m in (500, 1000))
    assert (twice >= small).all()
    assert (costs.seconds(EVERY, SIZES, threads=2) < small).any()
    assert (costs.seconds(EVERY, SIZES, threads=2) <= small).all()


def test_a_fit_finds_what_made_the_times():
    true = Costs(FORWARD, WIDE, TRUE)
    small = {"m": 64, "n": 64, "k": 1024}
    measured = [(s, sizes, true.seconds([s], sizes)[0]) for sizes in (SIZES, small) for s in probes(WIDE, 20)]
    found = fit(FORWARD, WIDE, measured)
    assert found.seconds(EVERY, SIZES) == pytest.approx(true.seconds(EVERY, SIZES), rel=0.05)
    assert found.sigma_log < 0.02
    schedule, sizes, seconds = measured[3]
    disturbed = fit(FORWARD, WIDE, [*measured[:3], (schedule, sizes, 3 * seconds), *measured[4:]])
    assert disturbed.seconds(EVERY, SIZES) == pytest.approx(true.seconds(EVERY, SIZES), rel=0.05)
    assert disturbed.sigma_log > found.sigma_log


class Fake:
    """A bench that knows the times, and counts who asks."""

    def __init__(self, costs, sizes=SIZES):
        self.sizes, self.threads, self.asked = sizes, 1, []
        self.times = dict(zip(EVERY, costs.seconds(EVERY, sizes), strict=True))

    def __call__(self, schedule):
        self.asked.append(schedule)
        return self.times[schedule]


@pytest.mark.parametrize(("sigma", "top"), [(0.0, 10), (0.02, 10), (0.5, 7)])
def test_what_costs_cannot_tell_apart_is_measured(sigma, top):
    costs = Costs(FORWARD, WIDE, TRUE, sigma)
    bench = Fake(costs)
    chosen = tune(costs, bench, top)
    best = min(bench.times.values())
    near = [s for s, seconds in bench.times.items() if seconds <= best * np.exp(SIGMAS * sigma)]
    assert chosen.measured == len(bench.asked) == min(top, len(near))
    assert set(bench.asked) <= set(near)
    assert chosen.seconds == best == bench.times[chosen.schedule]
    assert fastest(EVERY, bench).schedule == chosen.schedule


@pytest.mark.skipif(compiler() is None, reason="no C compiler on the PATH")
def test_a_bench_measures_once():
    bench = Bench(FORWARD, {"m": 20, "n": 30, "k": 40})
    first = bench(EVERY[0])
    assert first > 0
    assert bench(EVERY[0]) == first
    assert list(bench.held) == [EVERY[0]]
    product = bench.a.reshape(20, 40) @ bench.b.reshape(30, 40).T
    assert np.allclose(bench.c.reshape(20, 30), product, rtol=1e-4, atol=1e-4)
