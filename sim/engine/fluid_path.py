"""The event engine where nobody joins it, compiled: the same events in the same order as `World` with `Fluid`."""

from heapq import heappop, heappush
from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.engine.compiled import compiled, inner
from sim.engine.fluid import ROUNDING
from sim.engine.graph import DeadlockError, Ints, waiting_cycle
from sim.engine.program import Program, Run, Sharing, Stream

Event = tuple[int, int, int, int]
"""When, in which order among those at once, what (an operation that ends, or n + one that an edge lets go), stamp."""

Floats = NDArray[np.float64]


class _Shared(NamedTuple):
    """Where operations share: place[first[i]:first[i + 1]] are the places of operation i, links before its rank.

    slowdown[rank, a, b]: on a rank, of stream a by stream b. Places of ranks are numbered from `links`.
    """

    rank: Ints
    stream: Ints
    duration: Ints
    first: Ints
    place: Ints
    owner: Ints
    links: int
    slowdown: Floats


class _State(NamedTuple):
    """Work under way; the entries of a place are chained in the order in which they came.

    active[rank, stream]: work on a rank that slows others down. counts: how often an event was set, and `_settle` ran.
    """

    remaining: Floats
    rate: Floats
    since: Ints
    stamp: Ints
    before: Ints
    after: Ints
    head: Ints
    tail: Ints
    used: Ints
    active: Ints
    seen: Ints
    counts: Ints


class _Order(NamedTuple):
    """Who waits for whom: `follower` in its lane, and waiting[first[i]:first[i + 1]] after `lag` ticks."""

    missing: Ints
    follower: Ints
    first: Ints
    waiting: Ints
    lag: Ints


@inner()
def _set(now: int, delay: int, what: int, stamp: int, events: list[Event], state: _State) -> None:
    heappush(events, (now + delay, state.counts[0], what, stamp))
    state.counts[0] += 1


@inner()
def _rate(i: int, shared: _Shared, state: _State) -> float:
    slow, most = 0.0, 1
    own = 0
    for node in range(shared.first[i], shared.first[i + 1]):
        if shared.place[node] < shared.links:
            most = max(most, state.used[shared.place[node]])
        else:
            own = 1
    for stream in range(shared.slowdown.shape[2]):
        if state.active[shared.rank[i], stream] > (own if stream == shared.stream[i] else 0):
            slow += shared.slowdown[shared.rank[i], shared.stream[i], stream]
    return 1 / ((1 + slow) * most)


@inner()
def _settle(i: int, now: int, shared: _Shared, state: _State, events: list[Event]) -> None:
    """Give all that share a place with operation i their new rates."""
    state.counts[1] += 1
    for own in range(shared.first[i], shared.first[i + 1]):
        node = state.head[shared.place[own]]
        while node >= 0:
            j = shared.owner[node]
            node = state.after[node]
            if state.seen[j] == state.counts[1]:
                continue
            state.seen[j] = state.counts[1]
            rate = _rate(j, shared, state)
            if rate != state.rate[j]:
                state.remaining[j] -= (now - state.since[j]) * state.rate[j]
                state.since[j], state.rate[j] = now, rate
                state.stamp[j] += 1
                left = max(0, ceil(state.remaining[j] / rate - ROUNDING))
                _set(now, left, j, state.stamp[j], events, state)


@inner()
def _enter(i: int, now: int, shared: _Shared, state: _State, events: list[Event]) -> None:
    """Start the work of operation i."""
    alone = True
    if shared.duration[i]:
        for node in range(shared.first[i], shared.first[i + 1]):
            place = shared.place[node]
            last = state.tail[place]
            if last >= 0:
                alone = False
                state.after[last] = node
            else:
                state.head[place] = node
            state.before[node], state.tail[place] = last, node
            state.used[place] += 1
            if place >= shared.links:
                state.active[shared.rank[i], shared.stream[i]] += 1
    state.since[i] = now
    _set(now, shared.duration[i], i, state.stamp[i], events, state)
    if not alone:
        _settle(i, now, shared, state, events)


@inner()
def _leave(i: int, now: int, shared: _Shared, state: _State, events: list[Event]) -> None:
    """End the work of operation i."""
    alone = True
    for node in range(shared.first[i], shared.first[i + 1]):
        place, before, after = shared.place[node], state.before[node], state.after[node]
        if before >= 0:
            state.after[before] = after
        else:
            state.head[place] = after
        if after >= 0:
            state.before[after] = before
        else:
            state.tail[place] = before
        state.used[place] -= 1
        alone = alone and state.used[place] == 0
        if place >= shared.links:
            state.active[shared.rank[i], shared.stream[i]] -= 1
    if not alone:
        _settle(i, now, shared, state, events)


