"""Why a plan stands where it stands: where its time goes, what limits it, what each knob would cost."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sim.engine.step import Step
from sim.specs import Plan
from sim.specs.plan import RECOMPUTE
from sim.tuner.score import Scores
from sim.tuner.space import PRECISIONS, SHAPE_KNOBS, SWITCHES, Space
from sim.units import gigabytes, percent, seconds

TERM_NAMES = {
    "compute": "computing",
    "recompute": "recomputing activations",
    "tp": "tensor-parallel communication",
    "dp": "data-parallel communication",
    "pp": "pipeline messages",
    "bubble": "idle in the pipeline",
    "optimizer": "the optimizer",
    "cp": "context-parallel communication",
    "ep": "expert-parallel communication",
    "offload": "waiting for host copies",
    "straggler": "waiting for the slowest device",
    "other": "launching kernels and the tied embedding's reduction",
    "learned": "learned from executed plans",
}
WORDS = {
    "virtual_stages": "number of virtual stages",
    "micro_batch": "micro-batch",
    "zero": "ZeRO stage",
    "sequence_parallel": "setting of sequence parallelism",
    "fsdp_shard": "number of ranks that share a copy",
    "tempo": "setting of Tempo's layers",
}
WORTH_NAMING = 0.01
WORTH_NAMING_OF_MOST = 0.1


class Outcome(NamedTuple):
    """What an engine says of one plan: seconds a step, allocated bytes on the fullest rank, whether it fits."""

    plan: Plan
    step_time_s: float
    peak_memory_bytes: float
    fits: bool


def explain(
    step: Step,
    space: Space,
    scores: Scores,
    run: Callable[[int], Outcome],
    objective: str = "step_time",
    unequal: bool = False,
) -> tuple[str, ...]:
    """Return sentences: the time by cause, the memory margin, the best plan with each knob set otherwise.

    `run` gives the engine's outcome of a configuration of the space by its flat index. unequal: whether plans of
    unequal stages are ranked too, which the space does not hold.
    """
    return (_time(step), _memory(step), *_knobs(step, space, scores, run, objective == "memory_headroom", unequal))


def _time(step: Step) -> str:
    shares = {k: v / step.step_time_s for k, v in step.breakdown_s.items()}
    named = [
        f"{percent(share)} {TERM_NAMES[k]}"
        for k, share in sorted(shares.items(), key=lambda i: -i[1])
        if share >= WORTH_NAMING
    ]
    return f"{seconds(step.step_time_s)} a step: " + ", ".join(named)


def _memory(step: Step) -> str:
    margin = step.cluster.memory_bytes - step.device_memory_bytes
    parts = sorted(step.fullest.composition().items(), key=lambda item: -item[1])
    most = " and ".join(f"{name} {gigabytes(size)}" for name, size in parts[:2])
    side = f"{gigabytes(margin)} free" if margin >= 0 else f"{gigabytes(-margin)} over"
    where = f"pipeline rank {step.fullest.rank} is fullest, " if step.plan.pp > 1 else "every device: "
    return f"{where}{side}; {most}"


def against(step: Step, other: Step, contended_s: float = 0.0) -> str:
    """Return how much longer the next plan `other` takes than `step`, and the causes that make most of it.

    By the engine of both steps: the order of a search follows the event engine, which may have close plans the other
    way round. contended_s: how much longer `other` takes there, said where that is so.
    """
    change = {k: other.breakdown_s[k] - step.breakdown_s[k] for k in step.breakdown_s}
    most = max(map(abs, change.values()))
    named = (k for k, v in change.items() if abs(v) > WORTH_NAMING_OF_MOST * most)
    largest = sorted(named, key=lambda k: -abs(change[k]))
    whole = other.step_time_s - step.step_time_s
    causes = ", ".join(f"{_signed(change[k])} {TERM_NAMES.get(k, k)}" for k in largest)
    share = percent(abs(whole) / step.step_time_s)
    turned = f"; with contention, which ranks, {_signed(contended_s)}" if whole < 0 < contended_s else ""
    size = f"{_signed(whole)} ({'+' if whole >= 0 else '−'}{share})"
    return f"the next plan takes {size}: {causes or 'nothing of note'}{turned}"


def _of_equal_stages(
    step: Step, space: Space, scores: Scores, run: Callable[[int], Outcome], by_memory: bool
) -> list[str]:
    """Return what the best plan of equal stages loses against one of unequal stages."""
    fitting = np.where(space.allowed & scores.fits, scores.step_time_s, np.inf)
    if not np.isfinite(fitting).any():
        return [f"no plan of equal stages {'fits the memory' if space.allowed.any() else 'is legal'}"]
    alike = "equal stages" if len(step.plan.stages) > 1 else "all layers alike"
    return [f"best with {alike}: {_change(step, run(int(fitting.argmin())), by_memory)}"]


def _signed(change_s: float) -> str:
    return ("+" if change_s >= 0 else "−") + seconds(abs(change_s))


def _knobs(
    step: Step, space: Space, scores: Scores, run: Callable[[int], Outcome], by_memory: bool, unequal: bool
) -> list[str]:
    """Return, per knob, the best feasible plan of the space with any other value of it, and what it loses."""
    plan = step.plan
    if plan.stages:
        return _of_equal_stages(step, space, scores, run, by_memory)
    lines, also, stages = [], *(("equal stages and ", " with equal stages") if unequal else ("", ""))
    for knob in (*SHAPE_KNOBS, "precision", "tempo", *SWITCHES):
        value = _code(plan, knob)
        words = WORDS.get(knob, knob)
        other = np.broadcast_to(_axis(knob, space) != value, scores.step_time_s.shape) & space.allowed
        if not other.any():
            continue
        key = scores.peak_memory_bytes if by_memory else scores.step_time_s
        fitting = np.where(other & scores.fits, key, np.inf)
        flat = int(fitting.argmin())
        if np.isfinite(fitting.flat[flat]):
            rival = run(flat)
            named = value_words("all" if getattr(rival.plan, knob) is None else getattr(rival.plan, knob))
            lines.append(f"best with {also}another {words} ({named}): {_change(step, rival, by_memory)}")
        else:
            lines.append(f"no other {words} fits the memory{stages}")
    return lines


def _code(plan: Plan, knob: str) -> int:
    """Return a knob's value as a space has it."""
    value = getattr(plan, knob)
    named = {"recompute": RECOMPUTE, "precision": PRECISIONS}
    return named[knob].index(value) if knob in named else int(value or 0)


def _change(step: Step, rival: Outcome, by_memory: bool) -> str:
    if by_memory:
        more = rival.peak_memory_bytes - step.peak_memory_bytes
        return f"{'+' if more >= 0 else '−'}{gigabytes(abs(more))}"
    change = rival.step_time_s / step.step_time_s - 1
    return f"{'+' if change >= 0 else '−'}{percent(abs(change))} time"


def _axis(knob: str, space: Space) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    if knob in SWITCHES:
        shape = [1, 1, 1, 1]
        shape[1 + SWITCHES.index(knob)] = -1
        return np.asarray(getattr(space, knob)).reshape(shape)
    return np.asarray(space.rows[knob])[:, None, None, None]


def value_words(value: object) -> str:
    """Return a knob's value as a reader says it."""
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)
