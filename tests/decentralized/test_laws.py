"""The closed form and the processes: the same ticks and the same bytes."""

import numpy as np
import pytest

from sim.decentralized import Change, Decentralized, Failure, Sizes, Wan, law, simulate
from sim.decentralized.accuracy import AccuracyModel, ShortRun
from sim.engine.clock import to_ticks
from sim.specs.fields import InputError
from tests.decentralized.toys import small


def by_chance(seed):
    """Return a training whose links, partitions and messages are drawn by a seed."""
    random = np.random.default_rng(seed)
    k = int(random.integers(2, 6))
    algorithm, theta = [("bsp", 1.0), ("fedavg", 7.0), ("diloco", 30.0), ("dgc", 0.99), ("gaia", 0.1)][seed % 5]
    wan = Wan(
        partitions=k,
        bytes_per_s=10 ** random.uniform(5, 8, (k, k)),
        latency_s=random.random((k, k)),
        uplink_bytes_per_s=10 ** random.uniform(5, 8, k) if seed % 2 else None,
    )
    return Decentralized(
        algorithm=algorithm, theta=theta, steps=int(random.integers(50, 150)), wan=wan,
        step_s=tuple(random.random(k).tolist()), jitter=0.3 * (seed % 3), seed=seed,
        sizes=Sizes(tensors=tuple(random.integers(1, 10**5, 4).tolist()), buffers=17),
        travel_every=int(random.integers(0, 40)), evaluate_s=float(random.random()), warm_up_steps=seed % 4 * 9,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_both_say_the_same_to_the_tick_and_to_the_byte(seed):
    setting = by_chance(seed)
    expected, found = law(setting), simulate(setting)
    assert to_ticks(found.seconds) == expected.ticks
    assert (found.update_bytes, found.travel_bytes) == (expected.update_bytes, expected.travel_bytes)
    assert found.exchanges == expected.exchanges
    assert found.finished
    for parts in found.parts_s:
        assert sum(parts.values()) == pytest.approx(found.seconds)


def test_a_training_by_hand():
    """Two partitions: 3 steps of 1 s and 2 s, a message of 4000 B over 1000 and 2000 B/s after each."""
    wan = Wan(partitions=2, bytes_per_s=[[1.0, 1_000.0], [2_000.0, 1.0]], latency_s=0.5)
    setting = Decentralized(
        algorithm="bsp", theta=1.0, steps=3, step_s=(1.0, 2.0), wan=wan, sizes=Sizes(parameters=1_000)
    )
    found = simulate(setting)
    assert found.seconds == 3 * max(1 + 4 + 0.5, 2 + 2 + 0.5) == law(setting).seconds
    assert found.traffic_bytes == 3 * 2 * 4_000
    assert list(found.parts_s[0].values()) == pytest.approx([3.0, 13.5, 0.0, 0.0, 0.0])
    assert list(found.parts_s[1].values()) == pytest.approx([6.0, 7.5, 3.0, 0.0, 0.0])


def test_centuries_are_no_negative_times():
    """A message of 40 TB over 12.5 MB/s, for each of a thousand steps: 3.2e18 ticks, and 64 bits hold 9.2e18."""
    huge = Decentralized(algorithm="bsp", theta=1.0, steps=1_000, step_s=1.0, sizes=Sizes(parameters=10**13))
    assert simulate(huge).seconds == law(huge).seconds == 1_000 * (1.0 + 3.2e6 + 0.05)
    longer = huge.with_(steps=10_000)
    assert simulate(longer).bsp_seconds == law(longer).seconds == 10_000 * (1.0 + 3.2e6 + 0.05)
    with pytest.raises(InputError, match=r"wan\.bytes_per_s: got 1\.0"):
        law(huge.with_(wan=Wan(bytes_per_s=1.0)))
    with pytest.raises(InputError, match=r"step_s: got 100000\.0; allowed: with 1000000 steps at most 4000 s"):
        huge.with_(step_s=1e5, steps=1_000_000)


def test_updates_of_which_nothing_matters_take_no_time():
    """As short runs may say of Gaia at a high threshold."""
    held = {"algorithm": "gaia", "norm": "group", "data": "digits", "steps": 9, "accuracy": 0.9, "accuracy_loss": 0.0}
    row = {**held, "theta": 0.4, "skew": 0.0, "sent_bytes": 0.0, "sent_fraction": 0.0}
    model = AccuracyModel(tuple(ShortRun(seed=seed, **row) for seed in range(2)))
    setting = Decentralized(algorithm="gaia", theta=0.4, steps=10, skew=0.0)
    assert law(setting, 0.0).seconds == simulate(setting, model).seconds == pytest.approx(2.0)


@pytest.mark.parametrize(
    "change",
    [
        {"controller": "annealing", "travel_every": 100},
        {"failures": [Failure(partition=1, at_s=3.0)]},
        {"wan": Wan(changes=[Change(at_s=1.0, factor=0.5)])},
    ],
)
def test_the_closed_form_knows_nothing_that_changes(change):
    with pytest.raises(InputError, match="closed form"):
        law(small(theta=20.0).with_(**change))
