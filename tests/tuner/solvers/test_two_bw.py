"""2BW's memory laws and planner: the papers' formulas, limits, and the best of all (width, depth) by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.specs import InputError
from sim.tuner.solvers.two_bw import Network, Servers, configurations, memory_bytes, seconds_per_microbatch

W, A, X = 4e9, 6e8, 1e6
"""Bytes of all weights; of one sample's activations; of one sample at a boundary."""

NETWORK = Network(16, W, A, X, lambda depth, b: [0.8 * b / depth] * depth)
SERVERS = Servers(64, 8, 1e11, 3e9, 16e9)


@given(st.integers(1, 64), st.integers(1, 16), st.integers(1, 8))
def test_published_memory_laws(d, b, more):
    """arXiv 2006.09503, section 3.1; m >= d."""
    m = d * more
    laws = {
        ("2bw", False): 2 * W / d + b * A + d * b * X,
        ("2bw", True): 2 * W / d + b * A / d + d * b * X,
        ("gpipe", True): W / d + b * A / d + m * b * X,
        ("flush", True): W / d + b * A / d + d * b * X,
        ("flush", False): W / d + b * A + d * b * X,
        ("gpipe", False): W / d + m * b * A / d + m * b * X,
    }
    for (scheme, recompute), law in laws.items():
        assert memory_bytes(NETWORK, scheme, d, b, m, recompute) == pytest.approx(law)


def test_masters_are_doubled_and_moments_are_not():
    """Mixed precision keeps 2 B weights, 4 B masters, 2 B gradients and 8 B moments a parameter: 22 B, not 16."""
    n = 1e9
    practice = replace(NETWORK, weight_bytes=2 * n, master_bytes=4 * n, state_bytes=10 * n, activation_bytes=0)
    practice = replace(practice, boundary_bytes=0)
    assert memory_bytes(practice, "2bw", 1, 1, 1, True) == 22 * n
    assert memory_bytes(practice, "flush", 1, 1, 1, True) == 16 * n


def test_seconds_of_a_middle_stage():
    """4/3 of 0.8 s x 2 / 4 and two boundaries of 2 |A| each at the slow link; the all-reduce is hidden by m."""
    args = {"width": 8, "depth": 4, "microbatch": 2, "microbatches": 8}
    assert seconds_per_microbatch(NETWORK, SERVERS, recompute=True, **args) == pytest.approx(
        4 / 3 * 0.4 + 2 * 2 * 2 * X / 3e9
    )
    inside = seconds_per_microbatch(NETWORK, SERVERS, recompute=False, **(args | {"width": 4}))
    assert inside == pytest.approx(0.4 + 2 * 2 * 2 * X / 1e11)


def test_an_all_reduce_that_m_microbatches_do_not_hide():
    slow = replace(SERVERS, outside_bytes_per_s=1e8)
    found = seconds_per_microbatch(NETWORK, slow, 16, 2, 1, 4, False)
    assert found == pytest.approx(2 * 15 / 16 * (W / 2) / 1e8 / 4)


@given(st.integers(1, 9), st.sampled_from(["2bw", "flush", "gpipe"]), st.floats(1e9, 64e9))
def test_every_configuration_is_legal(power, scheme, capacity):
    batch = 2**power
    servers = replace(SERVERS, memory_bytes=capacity)
    found = configurations(NETWORK, servers, batch, scheme)
    assert [c.samples_per_s for c in found] == sorted((c.samples_per_s for c in found), reverse=True)
    assert len({(c.width, c.depth) for c in found}) == len(found)
    for c in found:
        assert c.width * c.depth <= servers.gpus
        assert c.width * c.microbatch * c.microbatches == batch
        assert c.memory_bytes <= capacity
        assert scheme != "2bw" or c.microbatches >= c.depth
        larger = 2 * c.microbatch
        fits = memory_bytes(NETWORK, scheme, c.depth, larger, c.microbatches // 2, c.recompute) <= capacity
        assert c.microbatches % 2 or not fits or (scheme == "2bw" and c.microbatches // 2 < c.depth)


def test_shallow_where_it_fits_deep_where_it_must():
    """More memory allows fewer stages; a network of twice the weights needs more."""
    depth = {}
    for capacity in (4e9, 16e9):
        depth[capacity] = min(c.depth for c in configurations(NETWORK, replace(SERVERS, memory_bytes=capacity), 512))
    assert depth[4e9] > depth[16e9] == 1
    assert not configurations(replace(NETWORK, weight_bytes=1e12), SERVERS, 512)


def test_recompute_only_where_it_gains():
    roomy = configurations(NETWORK, replace(SERVERS, memory_bytes=1e12), 512)[0]
    assert not roomy.recompute


def test_bad_batch_is_refused():
    with pytest.raises(InputError, match="batch"):
        configurations(NETWORK, SERVERS, 0)
