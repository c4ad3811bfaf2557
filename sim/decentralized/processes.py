"""Partitions, links and travelling models as simpy processes; the clock counts ticks of 1 ns."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import simpy

from sim.decentralized.wan import Wan, shares
from sim.engine.clock import to_ticks

Process = Generator[simpy.Event, Any, None]
Part = Literal["compute", "exchange", "waiting", "travel", "timeout"]
PARTS: tuple[Part, ...] = ("compute", "exchange", "waiting", "travel", "timeout")
NANO = 1_000_000_000
"""A transfer is counted in 1e-9 bytes: what a link of 1 B/s carries in a tick."""
SHOWN = 400
"""Spans that are kept of a partition: those of a run's begin, for a figure."""


@dataclass(frozen=True)
class Span:
    """What a partition did from when to when, in ticks."""

    partition: int
    kind: Part
    start_ns: int
    end_ns: int


class Partition:
    """What one partition does, and what is gone once it failed."""

    def __init__(self, env: simpy.Environment, number: int) -> None:
        self.env, self.number = env, number
        self.failed = False
        self.ticks: dict[Part, int] = dict.fromkeys(PARTS, 0)
        self.spans: list[Span] = []
        self.ready = 0
        """When it had computed and sent what the round asks of it."""
        self._computing: simpy.Process | None = None

    def tell(self, kind: Part, start: int, end: int) -> None:
        """Count the ticks of a part."""
        self.ticks[kind] += end - start
        if end > start and len(self.spans) < SHOWN:
            self.spans.append(Span(self.number, kind, start, end))

    def round(self, ticks: int, links: "Links", size_bytes: int) -> Process:
        """Compute for so many ticks, then send a message of so many bytes (0: none) to every other partition."""
        self._computing, begun = self.env.active_process, int(self.env.now)
        try:
            yield self.env.timeout(ticks)
        except simpy.Interrupt:
            return
        finally:
            self._computing = None
            self.tell("compute", begun, int(self.env.now))
        self.ready = sending = int(self.env.now)
        if size_bytes:
            yield self.env.all_of(links.send(self.number, links.others(self.number), size_bytes))
            self.ready = int(self.env.now)
            self.tell("exchange", sending, self.ready)

    def fail(self) -> None:
        """Stop here and now."""
        self.failed = True
        if self._computing:
            self._computing.interrupt()


class _Message(NamedTuple):
    """What is on its way since a tick."""

    source: int
    target: int
    size_bytes: int
    sent: int


class Links:
    """The links between partitions: what is on its way, and what has arrived."""

    def __init__(self, env: simpy.Environment, wan: Wan, partitions: Sequence[Partition]) -> None:
        self.env, self.wan, self.partitions = env, wan, partitions
        self.uplinks = [_Uplink(env, wan, n) for n in range(wan.partitions)]
        self.arrived_bytes = 0
        self.carried: dict[tuple[int, int], tuple[int, int]] = {}
        """By link how many messages arrived, and the ticks of all together from when they were sent."""

    def others(self, number: int) -> list[int]:
        """Return the partitions that have not failed, but for one."""
        return [p.number for p in self.partitions if not p.failed and p.number != number]

    def send(self, source: int, targets: Sequence[int], size_bytes: int) -> list[simpy.Event]:
        """Return an event for every target; its value says whether the message arrived, or one of the two failed."""
        now = int(self.env.now)
        arrivals = {target: self.env.event() for target in targets}

        def gone(target: int) -> None:
            def arrive(_: simpy.Event) -> None:
                arrivals[target].succeed(self._arrive(_Message(source, target, size_bytes, now)))

            self.env.timeout(self.wan.latency_ticks[source][target]).callbacks.append(arrive)

        self.uplinks[source].send(targets, size_bytes, gone)
        return list(arrivals.values())

    def _arrive(self, message: "_Message") -> bool:
        """Count a message that arrives, unless one of its ends failed; return whether it does."""
        source, target, size_bytes, sent = message
        if self.partitions[source].failed or self.partitions[target].failed:
            return False
        self.arrived_bytes += size_bytes
        count, total = self.carried.get((source, target), (0, 0))
        self.carried[source, target] = count + 1, total + int(self.env.now) - sent
        return True

    def cut(self, number: int) -> None:
        """End what is on its way from or to a partition that failed."""
        for uplink in self.uplinks:
            uplink.drop(None if uplink.source == number else number)


class _Uplink:
    """What leaves one partition: every message as fast as its link and its share of the uplink are."""

    def __init__(self, env: simpy.Environment, wan: Wan, source: int) -> None:
        self.env, self.wan, self.source = env, wan, source
        self._left: dict[int, int] = {}
        """1e-9 bytes still to be sent, by target."""
        self._gone: dict[int, Callable[[int], None]] = {}
        self._rates: dict[int, int] = {}
        self._since = self._stamp = 0

    def send(self, targets: Sequence[int], size_bytes: int, gone: Callable[[int], None]) -> None:
        """Send a message to each target; `gone` is called with it when the last byte has left."""
        self._advance()
        for target in targets:
            assert target not in self._left  # exchanges and travels follow each other
            self._left[target], self._gone[target] = size_bytes * NANO, gone
        self._wake()

    def drop(self, target: int | None) -> None:
        """End what is sent to a target, or everything."""
        self._advance()
        for one in [one for one in self._left if target in (None, one)]:
            self._end(one)
        self._wake()

    def _end(self, target: int) -> None:
        del self._left[target]
        self._gone.pop(target)(target)

    def _advance(self) -> None:
        now = int(self.env.now)
        for target in self._left:
            self._left[target] -= self._rates[target] * (now - self._since)
        self._since = now

    def _wake(self) -> None:
        """Share the uplink anew, and wake when a message has left or a link changes."""
        self._stamp += 1
        for target in [target for target, left in self._left.items() if left <= 0]:
            self._end(target)
        if not self._left:
            return
        targets, now = list(self._left), self._since
        links = [self.wan.rate(self.source, target, now) for target in targets]
        self._rates = dict(zip(targets, shares(links, self.wan.uplinks[self.source]), strict=True))
        first = min(now - (-left // self._rates[target]) for target, left in self._left.items())
        change = self.wan.next_change(self.source, targets, now)
        stamp = self._stamp
        timeout = self.env.timeout((first if change is None else min(first, change)) - now)
        timeout.callbacks.append(lambda _: self._woken(stamp))

    def _woken(self, stamp: int) -> None:
        if stamp == self._stamp:
            self._advance()
            self._wake()


def traveller(
    env: simpy.Environment, links: Links, source: int, target: int, size_bytes: int, evaluate_s: float
) -> Generator[simpy.Event, Any, bool]:
    """Take a model to another partition and its accuracy there, after that of its own; return whether both are there.

    A partition takes the accuracy of its own model while models travel, and then that of the one which arrives.
    """
    home = env.timeout(to_ticks(evaluate_s))
    (arrival,) = links.send(source, [target], size_bytes)
    if not (yield arrival):
        return False
    yield home
    yield env.timeout(to_ticks(evaluate_s))
    return not (links.partitions[source].failed or links.partitions[target].failed)
