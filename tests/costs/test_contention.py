"""The fluid model in closed form: against the event engine, by hand, and its limits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.costs.algebra import compile_expressions, symbol
from sim.costs.contention import STREAMS, Contention, contention_values, makespan, nearest, rows, two_streams
from sim.costs.layers.ops import hidden_beside
from sim.costs.profile import load_profile
from sim.engine.contended import CONTENDERS
from sim.engine.events import run_events_of
from sim.engine.program import Sharing
from sim.specs import InputError
from tests.engine.test_events import toy

matrices = st.lists(st.floats(0.0, 3.0), min_size=12, max_size=12).map(rows)
work = st.lists(st.integers(0, 1_000_000), min_size=4, max_size=4)


def held(n_in, n_out, slow=0.5):
    return Contention(
        n_in=n_in, n_out=n_out, matrix=rows([slow] * 12), form="fluid-12", mape=1.0, n=1, session="s", source="a test"
    )


def test_streams_are_those_of_the_engine():
    assert [s.name.lower() for s in CONTENDERS] == list(STREAMS)


@given(work, matrices)
def test_it_equals_the_engine(alone, matrix):
    """The engine rounds every end up to a whole tick: four ends, each with at most one of slowdown 1 + 3 x 3."""
    program = toy(*((0, stream, ticks, ()) for stream, ticks in zip(CONTENDERS, alone, strict=True)))
    slowdown = {(a, b): matrix[a][b] for a in CONTENDERS for b in CONTENDERS if a != b}
    run = run_events_of(program, Sharing(slowdown))
    assert run.makespan == pytest.approx(float(makespan(np.array(alone, dtype=float), matrix)), abs=40)


@given(st.floats(0.0, 1e3), st.floats(0.0, 1e3), st.floats(0.0, 9.0), st.floats(0.0, 9.0))
def test_two_streams_in_one_expression(a, b, by_b, by_a):
    found = compile_expressions({"t": two_streams(*(symbol(n) for n in ("one", "other", "by_other", "by_one")))})
    t = found({"one": a, "other": b, "by_other": by_b, "by_one": by_a})["t"]
    matrix = rows([by_b, 0, 0, by_a, 0, 0, 0, 0, 0, 0, 0, 0])
    assert t == pytest.approx(float(makespan(np.array([a, b, 0, 0]), matrix)), rel=1e-9, abs=1e-9)


@given(st.floats(0.0, 1e3), st.floats(0.0, 1e3), st.floats(0.0, 1.0))
def test_closed_forms_of_passes_are_its_symmetric_case(time, cover, slow):
    names = [symbol(n) for n in ("time", "cover", "overlap_slowdown")]
    both = compile_expressions({"hidden": hidden_beside(*names[:2]), "fluid": two_streams(*names, names[2])})
    t = both({"time": time, "cover": cover, "overlap_slowdown": slow})
    assert t["fluid"] - cover == pytest.approx(t["hidden"], rel=1e-9, abs=1e-9)


@given(work, matrices)
def test_between_the_longest_alone_and_all_slowed(alone, matrix):
    t = float(makespan(np.array(alone, dtype=float), matrix))
    worst = max(a * (1 + sum(row)) for a, row in zip(alone, matrix, strict=True))
    assert max(alone) <= t * (1 + 1e-12)
    assert t <= worst * (1 + 1e-12)


def test_many_rows_at_once():
    alone = np.array([[[50, 20, 0, 0], [20, 20, 20, 20]], [[0, 0, 0, 0], [0, 0, 7, 0]]], dtype=float)
    assert makespan(alone, rows([0.5] * 12)).tolist() == [[60, 50], [0, 7]]


def test_the_nearest_shape_is_on_the_same_links():
    shapes = [held(2, 1), held(8, 1), held(1, 2), held(8, 4)]
    assert nearest(shapes, 8, 1) is shapes[1]
    assert nearest(shapes, 1, 1) is shapes[0]
    assert nearest(shapes, 8, 64) is shapes[3]
    assert nearest(shapes, 2, 2) is shapes[2]
    assert nearest(shapes[:2], 8, 2) is None


def test_a_device_alone_says_nothing_of_collectives():
    alone = [held(1, 1)]
    assert nearest(alone, 1, 1) is alone[0]
    assert nearest(alone, 8, 1) is None


@pytest.mark.parametrize(
    ("matrix", "field"),
    [(rows([0.5] * 12)[:3], "matrix"), (rows([-0.5] * 12), r"matrix\.0\.1"), ([[0.5] * 4] * 4, r"matrix\.0\.0")],
)
def test_wrong_matrices_are_refused(matrix, field):
    with pytest.raises(InputError, match=field):
        Contention(n_in=1, n_out=1, matrix=matrix, form="fluid-12", mape=1.0, n=1, session="s", source="a test")


def test_no_number_but_numbers():
    with pytest.raises(InputError, match=r"matrix\.0\.1"):
        held(1, 1, float("nan"))


def test_symbols_of_every_shape_are_those_of_the_nearest_matrix():
    profile = load_profile("l4")
    n_in, n_out = np.array([[2, 4], [8, 2]]), np.array([[1, 1], [1, 1]])
    found = contention_values(profile.contention, n_in, n_out)
    for (i, j), n in np.ndenumerate(n_in):
        near = nearest(profile.contention, int(n), 1)
        for a, b in ((0, 2), (2, 1), (3, 2)):
            assert found[f"{STREAMS[a]}_by_{STREAMS[b]}"][i, j] == near.matrix[a][b]
    assert (found["contention_known"] == 1).all()
    none = contention_values(load_profile("h100-sxm-80gb").contention, np.array([8]), np.array([1]))
    assert set(none.values()) == {0.0}
