"""Bubbles in closed form, to one tick, on uniform stages of random durations (an independent longest path runs them).

Sources: the table of each kind's docstring. Durations are whole ticks; no case has messages.
"""

from fractions import Fraction
from random import Random

import numpy as np
import pytest

from sim.engine.graph import graph_of
from sim.engine.path import run_program
from sim.engine.timeline import Durations
from sim.schedules import CLOSED, Kind, Shape, Times, build
from tests.contracts.longest_path import run

CASES = 130


def cases(seed, least=1):
    """Yield a source of chance, a number of ranks, and durations with W no longer than F and I."""
    random = Random(seed)
    for _ in range(CASES):
        f, i = random.randint(10, 1_000), random.randint(10, 1_000)
        w = random.randint(1, min(f, i))
        times = {Kind.F: f, Kind.I: i, Kind.W: w, Kind.B: i + w}
        yield random, random.randint(least, 7), times


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_plain(name):
    """Makespan bubble (p - 1)(F + B) (arXiv 1811.06965; 2104.04473, section 2.2.1)."""
    for random, p, t in cases(name):
        m, both = random.randint(1, 20), t[Kind.F] + t[Kind.B]
        assert run(build(name, Shape(p, m)), t).makespan == (m + p - 1) * both


def test_interleaved():
    """(p - 1)(F + B) of one chunk: 1 / v of the bubble (arXiv 2104.04473, section 2.2.2)."""
    for random, p, t in cases(0, 2):
        m, v = p * random.randint(1, 4), random.randint(2, 4)
        assert run(build("interleaved", Shape(p, m, v)), t).makespan == (m * v + p - 1) * (t[Kind.F] + t[Kind.B])


def test_looped_bfs():
    """The same; with fewer microbatches than ranks every further chunk waits for a round trip."""
    for random, p, t in cases(1):
        m, v = random.randint(1, 20), random.randint(1, 4)
        slots = m + (v - 1) * max(m, p) + p - 1
        assert run(build("looped-bfs", Shape(p, m, v)), t).makespan == slots * (t[Kind.F] + t[Kind.B])


@pytest.mark.parametrize(
    ("name", "most", "mean"), [("gpipe", 1e-12, 1e-12), ("looped-bfs", 1e-12, 1e-12), ("interleaved", 0.05, 0.003)]
)
def test_ends_that_do_more(name, most, mean):
    """Embedding and head up to as long as a pass, forward and backward apart: both count as a pipeline fills.

    All microbatches in turn: messages of any length too, which follow each other.
    """
    errors = []
    for random, p, t in cases(name, 2):
        in_turn, plain = name != "interleaved", name == "gpipe"
        group = p * in_turn or random.randint(p, 2 * p)
        m = random.randint(1, 20) if in_turn else group * random.randint(1, 4)
        v = 1 if plain else random.randint(2, 4)
        send = in_turn * random.choice((0, random.randint(0, 500), random.randint(0, 2000)))
        first, last = ({kind: random.randint(0, t[kind]) for kind in (Kind.F, Kind.B)} for _ in range(2))
        table = {kind: np.full(p * v, t[kind]) for kind in Kind if kind in t}
        for kind in first:
            table[kind][[0, -1]] += first[kind], last[kind]
        order, sent = build(name, Shape(p, m, v, group)), np.full(p * v, send)
        ran = run_program(Durations(table, sent, sending=sent).program(graph_of(order)))
        ends = first[Kind.F], first[Kind.B], last[Kind.F], last[Kind.B]
        closed = CLOSED[name].makespan(Times(t[Kind.F], t[Kind.B], *ends, send, p, v, m, max, min, group=group))
        errors.append(abs(closed / ran.makespan - 1))
    assert max(errors) <= most
    assert np.mean(errors) <= mean


@pytest.mark.parametrize(("name", "weights"), [("zb-h1", 1), ("zb-h2", 2)])
def test_zero_bubble(name, weights):
    """Rank span (p - 1)(F + I - W) and (p - 1)(F + I - 2 W) (arXiv 2401.10241, Table 2); makespan: the closed form."""
    for random, p, t in cases(name):
        m = random.randint(2 * p, 24)
        f, i, w = t[Kind.F], t[Kind.I], t[Kind.W]
        ran = run(build(name, Shape(p, m)), t)
        assert max(ran.spans()) == m * (f + i + w) + (p - 1) * max(0, f + i - weights * w)
        assert ran.makespan == CLOSED[name].makespan(Times(f, i + w, 0, 0, 0, 0, 0, p, 1, m, max, min, w))


def test_interleaved_zero_bubble():
    """Makespan bubble (p - 1) F of one chunk at equal times."""
    for random, p, t in cases(2):
        m, v, f = p * random.randint(1, 4), random.randint(2, 4), t[Kind.F]
        ran = run(build("interleaved-zb", Shape(p, m, v)), dict.fromkeys((Kind.F, Kind.I, Kind.W), f))
        assert ran.makespan == 3 * f * m * v + (p - 1) * f


def test_zbv():
    """No rank idles within its span at equal times, once 2 p microbatches fill the V (arXiv 2405.15362)."""
    for random, p, t in cases(3):
        m, f = random.randint(2 * p, 24), t[Kind.F]
        ran = run(build("zbv", Shape(p, m, 2)), dict.fromkeys((Kind.F, Kind.I, Kind.W), f))
        assert set(ran.spans()) == {6 * f * m}
        assert ran.makespan == 6 * f * m + (p - 1) * f


def test_chimera():
    """(D - 2) / (2 N + D - 2) of the makespan where B = F and D divides N (arXiv 2107.06925, Table 2)."""
    for random, half, t in cases(4):
        p, f = 2 * half, t[Kind.F]
        m = p * random.choice([1, 1, 2, 3])
        makespan = run(build("chimera", Shape(p, m, 2)), {Kind.F: f, Kind.B: f}).makespan
        assert Fraction(makespan - 2 * m * f, makespan) == Fraction(p - 2, 2 * m + p - 2)


@pytest.mark.parametrize(("name", "share"), [("dualpipe", 2), ("dualpipev", 1)])
def test_dualpipe(name, share):
    """At most (PP / 2 - 1)(F&B + B - 3 W) (PP - 1 for the V), by DeepSeek's tables; reached where F = I.

    They take F <= I (arXiv 2412.19437, Table 2; DualPipe README): a longer F adds F - I as often.
    """
    for random, half, t in cases(name):
        p = half * share
        m = 2 * p + 2 * random.randint(0, 5)
        f, i, w, b = (random.choice([t[Kind.F], t[Kind.I]]), *(t[k] for k in (Kind.I, Kind.W, Kind.B)))
        idle = max(run(build(name, Shape(p, m, 2)), t | {Kind.F: f}).spans()) - 2 * m // share * (f + b)
        bound = (half - 1) * (f + b + b - 3 * w + max(0, f - i))
        assert 0 <= idle <= bound
        assert f < i or idle == bound
