"""Reductions of one step beside the passes of the next, as an order without flush has them (2BW, arXiv 2006.09503)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.costs.algebra import Expr, ceiling, maximum, minimum, symbol
from sim.costs.overlap import COVERED, Cover, covers, slowdowns
from sim.engine.graph import Graph
from sim.schedules import Kind, Times

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Delayed:
    """What ranks reduce beside their actions, all in seconds.

    layered[rank]: what begins layer by layer in the last backward before an update, of which the share
    `beside_layers[rank]` has a layer of it to run beside; after[rank]: what begins after it. takes[i]: action i alone;
    hides[i]: reductions that run beside it while it runs; slows[i]: by how much it takes longer beside as many;
    joins[i]: it ends only when reductions of its own have, which queue behind these.
    messages: what a rank waits for messages from one microbatch to the next where none is slower than the others.
    """

    layered: Floats
    beside_layers: Floats
    after: Floats
    takes: Floats
    hides: Floats
    slows: Floats
    messages: float
    joins: NDArray[np.bool_]

    def longer(self, graph: Graph) -> Floats:
        """Return by how many seconds each action takes longer: beside reductions, or an update as it waits for those of
        the step before, which go on while its rank waits for the slowest one or for messages."""
        found = np.zeros(len(graph))
        edges = [*graph.first_of_rank.tolist(), len(graph)]
        each = [np.flatnonzero(graph.kind[a:b] == Kind.OPTIMIZER) + a for a, b in pairwise(edges)]
        left = np.zeros((len(each), len(each[0])))
        reach = np.zeros(len(each[0]) + 1)
        for rank in np.flatnonzero(self.layered + self.after)[::-1].tolist():  # backwards come from the last rank
            begin, rest = edges[rank], 0.0
            for n, update in enumerate(each[rank].tolist()):
                ran, left[rank, n], reach[n] = self._drained(found, slice(begin, update), rest, reach[n])
                rest, begin = self._begun(found, rank, update - 1, ran), update
            reach[-1] = self._drained(found, slice(begin, edges[rank + 1]), rest, reach[-1])[2]
        done = np.append(0, np.cumsum(self.takes + found))
        busy = np.array([np.diff(done[own], prepend=done[a]) for own, a in zip(each, edges, strict=False)])
        waits = self.messages * np.bincount(np.digitize(np.flatnonzero(graph.kind[: edges[1]] == Kind.F), each[0]))
        pace = np.maximum(busy.max(axis=0), busy.mean(axis=0) + waits[: len(each[0])])
        found[np.array(each)] += np.maximum(0, left - (pace - busy))
        return found

    def _drained(self, found: Floats, some: slice, rest: float, reach: float) -> tuple[float, float, float]:
        """Run the rest of reductions beside actions; return the seconds of them that ran beside the last one, of which
        no others can take its place, what is left, and how long all of that takes.

        reach: how long it takes a later rank, for whose backwards this one's wait: what `joins` waits meanwhile.
        """
        hides = self.hides[some]
        ran = np.clip(rest - np.cumsum(hides) + hides, 0, hides)
        left, first = max(0.0, rest - float(hides.sum())), np.flatnonzero(self.joins[some])[:1] + some.start
        if len(first):
            ran[first[0] + 1 - some.start :] = 0
            left, waits = 0.0, max(0.0, rest - float(ran.sum()))
            own = float(self.takes[some].sum())
            found[first] += max(0.0, own + waits - max(own, reach))
            reach = max(own + waits, reach)
        found[some] += self.slows[some] * ran / np.maximum(hides, 1e-12)
        return float(ran[-1]), left, reach

    def _begun(self, found: Floats, rank: int, last: int, before: float) -> float:
        """Run what begins beside the last backward as far as it can; return what is left of it and of all after it."""
        share = self.beside_layers[rank]
        ran = min(share * self.layered[rank], max(0.0, share * self.hides[last] - before))
        found[last] += self.slows[last] * ran / max(self.hides[last], 1e-12)
        return float(self.layered[rank] + self.after[rank] - ran)


def beside_copies(
    hides: Floats, slows: Floats, takes: Floats, copies: Floats, slowed: Sequence[float], slow: Sequence[float]
) -> tuple[Floats, Floats]:
    """Return what actions hide of reductions, and how much slower these make them, where copies run beside both.

    copies: seconds of either direction, [way, ...]; slowed: how much slower it is beside collectives, slow: how much
    slower these are beside it, [way]. An action that waits for a copy takes as long as that does beside reductions.
    """
    longest = takes + slows
    for way, by in zip(copies, slowed, strict=True):
        longest = np.maximum(longest, way * (1 + by))
    hides, slows = hides + longest - takes - slows, longest - takes
    for way, by, other in zip(copies, slowed, slow, strict=True):
        share = np.minimum(1, way * (1 + by) / np.maximum(longest, 1e-12))
        hides = hides * (1 - share * other / (1 + other))
    return hides, slows


class Slower(NamedTuple):
    """Seconds that a rank takes longer in a step beside the reductions of the one before: in the last backward before
    its update, in the update and the passes after it, and as the next update waits for what is left."""

    last: Expr
    then: Expr
    waits: Expr


def least_slower(
    e: Mapping[str, Expr], place: str, forwards: Expr | None = None, backwards: Expr | None = None
) -> Slower:
    """Return the least of it, as `Delayed` has it, beside so many passes after an update (left out: all of a step).

    e: outputs of the stage model.
    """
    ends = ["embedding_"] * (place in ("first", "only")) + ["head_"] * (place in ("last", "only"))
    times = {name: e[name] + sum(e.get(f"{end}{name}", 0) for end in ends) for name in COVERED}
    compute, collective = slowdowns()

    def both(cover: Cover, *copied: str) -> tuple[Expr, Expr]:
        waits = sum(e.get(name, 0) for name in copied)
        own = cover.compute - waits
        hides = own * (1 + compute) / (1 + collective) + cover.inner + waits
        return maximum(hides, 1e-12), compute * own + (1 - symbol("dp_apart")) * cover.inner

    forward, backward = covers(times)
    f, f_slower = both(forward, "forward_offload")
    b, b_slower = both(backward, "backward_offload")
    u, u_slower = both(Cover(e[f"optimizer_{place}"], 0), f"optimizer_offload_{place}")
    layered, share = e[f"delayed_{place}"], 1 - 1 / maximum(e["layers"], 1)
    last = share * minimum(layered, b)
    left = layered + e[f"after_{place}"] - last
    updating = minimum(left, u)
    passes = symbol("microbatches") * (f + b) - last
    if forwards is not None:
        passes = minimum(passes, forwards * f + backwards * b)
    passing = minimum(left - updating, passes)
    # Forwards come first: where they hide more at less, a part of a turn does.
    rate = (f_slower + b_slower) / (f + b)
    spared = minimum(passing, f) * maximum(0, rate - f_slower / f)
    return Slower(last * b_slower / b, updating * u_slower / u + passing * rate - spared, left - updating - passing)


def delayed_ways(t: Times, e: Mapping[str, Expr], loop: Expr) -> list[Expr]:
    """Return ways through the last backwards of a step from the last rank to the first, each slowed by reductions of
    its own rank, the first one's update, and `loop`s of as many microbatches as ranks or turns of one rank; seconds.

    t: times for a bound; e: outputs of the stage model; loop: seconds of a microbatch's way there and back.
    """
    pp, m = t.ranks, t.microbatches
    loops = -ceiling(1e-3 - m / pp)
    own = (loops, t.chunk + minimum(0, t.embedding), m - pp), (1, t.chunk + t.head, 0)
    back = least_slower(e, "last").last + (pp - 2) * least_slower(e, "middle").last
    found = []
    for number, turn, further in own:
        first = least_slower(e, "first", further + 1, further)
        update = first.last + first.then + e["reduce_first"] + e["optimizer_first"]
        found.append(number * loop + (m - number * pp) * turn + back + update)
    return found
