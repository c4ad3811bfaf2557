"""How long ranks of a pipeline wait while it fills and drains, of orders without closed form.

The first rank can run only so many forwards before its first gradient is back from the last stage, as that of ZB-H1
does (arXiv 2401.10241, section 2.1); and while the last gradient goes down from its last chunk to its first one, it has
only so many backwards and weight gradients left. The last rank starts when a microbatch has come down to it, and its
last gradient goes back to the first one. How many actions there are between, an order says; how long they take, the
times of a chunk.
"""

from collections.abc import Mapping
from typing import NamedTuple

from sim.costs.algebra import Expr, maximum, minimum, symbol
from sim.schedules import Action, Kind, Schedule, Times

BACKWARD = (Kind.B, Kind.I)


class Ramp(NamedTuple):
    """Actions on one chunk of a rank and on all its others, as an order counts them.

    forwards: of the first rank before its first backward, on its first chunk and on others; inputs, weights: of its
    backwards (a whole one is one of each) between that of its last chunk and that of its first one, both of the last
    microbatch; late: weight gradients of the last rank after its last backward, on chunks but the last one and on that.
    """

    forwards_first: Expr = 0
    forwards_other: Expr = 0
    inputs_first: Expr = 0
    inputs_other: Expr = 0
    weights_first: Expr = 0
    weights_other: Expr = 0
    late_other: Expr = 0
    late_last: Expr = 0

    @classmethod
    def of(cls, order: Schedule) -> "Ramp":
        """Count them in an order whose chunks take microbatches in turn."""
        first, last = order.actions[0], order.actions[-1]
        top = max(s for s, rank in enumerate(order.rank_of) if rank == 0)
        begin, end = _backwards(first)[0], max(_backwards(first, 0))
        between = first[max(_backwards(first, top)) + 1 : end]
        late = _number(last[max(_backwards(last)) + 1 :], (Kind.W,), order.depth - 1)
        parts = (first[:begin], (Kind.F,)), (between, BACKWARD), (between, (Kind.W, Kind.B))
        return cls(*(n for some, kinds in parts for n in _number(some, kinds, 0)), *reversed(late))


def _backwards(actions: tuple[Action, ...], stage: int | None = None) -> list[int]:
    """Return where a rank's backwards are, or those of one stage."""
    return [i for i, a in enumerate(actions) if a.kind in BACKWARD and stage in (None, a.stage)]


def _number(actions: tuple[Action, ...], kinds: tuple[Kind, ...], stage: int) -> tuple[int, int]:
    """Return how many actions of some kinds there are on a stage, and on all others."""
    stages = [action.stage for action in actions if action.kind in kinds]
    return stages.count(stage), len(stages) - stages.count(stage)


RAMP = tuple(f"ramp_{name}" for name in Ramp._fields)
"""Names of the symbols that stand for an order's."""


class Ways:
    """Lower bounds by ways through an order, in seconds; t: of passes; e: outputs of the stage model, of which messages
    and what of a pass only its own rank waits for are read."""

    def __init__(self, t: Times, e: Mapping[str, Expr], v_shaped: bool) -> None:
        self.t, self.n, self.v_shaped = t, Ramp(*map(symbol, RAMP)), v_shaped
        self.sweep, self.dgrad = t.ranks - 1, t.backward - t.weight
        # What a message of no length takes: it may leave before a pass is done, and meet one that has begun.
        self.forth, self.back = -e["ahead_forward"], -e["ahead_backward"] - e["late_backward"]
        self.down = t.forward + e["send"] + self.forth
        self.up = self.dgrad + e["send"] + self.back

    def idle(self) -> Expr:
        """Return what the first rank waits between its first action and its last."""
        t, n = self.t, self.n
        first = t.chunks * (self.sweep * self.down + t.forward) + t.embedding_forward + t.head_forward
        before = (n.forwards_first + n.forwards_other) * t.forward + n.forwards_first * t.embedding_forward
        beside = (n.inputs_first + n.inputs_other) * self.dgrad + (n.weights_first + n.weights_other) * t.weight
        beside += n.inputs_first * (t.embedding_backward - t.embedding_weight) + n.weights_first * t.embedding_weight
        if self.v_shaped:  # both ends are here
            before += n.forwards_other * t.head_forward
            beside += n.weights_other * t.head_weight
            last = 2 * self.sweep * self.up
        else:  # between the last rank and the first messages may be short
            turns = t.chunks - 1
            first += self.sweep * self.up + t.head_backward - t.head_weight + turns * self.forth
            last = turns * (self.sweep * self.up + self.dgrad + self.back) - self.dgrad
        return maximum(0, first - before) + maximum(0, last - beside)

    def through_last(self) -> Expr:
        """Return the way down to the last rank, through its work, and back to the first one's last weight gradient."""
        t, n = self.t, self.n
        work = t.microbatches * (t.chunks * t.chunk + (0 if self.v_shaped else t.head))
        late = (n.late_other + n.late_last) * t.weight + (0 if self.v_shaped else n.late_last * t.head_weight)
        ends = t.embedding + t.weight
        return minimum(1, self.sweep) * (self.sweep * (self.down + self.up) + ends + work - late)
