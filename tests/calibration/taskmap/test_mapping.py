"""The algebra of task mappings: the laws of Hidet, section 5.1, against its own definition of composition."""

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.taskmap.mapping import TaskMapping, repeat, spatial


@st.composite
def atoms(draw, dimensions=2, most=3):
    sizes = draw(st.tuples(*[st.integers(1, most)] * dimensions))
    ranking = tuple(draw(st.permutations(range(dimensions))))
    return draw(st.sampled_from((repeat, spatial)))(*sizes, ranking=ranking)


@st.composite
def mappings(draw, dimensions=2):
    found = draw(atoms(dimensions))
    for _ in range(draw(st.integers(0, 2))):
        found = found * draw(atoms(dimensions, 2))
    return found


def composed(f, g, worker):
    """The definition: (f*g)(w) = [t * d_g + u for t in f(w div W_g) for u in g(w mod W_g)]."""
    outer, inner = divmod(worker, g.workers)
    return [tuple(t * d + u for t, d, u in zip(a, g.grid, b, strict=True)) for a in f(outer) for b in g(inner)]


@given(atoms(), mappings())
def test_composition_is_the_papers(f, g):
    both = f * g
    assert both.workers == f.workers * g.workers
    assert both.grid == tuple(a * b for a, b in zip(f.grid, g.grid, strict=True))
    assert all(both(w) == composed(f, g, w) for w in range(both.workers))


@given(atoms(most=2), atoms(), atoms(most=2))
def test_composition_is_associative(f, g, h):
    left, right = (f * g) * h, f * (g * h)
    assert all(left(w) == right(w) == composed(f * g, h, w) == composed(f, g * h, w) for w in range(left.workers))


@given(mappings())
def test_repeating_one_cell_changes_nothing(f):
    one = repeat(1, 1)
    assert all((one * f)(w) == f(w) == (f * one)(w) for w in range(f.workers))


@given(mappings(3))
def test_every_task_is_done_once(f):
    done = Counter(task for w in range(f.workers) for task in f(w))
    assert set(done.values()) == {1}
    assert set(done) == set(product(*map(range, f.grid)))
    assert f.table().tolist() == [[list(task) for task in f(w)] for w in range(f.workers)]


def test_composition_does_not_commute():
    f, g = repeat(4, 1) * spatial(16, 8), spatial(16, 8) * repeat(4, 1)
    assert f.grid == g.grid == (64, 8) and f.workers == g.workers
    assert f(1) == [(0, 1), (16, 1), (32, 1), (48, 1)] and g(1) == [(0, 1), (1, 1), (2, 1), (3, 1)]


def test_rankings_turn_the_order():
    assert repeat(2, 2)(0) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert repeat(2, 2, ranking=(1, 0))(0) == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert [spatial(2, 2, ranking=(1, 0))(w) for w in range(4)] == [[(0, 0)], [(1, 0)], [(0, 1)], [(1, 1)]]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: repeat(0, 2), "sizes: got"),
        (lambda: spatial(2, 2, ranking=(0, 0)), "ranking: got"),
        (lambda: repeat(2) * spatial(2, 2), "atoms: got grids"),
        (lambda: TaskMapping(()), "atoms: got grids"),
        (lambda: spatial(2, 2)(4), "worker: got 4; allowed: 0 to 3"),
    ],
)
def test_what_is_no_mapping_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
