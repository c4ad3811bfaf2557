"""The cheapest way through the prices for a price of work, compiled: a dynamic program over steps and offers.

States at the begin of a step: nothing started (FRESH); nothing held, with the last checkpoint in some place, written by
who left (LEFT) or as the job was when it was taken off (TAKEN); an offer held (HELD); all work done when it was taken
off (ENDED), so that what is left of that step is not waited for. Their values are what was paid minus `worth` times the
steps that were done.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.engine.compiled import compiled, inner
from sim.market.offers import Floats

Ints = NDArray[np.int64]
Shorts = NDArray[np.int32]


class Ways(NamedTuple):
    """What the offers (N), in places (L), mean for a job in K steps of `length` s.

    `taken`, `kept` and `up` (K, N): USD of a second in the step in which a stay begins, and in others, and seconds
    that it can be held; `begins` (K, N): whether a stay can begin; `rate`, `place` (N,). `usd` (L + 1, L): of
    transfers, from nowhere last, as in `apart`, 1.0 where there is one. `lost` (K, L): whether somebody who begins
    there then may be taken off while he starts.
    """

    length: float
    taken: Floats
    kept: Floats
    up: Floats
    begins: NDArray[np.bool_]
    rate: Floats
    place: Ints
    usd: Floats
    apart: Floats
    lost: NDArray[np.bool_]
    home: int
    first_s: float
    again_s: float
    write_s: float
    transfer_s: float
    usd_per_s: float


class Told(NamedTuple):
    """The best way: what it pays, steps it does, offers held by step (K,), -1 for none."""

    usd: float
    steps: float
    held: Ints


class Values(NamedTuple):
    """Of every state at the begin of every step (K + 1, S), on the best way to it: what was paid, steps done.

    `source`: step times S plus state that it was reached from, -1 for none; `offer`: what was held on the way from it.
    """

    usd: Floats
    done: Floats
    source: Shorts
    offer: Shorts


@compiled(inline="always")
def _reach(v: Values, k: int, s: int, paid: float, work: float, source: int, offer: int, worth: float) -> None:
    """Reach a state, if this is the best way to it so far."""
    if paid - worth * work < v.usd[k, s] - worth * v.done[k, s]:
        v.usd[k, s], v.done[k, s], v.source[k, s], v.offer[k, s] = paid, work, source, offer


def best_way(w: Ways, worth: float) -> Told:
    """Return the way with the least of what is paid minus `worth` times the steps done, ended at any step."""
    again = np.array([w.first_s, w.again_s + w.write_s, w.again_s])
    waits = np.repeat(again, 2) + w.transfer_s * np.array([0.0, 1.0, 0.0, 1.0, 0.0, 1.0])
    return Told(*_best_way(w, worth, np.argsort(waits), waits))


@compiled()
def _best_way(w: Ways, worth: float, order: Ints, waits: Floats) -> tuple[float, float, Ints]:
    steps, count = w.taken.shape
    held0 = 1 + 2 * w.apart.shape[1]  # FRESH, LEFT by place, TAKEN by place, HELD by offer, ENDED
    shape = (steps + 1, held0 + count + 1)
    v = Values(
        np.full(shape, np.inf), np.zeros(shape), np.full(shape, -1, dtype=np.int32), np.full(shape, -1, dtype=np.int32)
    )
    v.usd[0, 0] = 0.0
    best_k, best_s, best = 0, 0, 0.0
    for k in range(steps + 1):
        for s in range(shape[1] - 1, -1, -1):  # offers first: whoever holds one may leave
            if v.usd[k, s] == np.inf:
                continue
            value = v.usd[k, s] - worth * v.done[k, s]
            if value < best:
                best_k, best_s, best = k, s, value
            if held0 <= s < held0 + count:
                left = 1 + w.place[s - held0]
                _reach(v, k, left, v.usd[k, s], v.done[k, s], k * shape[1] + s, -1, worth)
        if k < steps:
            _stay(w, v, k, worth)
            _start_all(w, v, k, worth, order, waits)
    return _told(v, best_k, best_s)


@compiled(inline="always")
def _stay(w: Ways, v: Values, k: int, worth: float) -> None:
    """Go on to the next step without beginning a stay."""
    places, count = w.apart.shape[1], len(w.rate)
    held0, idle = 1 + 2 * places, w.usd_per_s * w.length
    for s in range(held0 + count):
        if v.usd[k, s] == np.inf:
            continue
        here, paid, work = k * v.usd.shape[1] + s, v.usd[k, s] + idle, v.done[k, s]
        if s < held0:
            _reach(v, k + 1, s, paid, work, here, -1, worth)
            for to in range(places):  # begun there, and taken off before anything was done
                if w.lost[k, to]:
                    _reach(v, k + 1, 1 + places + to, paid + w.usd[_origin(w, s), to], work, here, -1, worth)
        else:
            n = s - held0
            up = w.up[k, n]
            paid += min(w.taken[k, n], w.kept[k, n]) * up
            to = s if up == w.length else 1 + places + w.place[n]
            work += w.rate[n] * up
            _reach(v, k + 1, to, paid, work, here, n, worth)
            _reach(v, k + 1, held0 + count, paid - w.usd_per_s * (w.length - up), work, here, n, worth)


@compiled(inline="always")
def _origin(w: Ways, s: int) -> int:
    """Return the place that a state without an offer starts from."""
    places = w.apart.shape[1]
    if s == 0:
        return w.home if w.home >= 0 else places
    return int((s - 1) % places)


@compiled(inline="always")
def _start_all(w: Ways, v: Values, k: int, worth: float, order: Ints, waits: Floats) -> None:
    """Begin stays at step `k`, each from the best state of a kind: fresh, left or taken, here or elsewhere.

    `order`: the kinds by what they lose, `waits` (6,): one that loses more is of use only if it is better otherwise.
    """
    places = w.apart.shape[1]
    chosen, value = np.full((places, 6), -1, dtype=np.int64), np.full((places, 6), np.inf)
    for s in range(1 + 2 * places):
        if v.usd[k, s] == np.inf:
            continue
        origin, paid = _origin(w, s), v.usd[k, s] - worth * v.done[k, s]
        for to in range(places):
            kind = (0 if s == 0 else 1 if s <= places else 2) * 2 + int(w.apart[origin, to])
            if paid + w.usd[origin, to] < value[to, kind]:
                value[to, kind], chosen[to, kind] = paid + w.usd[origin, to], s
    for n in range(len(w.rate)):
        if w.rate[n] == 0 or not w.begins[k, n]:
            continue
        to, least = w.place[n], np.inf
        for kind in order:
            if value[to, kind] < least:
                least = value[to, kind]
                _start(w, v, k, chosen[to, kind], n, waits[kind], worth)


@compiled(inline="always")
def _start(w: Ways, v: Values, k: int, s: int, n: int, wait: float, worth: float) -> None:
    """Begin a stay that trains after `wait` seconds."""
    places, to = w.apart.shape[1], w.place[n]
    held0 = 1 + 2 * places
    here = k * v.usd.shape[1] + s
    paid = v.usd[k, s] + w.usd[_origin(w, s), to]
    for at in range(k, len(w.taken)):
        up = w.up[at, n]
        price = w.taken[at, n] if at == k else min(w.taken[at, n], w.kept[at, n])
        paid += w.usd_per_s * w.length + price * up
        if wait < up:
            state = held0 + n if up == w.length else 1 + places + to
            work = v.done[k, s] + w.rate[n] * (up - wait)
            _reach(v, at + 1, state, paid, work, here, n, worth)
            _reach(v, at + 1, held0 + len(w.rate), paid - w.usd_per_s * (w.length - up), work, here, n, worth)
            return
        if up < w.length:
            return
        wait -= up


@inner()
def _told(v: Values, k: int, s: int) -> tuple[float, float, Ints]:
    """Follow a way back to its begin."""
    held = np.full(len(v.usd) - 1, -1, dtype=np.int64)
    usd, steps, states = v.usd[k, s], v.done[k, s], v.usd.shape[1]
    while v.source[k, s] >= 0:
        before, state = v.source[k, s] // states, v.source[k, s] % states
        for step in range(before, k):
            held[step] = v.offer[k, s]
        k, s = before, state
    return usd, steps, held
