import numpy as np
import pytest

from sim.decentralized import Change, Wan
from sim.decentralized.wan import shares
from sim.specs.fields import InputError, read

SECOND = 10**9


def test_one_number_stands_for_all_links_and_a_matrix_for_each():
    matrix = np.arange(1.0, 10.0).reshape(3, 3)
    wan = Wan(partitions=3, bytes_per_s=matrix, latency_s=0.5)
    assert wan.rate(0, 2, 0) == 3
    assert wan.rate(2, 0, 0) == 7
    assert wan.latency_ticks == ((SECOND // 2,) * 3,) * 3
    assert wan == Wan(partitions=3, bytes_per_s=matrix.tolist(), latency_s=0.5)
    assert hash(wan) == hash(Wan(partitions=3, bytes_per_s=matrix.tolist(), latency_s=0.5))


def test_links_change_in_the_order_of_time():
    late, early = Change(at_s=2.0, factor=2.0), Change(at_s=1.0, source=0, target=1, factor=0.5)
    wan = Wan(bytes_per_s=100.0, changes=[late, early])
    assert [wan.rate(0, 1, s * SECOND) for s in (0, 1, 2)] == [100, 50, 200]
    assert [wan.rate(1, 0, s * SECOND) for s in (0, 1, 2)] == [100, 100, 200]
    assert wan.next_change(0, [1, 2], 0) == SECOND
    assert wan.next_change(1, [0, 2], 0) == wan.next_change(0, [1], SECOND) == 2 * SECOND
    assert wan.next_change(0, [1], 2 * SECOND) is None
    assert wan.calm.rate(0, 1, 2 * SECOND) == 100


def test_an_uplink_is_shared_as_far_as_links_are_fast_enough():
    assert shares([5, 1, 9], None) == [5, 1, 9]
    assert shares([10, 10, 10], 9) == [3, 3, 3]
    assert shares([10, 1, 10], 9) == [4, 1, 4]
    assert shares([1, 1, 1], 9) == [1, 1, 1]
    random = np.random.default_rng(0)
    for _ in range(50):
        rates, uplink = random.integers(1, 10**9, 6).tolist(), int(random.integers(10, 10**9))
        found = shares(rates, uplink)
        assert sum(found) <= uplink
        assert all(0 < one <= rate for one, rate in zip(found, rates, strict=True))
        held_back = {one for one, rate in zip(found, rates, strict=True) if one < rate}
        assert not held_back or max(found) - min(held_back) <= 1  # who is not slowed by its link has the most


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"partitions": 1}, "partitions: got 1; allowed: a whole number from 2 to 64"),
        ({"bytes_per_s": "fast"}, "bytes_per_s: got 'fast'; allowed: a number, or a list of K lists of K numbers"),
        ({"bytes_per_s": 0}, "bytes_per_s: got 0.*; allowed: numbers from 1 to 1e"),
        ({"partitions": 2, "latency_s": [[0, 1]]}, "latency_s: .*2 lists: one for every partition"),
        ({"partitions": 2, "latency_s": [[0, 1], [1]]}, r"latency_s.1: got \[1.0\]; allowed: 2 numbers"),
        ({"partitions": 2, "bytes_per_s": [[0, -1], [1, 0]]}, r"bytes_per_s.0: got -1.0"),
        ({"uplink_bytes_per_s": [1, 2]}, "uplink_bytes_per_s: .*5 numbers"),
        ({"changes": [{"at_s": 1, "factor": 0}]}, r"changes.0.factor: got 0; allowed: a number from 1e-06"),
        ({"changes": [{"at_s": 1, "factor": 1, "target": 5}]}, "changes.0.target: got 5; allowed: a partition from 0"),
    ],
)
def test_bad_networks_are_refused(raw, message):
    with pytest.raises(InputError, match=message):
        read(Wan, raw)
