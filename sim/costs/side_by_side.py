"""What a pass and the copies to and from host memory beside it make of each other, in closed form.

Streams slow each other as in the contention model of four streams (`costs.contention`; Mist, arXiv 2503.19050). The
event engine lets the same copies run (`sim.engine.copies`).
"""

from collections.abc import Sequence
from typing import NamedTuple

from sim.costs.algebra import Expr, maximum, minimum, symbol
from sim.costs.overlap import Cover, outlasts

ROOM = 2
"""Layers of activations that are on the device in either direction, and layers of weights."""


class Pass(NamedTuple):
    """A pass over a chunk, in seconds: what it takes alone, how much of that are collectives that it waits for, how
    long others run beside it, how much of what it takes are those of them that outlast it, and the copies in either
    direction.

    ahead, before: layers whose copies to the device may be done before the pass begins where its rank has waited for a
    message, and where it follows another pass at once.
    """

    own: Expr
    inner: Expr = 0
    beside: Expr = 0
    exposed: Expr = 0
    h2d: Expr = 0
    d2h: Expr = 0
    ahead: Expr = ROOM
    before: Expr = ROOM


class Beside(NamedTuple):
    """What copies and a pass beside them make of each other, in seconds: how much longer the pass takes, and how much
    longer than the pass alone the copies to the device and those from it."""

    delay: Expr
    h2d: Expr
    d2h: Expr


def side_by_side(one: Pass) -> Beside:
    """Return how a pass and the copies beside it slow each other."""
    return _beside(one, _slower(one))


def one_after_other(passes: Sequence[Pass]) -> Beside:
    """Return it for passes that share no time but the host's link: each has its own collectives beside its own
    copies."""
    return _beside(Pass(*map(sum, zip(*passes, strict=True))), sum(_slower(one) for one in passes))


def _beside(one: Pass, slower: Expr) -> Beside:
    """Return it for a pass beside which other collectives take `slower` seconds longer.

    Copies start as a layer does, so that they run beside its compute first, and only what is left of them beside the
    collectives that it waits for, and then beside what outlasts these of others. Exact where copies slow either alike
    in both directions, and other collectives are spread evenly over the compute.
    """
    inner = minimum(one.inner, one.own)
    compute = maximum(one.own - inner - one.exposed, 1e-12)
    covered = minimum(1, one.beside / compute)
    by_d2h, by_h2d = symbol("h2d_by_d2h"), symbol("d2h_by_h2d")
    beside_compute, beside_inner = (
        [_Way.of(name, collective, share) for name in ("h2d", "d2h")] for collective, share in ((0, covered), (1, 0))
    )
    (h2d, to), (d2h, back) = zip((one.h2d, one.d2h), beside_compute, strict=True)
    # Each meets the other all the time, or as long as that one takes.
    h2d_met, d2h_met = h2d * (to.stretch + by_d2h), d2h * (back.stretch + by_h2d)
    first = _together(
        compute, beside_compute,
        minimum(h2d_met, h2d * to.stretch + d2h_met * by_d2h / (to.stretch + by_d2h)),
        minimum(d2h_met, d2h * back.stretch + h2d_met * by_h2d / (back.stretch + by_h2d)),
    )  # fmt: skip
    then = _after(first, inner, beside_inner)
    # A pass that takes longer hides more of the others' collectives, which copies slow.
    ran = Cover(compute + first.delay, inner + then.delay)
    more = outlasts(one.beside + slower, ran) - outlasts(one.beside, Cover(compute, inner))
    tail = maximum(0, one.exposed + symbol("overlap_dp") * more)
    last = _after(then, tail, [way._replace(slows=0) for way in beside_inner])
    return Beside(*(first.delay + then.delay + tail - one.exposed + late - last.delay for late in last))


def _after(before: Beside, own: Expr, ways: Sequence["_Way"]) -> Beside:
    """Return it for work of one kind that follows other work, and what is left of the copies beside that."""
    # What is left counts what the two directions take from each other already.
    left = (maximum(0, late - before.delay) for late in before[1:])
    return _together(own, ways, *(x * way.stretch for x, way in zip(left, ways, strict=True)))


def _slower(one: Pass) -> Expr:
    """Return by how many seconds copies slow the collectives beside a pass that it does not wait for."""
    slower = 0
    for way, copied in (("h2d", one.h2d), ("d2h", one.d2h)):
        by = slowed("collective", way)
        slower += minimum(one.beside, copied * _Way.of(way, 0, 1).stretch / (1 + by)) * by
    return slower


def _together(own: Expr, ways: Sequence["_Way"], h2d: Expr, d2h: Expr) -> Beside:
    """Return it for work of one kind and copies that start with it; h2d, d2h: how long they take beside it."""
    # Both copies run at first, then the longer one, then neither, until the work is done.
    a = sum(way.slows for way in ways) / 2
    shorter, longer = minimum(h2d, d2h), maximum(h2d, d2h)
    delay = minimum(
        2 * a * own,
        a * own + shorter * a / (1 + 2 * a),
        shorter * 2 * a / (1 + 2 * a) + (longer - shorter) * a / (1 + a),
    )
    end = own + delay
    # Copies that outlast the work are not slowed by it any more.
    late = (minimum(x, end + (x - end) / way.stretch) - own for x, way in zip((h2d, d2h), ways, strict=True))
    return Beside(delay, *late)


class _Way(NamedTuple):
    """A direction of copies: how many times longer they take beside a pass, and how much slower it is beside them."""

    stretch: Expr
    slows: Expr

    @classmethod
    def of(cls, name: str, inner: Expr, covered: Expr) -> "_Way":
        """Return it beside compute (`inner` 0), of which a share is `covered` by others' collectives, or beside
        collectives (`inner` 1)."""
        by_compute, by_collective = slowed(name, "compute"), slowed(name, "collective")
        alone = 1 - inner - covered
        speed = alone / (1 + by_compute) + inner / (1 + by_collective) + covered / (1 + by_compute + by_collective)
        return cls(1 / speed, (1 - inner) * slowed("compute", name) + inner * slowed("collective", name))


def slowed(stream: str, by: str) -> Expr:
    """Return how much slower a stream is beside another: measured, or as collectives and compute slow each other."""
    known = symbol("contention_known")
    return symbol(f"{stream}_by_{by}") + (1 - known) * symbol("overlap_slowdown")
