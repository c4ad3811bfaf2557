"""What is possible near a plan that is not: the smallest changes that keep every rule."""

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from math import log2
from typing import Any, NamedTuple

from sim.costs.inputs import check_served
from sim.engine.assembly import check_schedule
from sim.specs import Cluster, InputError, Model, Plan
from sim.specs.arguments import checked
from sim.specs.catalog import precisions
from sim.specs.rules import divisors
from sim.tuner.space import default_knobs

FREE = ("pp", "tp", "virtual_stages", "micro_batch", "cp", "ep")
"""Knobs that may change, beside the global batch, a precision that is not served and layers that are not to be split
evenly; all else stays as asked for."""

BESIDE = 4
"""Nearest values of each knob that are tried where two knobs must change."""


MOST_STAGES = 64
"""Pipeline stages beyond which layers are not split unevenly."""


class Possible(NamedTuple):
    """A plan that keeps the rules: what changes (knob to value), and how far that is, in doublings."""

    plan: Plan
    changes: Mapping[str, Any]
    distance: float

    @property
    def words(self) -> str:
        """The changes as text: `pp 4`, `tp 8, global batch 1024` or `chunks of 7 or 8 layers`."""
        return ", ".join(_word(name, value) for name, value in self.changes.items())


@checked
def nearest(model: Model, cluster: Cluster, plan: Plan, n: int = 3) -> list[Possible]:
    """Return up to `n` plans that keep every rule, those with the smallest change of `plan` first.

    One knob changes where that is enough, two where it is not. Of a plan with unequal stages nothing is near.
    """
    values = {} if plan.stages else _values(model, cluster, plan)
    single = [{}, *({name: value} for name, near in values.items() for value in near)] if values else []
    double = (
        dict(zip(names, both, strict=True))
        for names in combinations(values, 2)
        for both in product(*(values[name][:BESIDE] for name in names))
    )
    for changes in (single, double):
        whole = (with_layers(model, plan, each) for each in changes)
        ordered = sorted((_far(plan, each), i, each) for i, each in enumerate(whole))
        tried = ((far, each, changed(model, cluster, plan, each)) for far, _, each in ordered)
        found: list[Possible] = []
        for far, each, other in tried:
            if other and not any(less.changes.items() <= each.items() for less in found):
                found.append(Possible(other, each, far))
            if len(found) == n:
                break
        if found:
            return found
    return []


def changed(model: Model, cluster: Cluster, plan: Plan, changes: Mapping[str, Any]) -> Plan | None:
    """Return the plan with some knobs changed, or None if that breaks a rule, or the devices or its schedule's order
    cannot serve it."""
    try:
        other = plan.but(**changes)
        placed = other.on(model, cluster)
        check_served(placed.plan, cluster)
        check_schedule(placed)
    except InputError:
        return None
    return other


def with_layers(model: Model, plan: Plan, changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return changes of a plan and, where its chunks would not hold the model's layers, how many each holds then."""
    held = {name: changes.get(name, getattr(plan, name)) for name in ("pp", "virtual_stages")}
    chunks, given = held["pp"] * held["virtual_stages"], plan.stage_layers or ()
    if len(given) == chunks and sum(given) == model.layers:
        return changes
    split = chunk_layers(model.layers, chunks)
    return {**changes, "stage_layers": split or None} if split or given else changes


def chunk_layers(layers: int, chunks: int) -> tuple[int, ...]:
    """Return the most even layers of every chunk; nothing where all hold as many, or there are more chunks than layers.

    Longer chunks are in the middle: the first stage holds most microbatches and the last one the head.
    """
    least, more = divmod(layers, chunks)
    if not (least and more):
        return ()
    first = (chunks - more) // 2
    return tuple(least + (first <= i < first + more) for i in range(chunks))


def chunk_words(split: Sequence[int] | None) -> str:
    """Return the layers of chunks as text: `chunks of 7 or 8 layers`."""
    return f"chunks of {' or '.join(map(str, sorted(set(split))))} layers" if split else "as many layers in every chunk"


def _precisions(cluster: Cluster, plan: Plan) -> list[str]:
    """Return the precisions to take in place of the plan's; none where it is served."""

    def served(name: str) -> bool:
        try:
            check_served(plan.but(precision=name), cluster)
        except InputError:
            return False
        return True

    if "precision" in plan.derived or served(plan.precision):
        return []
    return [name for name in precisions if served(name)]


def _values(model: Model, cluster: Cluster, plan: Plan) -> dict[str, list[Any]]:
    """Return the other values of every knob, the nearest first; the batch is filled up to whole microbatches."""
    knobs = default_knobs(model, cluster) | {"cp": divisors(cluster.gpus), "pp": depths(model, cluster)}
    values: dict[str, Sequence[Any]] = {name: knobs[name] for name in FREE}
    values["precision"] = _precisions(cluster, plan)
    samples = plan.micro_batch * max(1, cluster.gpus // (plan.tp * plan.pp * plan.cp))
    whole = plan.global_batch // samples
    values["global_batch"] = [samples * k for k in (whole - 1, whole, whole + 1, plan.pp) if k > 0]
    return {
        name: sorted(dict.fromkeys(v for v in each if v != getattr(plan, name)), key=lambda v: _far(plan, {name: v}))
        for name, each in values.items()
    }


def depths(model: Model, cluster: Cluster) -> list[int]:
    """Return numbers of pipeline stages: those of a search, and powers of 2 that split the layers unevenly."""
    most = min(model.layers, cluster.gpus, MOST_STAGES)
    return sorted({*default_knobs(model, cluster)["pp"], *(2**k for k in range(most.bit_length()))})


def _far(plan: Plan, changes: Mapping[str, Any]) -> float:
    numbers = {name: value for name, value in changes.items() if name not in ("precision", "stage_layers")}
    split = float("stage_layers" in changes)  # as far as twice or half of a knob
    return split + sum(abs(log2(value / getattr(plan, name))) for name, value in numbers.items())


def _word(name: str, value: Any) -> str:
    return chunk_words(value) if name == "stage_layers" else f"{name.replace('_', ' ')} {value}"
