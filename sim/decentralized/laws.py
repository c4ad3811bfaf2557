"""Time and traffic of a training in which nothing happens: no controller, no failure, no link that changes.

The same whole ticks as the processes of `sim.decentralized.processes`, without them.
"""

from typing import NamedTuple

import numpy as np

from sim.decentralized.setting import LONGEST_S, Decentralized, Ints
from sim.decentralized.wan import Wan, shares
from sim.engine.clock import TICK_S, to_ticks
from sim.specs.fields import InputError


class Law(NamedTuple):
    """What the closed form says."""

    ticks: int
    exchanges: int
    update_bytes: int
    travel_bytes: int

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return self.ticks * TICK_S

    @property
    def traffic_bytes(self) -> int:
        """Updates and models that travel, all messages."""
        return self.update_bytes + self.travel_bytes


def law(setting: Decentralized, sent_fraction: float = 1.0) -> Law:
    """Return time and traffic; with Gaia `sent_fraction` of the values is sent.

    Raises:
        InputError: theta, the links or the partitions change.
    """
    for name, changes in (("controller", setting.adapts), ("failures", setting.failures), ("wan", setting.wan.changes)):
        if changes:
            raise InputError(name, getattr(setting, name), "nothing that changes: the closed form knows none")
    messages, wan = setting.messages(setting.begin, sent_fraction), setting.wan
    period, every = messages.communication.period, setting.travel_every
    exchanged = np.arange(period, setting.steps + 1, period)
    travelled = np.arange(every, setting.steps + 1, every) if every else np.array([], dtype=np.int64)
    meetings = np.unique(np.concatenate([[0], exchanged, travelled, [setting.steps]]).astype(np.int64))
    computed = np.diff(setting.computed(meetings), axis=1)
    stage = np.searchsorted(messages.stages, exchanged, side="right") - 1
    sizes = [messages.bytes_at(step) for step in messages.stages]
    sent = np.array([sending_ticks(wan, size) for size in sizes]).reshape(len(sizes), -1).T[:, stage]
    at = np.searchsorted(meetings, exchanged) - 1
    computed[:, at] += sent
    others = [_travel_ticks(setting, n) for n in range(min(len(travelled), wan.partitions - 1))]
    travelling = sum(others[n % len(others)] for n in range(len(travelled))) if others else 0
    pairs = wan.partitions * (wan.partitions - 1)
    counts = np.bincount(stage, minlength=len(sizes)).tolist()
    return Law(
        ticks=sum(computed.max(axis=0).tolist()) + travelling,  # may be longer than 64 bits hold
        exchanges=len(exchanged),
        update_bytes=pairs * sum(count * size for count, size in zip(counts, sizes, strict=True)),
        travel_bytes=len(travelled) * wan.partitions * setting.sizes.model_bytes,
    )


def bsp_law(setting: Decentralized) -> Law:
    """Return time and traffic of the same training by BSP, with nothing that fails or changes."""
    calm = {"wan": setting.wan.calm, "failures": (), "travel_every": 0}
    return law(setting.with_(algorithm="bsp", controller="fixed", **calm))


def sending_ticks(wan: Wan, size_bytes: int) -> Ints:
    """Return the ticks (K,) from when a partition sends a message of so many bytes to every other one until the last
    has arrived.

    Raises:
        InputError: one is on its way for longer than 64 bits hold.
    """
    found = [_sending(wan, n, size_bytes) for n in range(wan.partitions)]
    if max(found) > to_ticks(LONGEST_S):
        told = f"links that carry a message of {size_bytes:.3g} B in {LONGEST_S:g} s"
        raise InputError("wan.bytes_per_s", wan.bytes_per_s, told)
    return np.array(found, dtype=np.int64)


def _sending(wan: Wan, source: int, size_bytes: int) -> int:
    """Return the ticks of one partition, 0 for no bytes: whenever a message has left, the others share what it had."""
    left = {n: size_bytes * 10**9 for n in range(wan.partitions) if n != source and size_bytes}
    now = last = 0
    while left:
        rates = shares([wan.rate(source, n, 0) for n in left], wan.uplinks[source])
        ticks = min(-(-one // rate) for one, rate in zip(left.values(), rates, strict=True))
        now += ticks
        for (n, one), rate in zip(tuple(left.items()), rates, strict=True):
            left[n] = one - ticks * rate
            if left[n] <= 0:
                del left[n]
                last = max(last, now + wan.latency_ticks[source][n])
    return last


def _travel_ticks(setting: Decentralized, number: int) -> int:
    """Return the ticks of travel `number`: models on their way beside evaluation at home, then evaluation away."""
    wan, evaluate = setting.wan, to_ticks(setting.evaluate_s)
    found = []
    for source in range(wan.partitions):
        target = travels_to(source, wan.partitions, number)
        (rate,) = shares([wan.rate(source, target, 0)], wan.uplinks[source])
        sent = -(-setting.sizes.model_bytes * 10**9 // rate) + wan.latency_ticks[source][target]
        found.append(max(sent, evaluate) + evaluate)
    return max(found)


def travels_to(place: int, partitions: int, number: int) -> int:
    """Return where the model of the partition at `place` goes in travel `number`: to each other one in turn."""
    return (place + 1 + number % (partitions - 1)) % partitions
