"""What keeps a plan from being faster: memory, the batch, what must divide what, or nothing but time."""

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, Literal, NamedTuple

from sim.engine.step import Step, memory_sigma, simulate
from sim.specs import InputError, StagePlan
from sim.specs.arguments import checked
from sim.specs.plan import RECOMPUTE
from sim.tuner.explain import TERM_NAMES, WORDS, value_words
from sim.units import gigabytes, percent

WORTH = 0.005
"""Relative time under which a change is no gain."""

GROWING = ("tp", "pp", "virtual_stages", "micro_batch")
BATCH = ("plan.micro_batch", "plan.global_batch", "plan.dp")


class Binding(NamedTuple):
    """A constraint that binds, and the sentence that says how."""

    kind: Literal["memory", "batch", "divisibility", "time"]
    text: str


@checked
def binding(step: Step) -> tuple[Binding, ...]:
    """Return what binds a plan, judged by plans that differ from it in one knob, simulated.

    Memory binds where one of them is faster and does not fit. A rule binds where half of a knob is slower, and twice as
    much of it not legal. Where neither does, only the time that the work takes is left.
    """
    found = _of_stages(step) if step.plan.stages else [*_memory(step), *_rules(step)]
    if found:
        return tuple(found)
    cause, spent = max(step.breakdown_s.items(), key=lambda item: item[1])
    share = percent(spent / step.step_time_s)
    return (Binding("time", f"neither memory nor a rule binds; {share} of the time is {TERM_NAMES.get(cause, cause)}"),)


def lacking_bytes(step: Step) -> float:
    """Return the device memory that the fullest rank lacks (negative: room).

    The upper end of the 80 % interval must fit, which is what the search asks.
    """
    _, high = step.profile.interval80(step.device_memory_bytes, memory_sigma(step.profile))
    return float(high - step.cluster.memory_bytes)


def _other(step: Step, **changes: Any) -> Step | InputError:
    try:
        return simulate(step.model, step.cluster, step.plan.but(**changes))
    except InputError as error:
        return error


def _memory(step: Step) -> list[Binding]:
    """Return, for every knob, the fastest plan with another value that is faster and does not fit."""
    found: dict[str, tuple[float, str]] = {}
    for knob, value in _larger(step):
        other = _other(step, **{knob: value})
        if isinstance(other, Step) and lacking_bytes(other) > 0:
            less = 1 - other.step_time_s / step.step_time_s
            where = f"pipeline rank {other.fullest.rank}" if other.plan.pp > 1 else "every device"
            lacks = f"{where} lacks {gigabytes(lacking_bytes(other))}"
            before = value_words(getattr(step.plan, knob))
            text = (
                f"{WORDS.get(knob, knob)} {value_words(value)} instead of {before}: −{percent(less)} time, but {lacks}"
            )
            found[knob] = max(found.get(knob, (WORTH, "")), (less, text))
    told = [text for _, text in sorted(found.values(), reverse=True) if text]
    return [Binding("memory", "memory binds: " + "; ".join(told))] if told else []


def _of_stages(step: Step) -> list[Binding]:
    """Return which of unequal stages could not do with a layer less of recompute, or an eighth less on the host."""
    stages, bound = step.plan.stages, []
    for s, own in enumerate(stages):
        for less in _less(own):
            other = _other(step, stages=(*stages[:s], less, *stages[s + 1 :]))
            if isinstance(other, Step) and lacking_bytes(other) > 0:
                bound.append(str(s))
                break
    if not bound:
        return []
    named = f"stage{'s' * (len(bound) > 1)} {', '.join(bound)}"
    text = f"memory binds on {named} of {len(stages)}: less recompute or offload there does not fit"
    return [Binding("memory", text)]


def _less(own: StagePlan) -> Iterator[StagePlan]:
    """Yield the stage with a layer less that recomputes, and with an eighth less of what is on the host."""
    again = own.recompute_layers or own.layers
    if own.recompute != "none" and again > 1:
        yield replace(own, recompute_layers=again - 1)
    for each in fields(own.offload):
        share = getattr(own.offload, each.name)
        if share > 0:
            yield replace(own, offload=replace(own.offload, **{each.name: max(0.0, share - 0.125)}))


def _larger(step: Step) -> list[tuple[str, Any]]:
    """Return single changes that may save time and take memory."""
    plan = step.plan
    changes: list[tuple[str, Any]] = [("recompute", kind) for kind in RECOMPUTE[: RECOMPUTE.index(plan.recompute)]]
    changes += [("zero", zero) for zero in range(plan.zero)]
    changes += [("micro_batch", 2 * plan.micro_batch), *([("tempo", False)] if plan.tempo else [])]
    changes += [(knob, getattr(plan, knob) // 2) for knob in ("tp", "pp") if getattr(plan, knob) % 2 == 0]
    return changes


def _rules(step: Step) -> list[Binding]:
    """Return the rules that end a knob where more of it goes on helping: neither two nor three times as much is legal,
    and half of it is slower."""
    found = []
    for knob in GROWING:
        value = getattr(step.plan, knob)
        refused = [_refusal(step, knob, times * value) for times in (2, 3)]
        if value % 2 or refused[0] is None or refused[1] is None:
            continue
        half = _other(step, **{knob: value // 2})
        if isinstance(half, Step) and half.step_time_s > step.step_time_s * (1 + WORTH):
            rule = refused[0]
            kind: Literal["batch", "divisibility"] = "batch" if rule.path in BATCH else "divisibility"
            more = percent(half.step_time_s / step.step_time_s - 1)
            text = (
                f"{WORDS.get(knob, knob)} {value // 2} instead of {value}: +{more} time, and {2 * value} is not legal"
            )
            found.append(Binding(kind, f"{kind} binds: {text} ({rule.path.removeprefix('plan.')}: {rule.allowed})"))
    return found


def _refusal(step: Step, knob: str, value: int) -> InputError | None:
    """Return the first rule that another value of a knob breaks."""
    try:
        step.plan.but(**{knob: value}).on(step.model, step.cluster)
    except InputError as error:
        return error
    return None
