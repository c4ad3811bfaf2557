"""Backwards in two halves and whole again: B as I and W (arXiv 2401.10241, section 2)."""

from collections.abc import Callable
from dataclasses import replace

from sim.schedules.ir import Action, Kind, Schedule

Rewrite = Callable[[Action, Action | None], tuple[Action, ...]]


def split_backward(order: Schedule) -> Schedule:
    """Return the order with an I and, right after it, a W in place of every B.

    Other ranks then wait for I alone. The B of a fused pair stays whole: the pair runs as one.
    """

    def halves(action: Action, _: Action | None) -> tuple[Action, ...]:
        return (action._replace(kind=Kind.I), action._replace(kind=Kind.W)) if action.kind is Kind.B else (action,)

    return _rewritten(order, halves)


def merge_backward(order: Schedule) -> Schedule:
    """Return the order with a B in place of every I that its own W follows directly (as PyTorch's `_merge_bw`)."""

    def whole(action: Action, after: Action | None) -> tuple[Action, ...]:
        if action.kind is Kind.I and after == action._replace(kind=Kind.W):
            return (action._replace(kind=Kind.B),)
        return (action,)

    return _rewritten(order, whole)


def _rewritten(order: Schedule, rewrite: Rewrite) -> Schedule:
    """Return the order with every action rewritten by itself and the one after it; fused pairs stay as they are.

    An I that became a B has used up its W.
    """
    actions, fused = [], []
    for rank, pairs in zip(order.actions, map(set, order.fused), strict=True):
        out: list[Action] = []
        kept: list[int] = []
        i = 0
        while i < len(rank):
            if i in pairs:
                kept.append(len(out))
                out += rank[i : i + 2]
                i += 2
                continue
            new = rewrite(rank[i], rank[i + 1] if i + 1 < len(rank) else None)
            out += new
            i += 2 if rank[i].kind is Kind.I and new[0].kind is Kind.B else 1
        actions.append(tuple(out))
        fused.append(tuple(kept))
    return replace(order, actions=tuple(actions), fused=tuple(fused))
