"""What fused pairs hide: beside a machine of compute and one of collectives that serve layer after layer."""

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.costs.pairs import HALVES, SLOWED, Half, hidden, hidden_rates

NAMES = (*(f"pair_{half}_{part}" for half in HALVES for part in Half._fields), *SLOWED)
SECONDS = st.floats(0, 9)
HALF = st.tuples(SECONDS, SECONDS, st.integers(1, 6))


def values(first, second, slowed=(0.0, 0.0), shared=(0.0, 0.0)):
    """Return the values of a pair; of each half compute, collectives and layers."""
    return dict(zip(NAMES, (*first, shared[0], *second, shared[1], *slowed), strict=True))


def served(first, second):
    """Return when two machines have served all layers of both halves, one layer after the other."""
    layers = [(compute / n, inner / n) for compute, inner, n in (first, second) for _ in range(n)]
    computed = accumulate(compute for compute, _ in layers)
    return max(at + sum(inner for _, inner in layers[i:]) for i, at in enumerate(computed))


@given(HALF, HALF)
def test_two_machines_serve_layer_after_layer(first, second):
    whole = sum(first[:2] + second[:2])
    assert whole - hidden(values(first, second)) == pytest.approx(served(first, second))


def test_what_hides_is_paid_for_by_the_slowdown():
    """As `two_streams` has it; what the first layer computes and the last one sends is beside nothing."""
    pair = (8.0, 2.0, 4), (16.0, 2.0, 4)
    assert hidden(values(*pair)) == 2 + 2 * 3 / 4
    assert hidden(values(*pair, (0.25, 0.25))) == pytest.approx(3.5 * (1 - 0.25))
    sends = (2.0, 8.0, 4), (4.0, 16.0, 4)
    assert hidden(values(*sends, (0.25, 0.25))) == pytest.approx((2 * 3 / 4 + 4) * (1 - 0.25))
    assert hidden(values(*pair, (0.5, 0.0))) == pytest.approx(3.5 / 1.5)


def test_streams_that_slow_each_other_much_take_longer_side_by_side():
    assert hidden(values((8.0, 2.0, 4), (16.0, 2.0, 4), (2.0, 2.0))) < 0


def test_a_pair_without_collectives_or_without_layers_hides_nothing():
    assert hidden(values((8.0, 0.0, 4), (16.0, 0.0, 4))) == 0
    assert hidden(values((0.0, 0.0, 0), (0.0, 3.0, 0))) == 0


def test_compute_that_hides_others_on_the_same_links_hides_no_more():
    sends = (2.0, 8.0, 4), (4.0, 16.0, 4)
    alone, beside, full = (hidden(values(*sends, shared=(0.0, x))) for x in (0.0, 1.0, 9.0))
    assert (alone, beside, full) == (5.5, 4.5, 1.5)
    computes = (8.0, 2.0, 4), (16.0, 2.0, 4)
    assert hidden(values(*computes, shared=(1.0, 5.0))) == hidden(values(*computes))


@given(HALF, HALF, st.tuples(*[st.floats(0, 0.9)] * 2))
def test_it_grows_with_all_that_there_is_to_hide_and_to_hide_it_by(first, second, slowed):
    least = hidden(values(first, second, slowed))
    if sum(1 / (1 + s) for s in slowed) > 1:
        for i in (0, 1):
            more = tuple(x + (i == at) for at, x in enumerate(first))
            assert hidden(values(more, second, slowed)) >= least - 1e-12


@pytest.mark.parametrize("slowed", [(0.0, 0.0), (0.3, 0.1)])
@pytest.mark.parametrize(
    "pair",
    [
        ((8.0, 2.0, 4), (16.0, 2.0, 4)), ((2.0, 8.0, 4), (4.0, 16.0, 4)), ((9.0, 1.0, 3), (1.0, 9.0, 3)),
        ((1.0, 9.0, 3), (9.0, 1.0, 3)),
    ],
)  # fmt: skip
def test_rates_are_those_of_what_decides(pair, slowed):
    held = values(*pair, slowed, shared=(0.1, 0.2))
    for name in NAMES:
        up, down = (hidden({**held, name: held[name] + h}) for h in (1e-6, -1e-6))
        if slowed != (0.0, 0.0) or name not in SLOWED:
            rates = {n: np.array(float(n == name)) for n in NAMES}
            assert float(hidden_rates(held, rates)) == pytest.approx((up - down) / 2e-6, abs=1e-6), name
