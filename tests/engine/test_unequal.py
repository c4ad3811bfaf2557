"""Many pipelines whose chunks differ, run at once: each as the engine runs it alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.assembly import with_update
from sim.engine.memory import Footprint, memory_timelines
from sim.engine.path import run_path
from sim.engine.timeline import Durations
from sim.engine.unequal import SETTLED, WIDTH, Pipeline
from sim.schedules import Kind, Shape, build

CHUNKS = {"1f1b": 1, "gpipe": 1, "zb-h1": 1, "zb-h2": 1, "interleaved": 2, "looped-bfs": 3}
OF_KIND = {"forward": [Kind.F], "backward": [Kind.B, Kind.I], "weight": [Kind.W]}
names, seeds = st.sampled_from(sorted(CHUNKS)), st.integers(0, 10_000)


def drawn(shape, seed, rows):
    """Return costs in whole ticks and bytes; messages as long as a tenth of a pass, some less than nothing."""
    random, stages = np.random.default_rng(seed), shape.ranks * shape.chunks
    whole = {name: random.integers(100, 1_000, (stages, rows)) for name in (*OF_KIND, "saved", "temporary")}
    whole |= {name: random.integers(-20, 100, (stages, rows)) for name in ("message", "back")}
    whole |= {name: random.integers(0, 500, (shape.ranks, rows)) for name in ("reduce", "optimizer", "held")}
    whole["room"] = random.integers(0, 5_000, (shape.ranks, rows))
    return {name: value.astype(float) for name, value in whole.items()}


def alone(name, shape, barrier, costs, row):
    """Return the timeline and the memory of one of them."""
    table = {kind: costs[n][:, row].astype(int) for n, kinds in OF_KIND.items() for kind in kinds}
    rest = np.zeros(shape.ranks * (shape.chunks - 1), dtype=int)
    for kind, n in ((Kind.REDUCE_GRAD, "reduce"), (Kind.OPTIMIZER, "optimizer")):
        table[kind] = np.concatenate([costs[n][:, row].astype(int), rest])
    durations = Durations(table, *(costs[n][:, row].astype(int) for n in ("message", "back")))
    timeline = run_path(with_update(build(name, shape), barrier), durations)
    held, room, saved, temporary = (tuple(costs[n][:, row].tolist()) for n in ("held", "room", "saved", "temporary"))
    fixed = tuple({"parameters": value} for value in held)
    return timeline, memory_timelines(timeline, Footprint(fixed, saved, temporary, update=room))


@given(names, st.integers(2, 6), st.integers(1, 4), st.booleans(), seeds)
def test_equal_to_the_engine(name, ranks, rounds, barrier, seed):
    shape, rows = Shape(ranks, ranks * rounds, CHUNKS[name]), 3
    costs, pipeline = drawn(shape, seed, rows), Pipeline(name, shape, barrier)
    times, peaks = pipeline.step_s(costs), pipeline.peak_bytes(costs)
    for row in range(rows):
        timeline, memory = alone(name, shape, barrier, costs, row)
        assert times[row] == timeline.period
        assert peaks[row] == max(m.peak_bytes for m in memory)


@given(names, st.integers(0, 7), seeds)
def test_further_microbatches_take_a_steady_time(name, more, seed):
    ranks = 4
    shape = Shape(ranks, 2 * SETTLED * ranks + more * ranks, CHUNKS[name])
    costs, pipeline = drawn(shape, seed, 2), Pipeline(name, shape, True)
    assert pipeline.few < shape.microbatches
    times, peaks = pipeline.step_s(costs), pipeline.peak_bytes(costs)
    for row in range(2):
        timeline, memory = alone(name, shape, True, costs, row)
        assert times[row] == pytest.approx(timeline.period, rel=0.03)
        assert peaks[row] == pytest.approx(max(m.peak_bytes for m in memory))


def test_rows_do_not_know_of_each_other():
    """Also beyond one vector of them."""
    shape = Shape(3, 6)
    costs, pipeline = drawn(shape, 0, WIDTH + 5), Pipeline("1f1b", shape, True)
    for row in (0, WIDTH - 1, WIDTH, WIDTH + 4):
        one = {name: value[:, row : row + 1] for name, value in costs.items()}
        assert pipeline.step_s(costs)[row] == pipeline.step_s(one)[0]


def test_a_searched_order_is_as_that_made_by_hand_but_for_what_it_keeps():
    shape = Shape(4, 12)
    costs = drawn(shape, 0, 2)
    found, by_hand = (Pipeline(name, shape, True) for name in ("zb-2p", "zb-h2"))
    assert (found.step_s(costs) == by_hand.step_s(costs)).all()
    only = {name: value * (name == "saved") for name, value in costs.items()}
    assert found.peak_bytes(only) == pytest.approx(by_hand.peak_bytes(only) * 8 / 7)
