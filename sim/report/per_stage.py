"""What a plan says of its stages, short enough for a cell: their values in order, `13x6 12 10`."""

from collections.abc import Iterable
from dataclasses import fields
from itertools import groupby
from typing import Any

from sim.specs import Offload, Plan
from sim.tuner.explain import value_words

HOSTED = tuple(each.name for each in fields(Offload))
"""What a stage may keep a share of in host memory."""


def runs(values: Iterable[object]) -> str:
    """Return values in order, those that repeat with how often: `13x6 12 10` is six of 13, one of 12, one of 10."""
    counted = ((value_words(value), len(list(same))) for value, same in groupby(values))
    return " ".join(f"{value}x{n}" if n > 1 else value for value, n in counted)


def of_stages(plan: Plan, name: str) -> Any:
    """Return a plan's value, or the `runs` of those of its stages where they are not all the same."""
    values = [getattr(plan.at(stage), name) for stage in range(len(plan.stages) or 1)]
    return values[0] if len(set(values)) == 1 else runs(values)


def recomputing(plan: Plan) -> str:
    """Return which layers recompute: `full` (all of them), `full 3` (3 of every chunk), of unequal stages
    `full 5, selective 8 0x3` (all operations of 5 layers of the first stage, some of 8 of the second, no other)."""
    if not plan.stages:
        return f"{plan.recompute} {plan.recompute_layers}" if plan.recompute_layers else plan.recompute
    counts = [0 if own.recompute == "none" else own.recompute_layers or own.layers for own in plan.stages]
    kinds = [own.recompute for own, n in zip(plan.stages, counts, strict=True) if n]
    if len(set(kinds)) < 2 and counts in ([0] * len(counts), [own.layers for own in plan.stages]):
        return kinds[0] if kinds else "none"
    parts: list[tuple[str, list[int]]] = [(kinds[0], [])]
    for own, n in zip(plan.stages, counts, strict=True):
        if n and own.recompute != parts[-1][0]:
            parts.append((own.recompute, []))
        parts[-1][1].append(n)
    return ", ".join(f"{kind} {runs(held)}" for kind, held in parts)


def on_host(plan: Plan, what: str) -> str:
    """Return the percentage of `what` (of `HOSTED`) that is kept in host memory, of unequal stages their `runs`."""
    shares = [f"{100 * getattr(own.offload, what):g}" for own in plan.stages or (plan,)]
    return shares[0] if len(set(shares)) == 1 else runs(shares)
