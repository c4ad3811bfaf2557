"""Every sample exactly once an epoch, wherever a run stops and whatever changes at its restart."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from calibration.checkpointing.iterator import Order, ResumableLoader
from calibration.checkpointing.manifest import Progress
from sim.specs.fields import InputError
from tests.full import FULL


class Indices(Dataset):
    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        return torch.tensor(index)


def trained(loader, batches):
    """Train on so many batches, fetching one ahead as a trainer that is stopped in between; return their indices."""
    found = []
    for batch in loader.forever():
        if len(found) == batches:
            break
        found.append((loader.position[0], batch.tolist()))
        loader.trained()
    return found


def test_the_order_is_of_seed_and_epoch():
    order = Order(samples=100, batch=10, seed=3)
    assert list(order.batches(2, 0)) == list(Order(samples=100, batch=10, seed=5).batches(0, 0))
    assert list(order.batches(0, 0)) != list(order.batches(1, 0))
    flat = [index for batch in order.batches(0, 0) for index in batch]
    assert sorted(flat) == list(range(100)) and flat != sorted(flat)


@given(
    samples=st.integers(1, 60),
    batch=st.integers(1, 9),
    world=st.integers(1, 4),
    drop_last=st.booleans(),
    stops=st.lists(st.integers(0, 20), max_size=5),
    worlds=st.lists(st.integers(1, 4), min_size=5, max_size=5),
)
@settings(max_examples=1_000 if FULL else 100)
def test_once_an_epoch_over_restarts_and_ranks(samples, batch, world, drop_last, stops, worlds):
    """Ranks change at each restart; what a dropped remainder is depends on how many there are."""
    epoch, consumed, seen = 0, 0, Counter()

    def go(world, most):
        nonlocal epoch, consumed
        orders = [Order(samples=samples, batch=batch, rank=r, world=world, drop_last=drop_last) for r in range(world)]
        rest = [list(order.batches(0, consumed)) for order in orders]
        for n in range(min(most, max(len(one) for one in rest))):
            seen.update(index for one in rest for index in one[n : n + 1] for index in index)
            epoch, consumed = orders[0].after(epoch, consumed)
        return orders[0]

    if drop_last:
        worlds = [world] * 5
        if world * batch > samples:
            with pytest.raises(InputError, match="batch: got"):
                Order(samples=samples, batch=batch, world=world, drop_last=True)
            return
    for stop, ranks in zip(stops, worlds, strict=False):
        go(ranks, stop)
        if epoch:
            break
    if not epoch:
        go(world, 10**6)
    assert (epoch, consumed) == (1, 0)
    assert set(seen.values()) == {1}
    assert len(seen) == samples - (samples % (world * batch) if drop_last else 0)


def test_incomplete_last_batches():
    whole = Order(samples=10, batch=4)
    assert [len(batch) for batch in whole.batches(0, 0)] == [4, 4, 2]
    assert [len(batch) for batch in Order(samples=10, batch=4, drop_last=True).batches(0, 0)] == [4, 4]
    ranks = [list(Order(samples=9, batch=2, rank=r, world=4).batches(0, 0)) for r in range(4)]
    assert [[len(batch) for batch in one] for one in ranks] == [[2, 1], [2], [2], [2]]
    assert whole.after(0, 8) == (1, 0)


def test_batches_stay_whole_where_other_ranks_go_on():
    more = Order(samples=100, batch=8, world=5, drop_last=True)
    assert [len(batch) for batch in more.batches(0, 16)] == [8, 8]
    assert more.after(*more.after(0, 16)) == (1, 0)
    loader = ResumableLoader(Indices(100), more)
    loader.resume(Progress(step=5, consumed=80))  # of two ranks, which would have had another batch
    assert [epoch for epoch, _ in trained(loader, 2)] == [1, 1]


@pytest.mark.parametrize("restarted", [0, 1])
def test_workers_fetch_ahead_of_what_counts(restarted):
    """Two workers have fetched four batches when two are trained on; what is left comes after, by any number."""
    order, data = Order(samples=30, batch=4, seed=1), Indices(30)
    uninterrupted = trained(ResumableLoader(data, order), 20)
    first = ResumableLoader(data, order, num_workers=2, prefetch_factor=2)
    seen = trained(first, 2)
    assert first.position == (0, 8)
    second = ResumableLoader(data, order, num_workers=restarted)
    second.resume(first.progress(2))
    seen += trained(second, 18)
    assert seen == uninterrupted
    assert second.position == (2, 16)


def test_a_rank_without_a_sample_of_the_last_batch_goes_on_with_the_next_epoch():
    orders = [Order(samples=5, batch=1, rank=rank, world=2) for rank in range(2)]
    first, second = (trained(ResumableLoader(Indices(5), order), 5) for order in orders)
    assert [epoch for epoch, _ in first] == [0, 0, 0, 1, 1]
    assert [epoch for epoch, _ in second] == [0, 0, 1, 1, 2]
    resumed = ResumableLoader(Indices(5), orders[1])
    resumed.resume(Progress(step=2, consumed=4))
    assert trained(resumed, 2) == second[2:4]
    with pytest.raises(InputError, match="rank: got 5; allowed: 0 to 4"):
        ResumableLoader(Indices(5), Order(samples=5, batch=1, rank=5, world=6))


def test_a_plain_loader_gives_the_same_batches():
    order = Order(samples=10, batch=3)
    plain = DataLoader(Indices(10), batch_sampler=list(order.batches(0, 0)))
    assert [b.tolist() for b in plain] == [b.tolist() for b in ResumableLoader(Indices(10), order)]


def test_bad_input():
    with pytest.raises(InputError, match="rank: got 2; allowed: 0 to 1"):
        Order(samples=4, batch=1, rank=2, world=2)
    with pytest.raises(InputError, match="shuffle: got True; allowed: left out"):
        ResumableLoader(Indices(4), Order(samples=4, batch=2), shuffle=True)
    loader = ResumableLoader(Indices(4), Order(samples=4, batch=2))
    with pytest.raises(InputError, match="consumed: got 4; allowed: fewer than the 4"):
        loader.resume(Progress(step=2, consumed=4))
    with pytest.raises(InputError, match=r"trained\(\) after every batch"):
        list(loader.forever())