@inner()
def _arrive(i: int, now: int, order: _Order, shared: _Shared, state: _State, start: Ints, events: list[Event]) -> None:
    """Note that one thing less holds operation i back, and start it if it was the last."""
    order.missing[i] -= 1
    if order.missing[i] == 0:
        start[i] = now
        _enter(i, now, shared, state, events)


@compiled()
def _run(order: _Order, shared: _Shared, state: _State) -> tuple[Ints, Ints]:
    n = len(order.missing)
    start, end = np.full(n, -1), np.full(n, -1)
    events = [(0, 0, 0, 0) for _ in range(0)]
    for first in range(n):
        if order.missing[first] == 0:  # let go by an edge, as all others are: what enters is compiled once
            order.missing[first] = 1
            _set(0, 0, n + first, 0, events, state)
    while events:
        now, _, i, stamp = heappop(events)
        if i >= n:
            _arrive(i - n, now, order, shared, state, start, events)
        elif stamp == state.stamp[i]:
            if shared.duration[i]:
                _leave(i, now, shared, state, events)
            end[i] = now
            if order.follower[i] >= 0:
                _arrive(order.follower[i], now, order, shared, state, start, events)
            for e in range(order.first[i], order.first[i + 1]):
                if order.lag[e]:
                    _set(now, order.lag[e], n + order.waiting[e], 0, events, state)
                else:
                    _arrive(order.waiting[e], now, order, shared, state, start, events)
    return start, end


def run_shared(program: Program, sharing: Sharing) -> Run:
    """Return when the operations of `program` run, slowed by what they share, as `run_events_of` does.

    Raises DeadlockError.
    """
    start, end = _run(_order(program), shared := _shared(program, sharing), _nothing(shared))
    if (end < 0).any():
        raise DeadlockError(waiting_cycle(program.graph, end >= 0))
    return Run(program, start, end)


def _order(program: Program) -> _Order:
    graph, n = program.graph, len(program)
    follows = graph.previous >= 0
    follower = np.full(n, -1)
    follower[graph.previous[follows]] = np.flatnonzero(follows)
    by_source = np.argsort(graph.source, kind="stable")
    return _Order(
        np.diff(graph.first) + follows, follower, np.searchsorted(graph.source[by_source], np.arange(n + 1)),
        np.repeat(np.arange(n), np.diff(graph.first))[by_source], program.lag[by_source],
    )  # fmt: skip


def _shared(program: Program, sharing: Sharing) -> _Shared:
    n, rank = len(program), program.graph.rank
    stream = program.stream if len(program.stream) else np.full(n, int(Stream.COMPUTE))
    slowdown = np.zeros((int(rank.max(initial=-1)) + 1, len(Stream), len(Stream)))
    every = max(1, len(sharing.own))
    for r in range(every):
        for (a, b), share in sharing.on(r).items():
            slowdown[r::every, a, b] = share
    on_links = sharing.links and len(program.first_link) > 0
    number = np.diff(program.first_link) if on_links else np.zeros(n, dtype=np.int64)
    links = int(program.links.max(initial=-1)) + 1 if on_links else 0
    meets = np.flatnonzero(slowdown.any(axis=(0, 1)) | slowdown.any(axis=(0, 2)))
    on_rank = np.flatnonzero(np.isin(stream, meets))
    owner = np.concatenate([np.repeat(np.arange(n), number), on_rank])
    place = np.concatenate([program.links if on_links else on_rank[:0], links + rank[on_rank]])
    by_owner = np.argsort(owner, kind="stable")
    first = np.searchsorted(owner[by_owner], np.arange(n + 1))
    return _Shared(rank, stream, program.duration, first, place[by_owner], owner[by_owner], links, slowdown)


def _nothing(shared: _Shared) -> _State:
    """Return the state in which nothing is under way."""
    n, nodes, ranks = len(shared.rank), len(shared.place), int(shared.rank.max(initial=-1)) + 1
    places = shared.links + ranks

    def zeros(*shape: int) -> Ints:
        return np.zeros(shape, dtype=np.int64)

    return _State(
        shared.duration.astype(float), np.ones(n), zeros(n), zeros(n), np.full(nodes, -1), np.full(nodes, -1),
        np.full(places, -1), np.full(places, -1), zeros(places), zeros(ranks, len(Stream)), zeros(n), zeros(2),
    )  # fmt: skip
