"""What would make a plan fit: single changes of it, simulated, by what they save and what they cost."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from sim.engine.step import Engine, Step, simulate
from sim.specs import InputError, Model, Plan
from sim.specs.arguments import checked
from sim.specs.plan import RECOMPUTE
from sim.specs.resized import resized


class Fix(NamedTuple):
    """One change: what changes, device memory saved (B, negative: more), and the step's relative extra time."""

    change: str
    step: Step
    saved_bytes: float
    slower: float


@checked
def fixes(step: Step) -> list[Fix]:
    """Return the changes that save memory, by run level and noise of the step: those that fit first, then by extra
    time. Whatever engine ran the step, the path engine runs them: memory is the same, and events take long."""
    found = []
    changes = _changes(step)
    before = _likewise(step, step.model, step.plan, "path") if step.contention and changes else step
    for change, values in changes:
        try:
            other = _likewise(step, step.model, step.plan.but(**values), "path")
        except InputError:
            continue  # this change breaks a rule on this model or cluster
        saved = step.device_memory_bytes - other.device_memory_bytes
        if saved > 0:
            found.append(Fix(change, other, saved, other.step_time_s / before.step_time_s - 1))
    return sorted(found, key=lambda f: (f.step.fits == "no", f.slower))


@checked
def largest(step: Step, name: str, values: Sequence[int]) -> Step | None:
    """Return the step with the largest of the ascending `values` that fits for sure, or None where none does.

    name: a dimension of the model (seq, layers, hidden ...) or a knob of the plan. Memory is taken to grow with it;
    values that break a rule are left out.

    Raises:
        InputError: neither the model nor the plan has such a number.
    """
    of_model = name in {f.name for f in fields(Model)}
    known = of_model or name in {f.name for f in fields(Plan)}
    if not known or isinstance(getattr(step.model if of_model else step.plan, name), str | bool | tuple):
        raise InputError("name", name, "a dimension of the model or a knob of the plan that is a number")

    engine: Engine = "events" if step.contention else "path"
    found, left = None, list(values)
    while left:
        middle = len(left) // 2
        change = {name: left[middle]}
        try:
            model = resized(step.model, change) if of_model else step.model
            other = _likewise(step, model, step.plan if of_model else step.plan.but(**change), engine)
        except InputError:
            del left[middle]  # it says nothing of those beside it
            continue
        if other.fits == "yes":
            found, left = other, left[middle + 1 :]
        else:
            left = left[:middle]
    return found


def _likewise(step: Step, model: Model, plan: Plan, engine: Engine) -> Step:
    """Return another step on the cluster, with the run level and noise of this one; raises InputError."""
    return simulate(model, step.cluster, plan, engine, step.level, step.noise)


def _changes(step: Step) -> list[tuple[str, dict[str, Any]]]:
    plan = step.plan
    changes: list[tuple[str, dict[str, Any]]] = []
    for recompute in RECOMPUTE[RECOMPUTE.index(plan.recompute) + 1 :]:
        changes.append((f"recompute {plan.recompute} → {recompute}", {"recompute": recompute}))
    if plan.micro_batch > 1:
        half = plan.micro_batch // 2
        changes.append((f"micro-batch {plan.micro_batch} → {half}", {"micro_batch": half}))
        changes.append((f"micro-batch {plan.micro_batch} → 1", {"micro_batch": 1}))
    for zero in range(plan.zero + 1, 4):
        changes.append((f"ZeRO-{plan.zero} → ZeRO-{zero}", {"zero": zero}))
    changes.append((f"pp {plan.pp} → {2 * plan.pp}", {"pp": 2 * plan.pp}))
    changes.append((f"tp {plan.tp} → {2 * plan.tp}", {"tp": 2 * plan.tp}))
    if plan.tp > 1 and not plan.sequence_parallel:
        changes.append(("sequence parallelism on", {"sequence_parallel": True}))
    if not plan.tempo:
        changes.append(("Tempo's layers on", {"tempo": True}))
    unique = {str(values): (text, values) for text, values in changes}
    return list(unique.values())
