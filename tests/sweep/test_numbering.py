"""Configurations by number: every combination once, every stratum once, whatever the blocks."""

from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.sweep.numbering import Axis, Column, Numbering, distinct, permuted, spaced, uniform

LISTS = st.lists(st.integers(1, 6), min_size=1, max_size=4)
SEEDS = st.integers(0, 2**63 - 1)


def values(numbering, start, stop):
    """Return the configurations of a range as tuples."""
    columns = numbering.columns(start, stop).values()
    return list(zip(*([c.values[k] for k in c.index] for c in columns), strict=True))


def grid(sizes):
    """Return a full grid of axes of so many values."""
    return Numbering(tuple(Axis(f"plan.{n}", tuple(range(10 * n, 10 * n + size))) for n, size in enumerate(sizes)))


@given(LISTS)
def test_a_grids_numbers_are_its_combinations_in_order(sizes):
    made = grid(sizes)
    assert made.size == prod(sizes)
    assert values(made, 0, made.size) == list(product(*(axis.values for axis in made.axes)))


@given(LISTS, st.integers(1, 50), SEEDS, st.sampled_from([None, "random", "latin-hypercube"]), st.integers(1, 200))
def test_blocks_do_not_depend_on_their_size(sizes, rows, seed, method, count):
    axes = (*grid(sizes).axes, Axis("cluster.x", (), 1.0, 2.0), Axis("plan.y", (), 1, 9, whole=True))
    made = Numbering(axes if method else axes[:-2], method, count, seed)
    blocks = [values(made, start, min(made.size, start + rows)) for start in range(0, made.size, rows)]
    assert [row for block in blocks for row in block] == values(made, 0, made.size)


@given(st.integers(1, 2_000), SEEDS, st.integers(0, 100))
def test_the_permutation_is_one(count, seed, stream):
    assert sorted(permuted(np.arange(count), count, seed, stream).tolist()) == list(range(count))


@given(st.integers(2, 300), SEEDS, st.integers(1, 9))
def test_a_latin_hypercube_has_one_point_in_every_stratum(count, seed, size):
    axes = (Axis("a.real", (), 5.0, 6.0), Axis("a.log", (), 1.0, 1e6, log=True), Axis("a.list", tuple(range(size))))
    real, log, listed = Numbering(axes, "latin-hypercube", count, seed).columns(0, count).values()
    assert sorted(np.floor((real.numbers() - 5.0) * count).clip(0, count - 1).astype(int)) == list(range(count))
    strata = np.floor(np.log(log.numbers()) / np.log(1e6) * count + 1e-9).clip(0, count - 1)
    assert sorted(strata.astype(int)) == list(range(count))
    often = np.bincount(listed.index, minlength=size)
    assert often.max() - often.min() <= 1


@given(SEEDS)
def test_whole_numbers_between_two_are_equally_likely_and_inside(seed):
    axis = Axis("plan.tp", (), 1, 4, whole=True)
    (column,) = Numbering((axis,), "latin-hypercube", 400, seed).columns(0, 400).values()
    found, often = np.unique(column.values, return_counts=True)
    assert found.tolist() == [1, 2, 3, 4]
    assert np.abs(often - 100).max() <= 1


def test_random_numbers_are_even_and_streams_are_apart():
    numbers = np.arange(100_000)
    one, other = uniform(numbers, 1, 2), uniform(numbers, 1, 3)
    assert np.abs(np.histogram(one, 10, (0, 1))[0] - 10_000).max() < 400
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.02
    assert abs(np.corrcoef(one[1:], one[:-1])[0, 1]) < 0.02


def test_equal_seeds_are_equal_and_others_are_not():
    def drawn(seed):
        return values(Numbering((Axis("a", (), 0.0, 1.0),), "random", 50, seed), 0, 50)

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)


def test_numbers_far_beyond_memory_are_at_hand():
    made = Numbering(tuple(Axis(f"a.{n}", tuple(range(100))) for n in range(6)))
    assert values(made, 10**12 - 1, 10**12) == [(99,) * 6]
    far = Numbering((Axis("a", (), 0.0, 1.0),), "latin-hypercube", 10**12, 1)
    assert len(set(values(far, 10**12 - 1000, 10**12))) == 1000


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((1.0, 5.0, 5, False, False), (1.0, 2.0, 3.0, 4.0, 5.0)),
        ((1.0, 8.0, 4, True, True), (1, 2, 4, 8)),
        ((1.0, 2.0, 5, False, True), (1, 2)),
        ((7.0, 7.0, 1, False, False), (7.0,)),
    ],
)
def test_spaced(arguments, expected):
    assert spaced(*arguments) == pytest.approx(expected)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=60))
def test_distinct_rows(rows):
    table = np.array(rows)
    first, index = distinct((Column((0, 1, 2, 3), column) for column in table.T), len(rows))
    assert len(first) == len(set(rows))
    assert [rows[first[k]] for k in index] == rows
