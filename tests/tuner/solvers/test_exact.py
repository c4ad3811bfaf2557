"""The exact solver against brute force, HiGHS and CP-SAT; the n best; budgets; laws of the problem."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.specs import InputError
from sim.tuner.solvers.chain import NOTHING_BELOW, Cell, Chain, Choice, Effort, frontier, legal, value
from sim.tuner.solvers.exact import exact
from sim.tuner.solvers.graph import UnfinishedError, grow
from sim.tuner.solvers.milp import milp
from tests.full import FULL
from tests.tuner.solvers.chains import best_by_cells, brute, scaled, small, table
from tests.tuner.solvers.cp_sat import cp_sat

SPACES = range(5_000 if FULL else 200)
CHECKED = range(400 if FULL else 30)


@pytest.mark.slow
def test_equals_brute_force_over_raw_choices():
    """No frontier, no dynamic programme on the other side: every point of every way."""
    impossible = 0
    for seed in SPACES:
        space = small(seed)
        found, best = exact(space.chain), brute(space)
        assert found.certified, seed
        assert found.value == best or found.value == pytest.approx(best, rel=1e-12, abs=1e-12), seed
        impossible += best == np.inf
    assert 0 < impossible < len(SPACES) / 5


@pytest.mark.slow
def test_equals_highs_wherever_it_proves_its_optimum():
    proven = 0
    for seed in CHECKED:
        chain = small(seed).chain
        found, checked = exact(chain), milp(chain)
        assert found.value <= checked.value * (1 + 1e-9)
        if checked.certified:
            proven += 1
            assert found.value == checked.value or found.value == pytest.approx(checked.value, rel=1e-6)
    assert proven >= len(CHECKED) * 0.9


@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "seed"), [((3, 12, 3, 5), 1), ((4, 16, 3, 6), 2), ((4, 20, 5, 8), 3)])
def test_equals_highs_on_chains_of_the_tuner(sizes, seed):
    chain = table(*sizes, seed)
    found, checked = exact(chain), milp(chain)
    assert checked.certified
    assert found.value == pytest.approx(checked.value, rel=1e-6)


@pytest.mark.slow
def test_an_unfinished_highs_says_so_and_brackets_the_optimum():
    chain = table(8, 32, 5, 20)
    checked, best = milp(chain, Effort(steps=1)), exact(chain).value
    assert not checked.certified
    assert checked.note
    assert checked.bound * (1 - 1e-6) <= best <= checked.value
    assert checked.gap > 0


@pytest.mark.slow
def test_equals_cp_sat_on_whole_times():
    proven = 0
    for seed in CHECKED:
        chain = small(seed, whole=True).chain
        checked = cp_sat(chain)
        if checked is not None:
            proven += 1
            assert exact(chain).value == checked, seed
    assert proven >= len(CHECKED) * 0.9


@pytest.mark.slow
def test_the_n_best_are_the_n_best_ways():
    for seed in SPACES[::20]:
        space = small(seed)
        ways = sorted(best_by_cells(space).values())
        for n in (2, 5, 20):
            found = exact(space.chain, n=n)
            assert found.certified
            assert found.values == pytest.approx(ways[:n], rel=1e-12, abs=1e-12), seed
            assert len({choice.cells for choice in found.choices}) == len(found.choices)
            assert all(legal(space.chain, choice) for choice in found.choices)


def test_the_best_of_n_is_the_best_of_one():
    chain = table(8, 64, 9, 20)
    one, many = exact(chain), exact(chain, n=20)
    assert many.certified
    assert (many.values[0], many.bound) == (one.value, one.bound)
    limit = float(many.values[7])
    assert exact(chain, Effort(at_most=limit), n=20).values == many.values[:7]


@pytest.mark.parametrize("seed", range(40))
def test_a_value_just_above_the_best_loses_it_not_and_one_at_the_best_leaves_nothing(seed):
    chain = small(seed).chain
    best = exact(chain)
    if not best.choices:
        return
    near = exact(chain, Effort(at_most=best.value * (1 + 1e-6) + 1e-12))
    assert near.value == best.value
    none = exact(chain, Effort(at_most=best.value))
    assert (none.choices, none.certified, none.note) == ((), True, NOTHING_BELOW)
    assert none.bound >= best.value * (1 - 1e-12)


def test_two_device_types_are_all_used():
    fast, slow = (1, 0), (0, 1)
    cells = [
        Cell(n, uses, np.array([n * speed]), np.zeros(1))
        for n in (1, 2, 3)
        for uses, speed in ((fast, 1.0), (slow, 2.0))
    ]
    found = exact(Chain(3, 5, (2, 1), 10, lambda *place: cells))
    assert found.certified
    assert sorted((cell.uses, cell.layers) for cell in found.choices[0].cells) == [(slow, 1), (fast, 2), (fast, 2)]
    assert found.value == 9 * 2.0 + 6.0


def test_what_is_offered_may_depend_on_the_place():
    """A stage costs more where it begins in the middle of a node of four devices."""
    cells = {
        extra: [Cell(1, (u,), np.array([1.0 / u + extra]), np.zeros(1)) for u in (1, 2, 3)] for extra in (0.0, 0.5)
    }
    chain = Chain(3, 3, (8,), 4, lambda stage, left, used: cells[0.5 if used[0] % 4 else 0.0])
    found = exact(chain)
    uses = [cell.uses[0] for cell in found.choices[0].cells]
    assert legal(chain, found.choices[0])
    assert found.value == min(value(chain, Choice(choice, (0, 0, 0))) for choice in _all(chain))
    assert sum(uses) == 8


def _all(chain):
    """Yield the cells of every whole choice of a three-stage chain."""
    for last in chain.cells(2, 3, (0,)):
        for middle in chain.cells(1, 2, last.uses):
            for first in chain.cells(0, 1, (last.uses[0] + middle.uses[0],)):
                if last.uses[0] + middle.uses[0] + first.uses[0] == 8:
                    yield first, middle, last


@pytest.mark.parametrize("steps", [3_000, 4_000, 6_000, 12_000])
def test_labels_that_run_out_are_told(steps):
    chain = table(16, 64, 12, 20, microbatches=2)
    found, best = exact(chain, Effort(steps), n=20), exact(chain)
    assert not found.certified
    assert found.note.startswith("more than")
    assert found.bound <= best.value * (1 + 1e-12)
    assert not found.choices or found.value >= best.value


def test_a_graph_that_is_too_large_is_told():
    chain = table(16, 64, 12, 20)
    with pytest.raises(UnfinishedError, match="more than 10 ways"):
        grow(chain, 10)
    found = exact(chain, Effort(10))
    assert (found.choices, found.bound, found.certified, found.gap) == ((), 0.0, False, 1.0)


def test_an_interrupted_search_has_a_choice_and_a_bound():
    chain = table(8, 64, 9, 20)
    calls = iter(range(100))
    found, best = exact(chain, Effort(stop=lambda: next(calls) > 10)), exact(chain)
    assert found.note == "interrupted"
    assert found.choices
    assert found.bound <= best.value <= found.value


@given(st.integers(0, 10_000), st.floats(1e-6, 1e6))
def test_scaling_all_times_scales_the_value(seed, by):
    chain = small(seed).chain
    found = exact(scaled(chain, by)).value
    assert found == exact(chain).value * by or found == pytest.approx(exact(chain).value * by, rel=1e-9)


@given(st.integers(0, 10_000), st.integers(0, 3), st.integers(0, 2), st.floats(0, 20), st.floats(0, 20))
def test_another_cell_never_makes_it_worse(seed, layers, uses, t, d):
    chain = small(seed).chain
    more = Cell(layers, (uses,) * len(chain.devices), np.array([t]), np.array([d]))
    wider = replace(chain, cells=lambda *place: [*chain.cells(*place), more])
    assert exact(wider).value <= exact(chain).value * (1 + 1e-12)


@given(st.integers(0, 10_000))
def test_more_microbatches_never_take_less_time(seed):
    chain = small(seed).chain
    values = [exact(replace(chain, microbatches=g)).value for g in (1, 2, 5, 100)]
    assert values == sorted(values)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-3, 9)), min_size=1, max_size=30))
def test_the_frontier_is_exactly_what_nothing_dominates(points):
    kept = frontier(*zip(*points, strict=True))
    expected = {p for p in points if not any(q[0] <= p[0] and q[1] <= p[1] and q != p for q in points)}
    assert [points[k] for k in kept] == sorted(expected)


@given(st.lists(st.tuples(*[st.integers(0, 4)] * 4), min_size=1, max_size=40))
def test_the_frontier_in_four_times_is_exactly_what_nothing_dominates(points):
    t, d, x, o = zip(*points, strict=True)
    kept = frontier(t, d, x, o)
    expected = {p for p in points if not any(q != p and all(a <= b for a, b in zip(q, p, strict=True)) for q in points)}
    assert sorted(points[k] for k in kept) == sorted(expected)
    assert [t[k] for k in kept] == sorted(t[k] for k in kept)


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 20])
def test_optimizers_behind_a_barrier_are_decided_too(n):
    """Sixteen stages with their own ways through and optimizers: certified, and as HiGHS finds where that is small."""
    found = exact(table(16, 64, 5, 20, barrier=True), n=n)
    assert found.certified
    chain = table(3, 12, 3, 5, barrier=True)
    checked = milp(chain)
    assert checked.certified
    assert exact(chain, n=n).value == pytest.approx(checked.value, rel=1e-6)


def test_an_optimizer_is_not_hidden_by_the_drain():
    """Two stages of the same pace; the second's optimizer is longer than the first's way back, and all of it counts."""
    short, long = (Cell(1, (1,), np.ones(1), np.zeros(1), np.ones(1), np.array([o])) for o in (0.5, 3.0))
    chain = Chain(2, 2, (2,), 4, lambda stage, left, used: [long if stage else short])
    assert exact(chain).value == 3 * 1 + 2 * 1 + 3.0


@pytest.mark.parametrize(
    ("cell", "path"),
    [
        ((-1, (1,), [1.0], [1.0]), "cell.uses"),
        ((1, (-1,), [1.0], [1.0]), "cell.uses"),
        ((1, (1,), [], []), "cell.t"),
        ((1, (1,), [1.0], [1.0, 2.0]), "cell.t"),
        ((1, (1,), [1.0, 2.0], [1.0, 2.0]), "cell.t"),
        ((1, (1,), [2.0, 1.0], [2.0, 1.0]), "cell.t"),
        ((1, (1,), [-1.0], [1.0]), "cell.t"),
        ((1, (1,), [np.nan], [1.0]), "cell.t"),
    ],
)
def test_bad_cells_are_refused(cell, path):
    with pytest.raises(InputError, match=path):
        Cell(*cell[:2], *map(np.array, cell[2:]))


@pytest.mark.parametrize(
    "bad", [{"stages": 0}, {"layers": -1}, {"microbatches": 0}, {"devices": (2, -1)}, {"fill": 1.5}]
)
def test_bad_chains_are_refused(bad):
    with pytest.raises(InputError, match="chain." + next(iter(bad))):
        replace(table(2, 4, 1, 1), **bad)


def test_cells_of_other_device_types_are_refused():
    chain = Chain(1, 1, (1,), 1, lambda *place: [Cell(1, (1, 0), np.ones(1), np.ones(1))])
    with pytest.raises(InputError, match=r"cell.uses.*1 device types"):
        exact(chain)


def test_no_ways_at_all_are_refused():
    with pytest.raises(InputError, match="n: got 0"):
        exact(table(2, 4, 1, 1), n=0)


def test_illegal_choices_are_told_from_legal_ones():
    chain = table(3, 9, 3, 4)
    choice = exact(chain).choices[0]
    a, b, c = choice.cells
    assert legal(chain, choice)
    assert not legal(chain, Choice((b, a, c), choice.points))
    assert not legal(chain, Choice((a, b), choice.points[:2]))
    assert not legal(chain, Choice(choice.cells, (0, 0, 4)))
    longer = next(other for other in chain.cells(2, 9, (0,)) if other.layers != c.layers)
    assert not legal(chain, Choice((a, b, longer), choice.points))
