"""Operations that share streams and links: each progresses at a rate that its neighbours decide."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, inf
from typing import Any

import simpy

from sim.engine.program import Program, Sharing, Stream

ROUNDING = 1e-6
"""Ticks that remain are rounded up to whole ones; less than this is rounding of the rates."""


@dataclass(eq=False, slots=True)
class Flow:
    """Work under way: remaining ticks at full rate, its rate since `since`; `stamp` tells stale wake-ups apart.

    beside: what is under way on each of its links and on its rank, this flow included.
    """

    rank: int
    stream: int
    links: tuple[int, ...]
    remaining: float
    then: Callable[[], Any]
    since: int
    beside: list[dict["Flow", None]]
    rate: float = 1.0
    stamp: int = 0


class Fluid:
    """All work under way in a world.

    rate = 1 / (1 + sum of the slowdowns by other streams active on the rank) / (the most flows on any of its links).
    """

    def __init__(self, env: simpy.Environment, program: Program, sharing: Sharing) -> None:
        self.env, self.sharing = env, sharing
        n = len(program)
        self.duration = program.duration.tolist()
        self.rank = program.graph.rank.tolist()
        self.stream = program.stream.tolist() or [int(Stream.COMPUTE)] * n
        edges, links = program.first_link.tolist(), program.links.tolist()
        self.links = [tuple(links[a:b]) for a, b in pairwise(edges)] if edges else [()] * n
        kinds = [sharing.on(rank) for rank in range(max(1, len(sharing.own)))]
        self.slowdown = [{(int(a), int(b)): x for (a, b), x in kind.items() if x} for kind in kinds]
        self.streams = {stream for kind in self.slowdown for pair in kind for stream in pair}
        self.on_rank: dict[int, dict[Flow, None]] = {}
        self.on_link: dict[int, dict[Flow, None]] = {}

    def add_operation(self, i: int, then: Callable[[], Any]) -> None:
        """Start operation i; `then` is called when it ends."""
        self.add(self.rank[i], self.stream[i], self.links[i], self.duration[i], then)

    def add(self, rank: int, stream: int, links: tuple[int, ...], ticks: int, then: Callable[[], Any]) -> None:
        """Start work of `ticks` at full rate."""
        used = links if self.sharing.links else ()
        places = [self.on_link.setdefault(link, {}) for link in used] if ticks else []
        if ticks and stream in self.streams:
            places.append(self.on_rank.setdefault(rank, {}))
        flow = Flow(rank, int(stream), used, ticks, then, int(self.env.now), places)
        alone = not any(places)
        for place in places:
            place[flow] = None
        self._wake(flow, ticks)
        if not alone:
            self._settle(flow)

    def begin(self, rank: int, stream: int) -> Callable[[], None]:
        """Keep a stream of a rank active until the returned function is called (once): others slow down beside it."""
        flow = Flow(rank, int(stream), (), inf, _nothing, int(self.env.now), [self.on_rank.setdefault(rank, {})])
        flow.beside[0][flow] = None
        self._settle(flow)
        return lambda: self._finish(flow)

    def _settle(self, changed: Flow) -> None:
        """Give `changed` and all that share with it their new rates."""
        neighbours: dict[Flow, None] = {}
        for place in changed.beside:
            neighbours |= place
        now = int(self.env.now)
        for flow in neighbours:
            rate = self._rate(flow)
            if rate != flow.rate and flow.remaining < inf:
                flow.remaining -= (now - flow.since) * flow.rate
                flow.since, flow.rate = now, rate
                flow.stamp += 1
                self._wake(flow, max(0, ceil(flow.remaining / rate - ROUNDING)))

    def _rate(self, flow: Flow) -> float:
        active = {other.stream for other in self.on_rank.get(flow.rank, ()) if other is not flow}
        slowdown = self.slowdown[flow.rank % len(self.slowdown)]
        slow = 1 + sum(slowdown.get((flow.stream, other), 0.0) for other in sorted(active))
        shared = max((len(self.on_link[link]) for link in flow.links), default=1)
        return 1 / (slow * shared)

    def _wake(self, flow: Flow, ticks: int) -> None:
        stamp = flow.stamp
        timeout = self.env.timeout(ticks)
        timeout.callbacks.append(lambda _: self._finish(flow) if flow.stamp == stamp else None)

    def _finish(self, flow: Flow) -> None:
        for place in flow.beside:
            del place[flow]
        if any(flow.beside):
            self._settle(flow)
        flow.then()


def _nothing() -> None:
    """What follows a stream that somebody else keeps active."""
