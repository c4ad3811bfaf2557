"""The plans between two objectives: what no other plan beats in both."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.engine.step import simulate
from sim.specs import Cluster, InputError, Plan
from sim.specs.arguments import checked
from sim.tuner.objectives import MEASURES, Measured, Setting
from sim.tuner.score import bounds
from sim.tuner.search import MAX_CONFIRMED
from sim.tuner.tune import Tuned

MAX_LEVELS = 64
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class FrontPlan(NamedTuple):
    """One plan of a front: what the engine says of it in both objectives (in their units), and of what they follow."""

    plan: Plan
    x: float
    y: float
    step_time_s: float
    peak_memory_bytes: float


@dataclass(frozen=True)
class Front:
    """The non-dominated plans by `x`, best first: of all plans of equal stages and of some of unequal ones.

    The latter are those that the search has ranked (below its time limit), and with `levels` of `front` the fastest one
    of every level of memory; what lies between two levels is not looked for. scored: how many configurations of equal
    stages the closed forms alone leave undominated; ran: how many of these the engine ran; unequal: how many plans of
    unequal stages; certified: no configuration of equal stages that it has not run can be on the front, by the lower
    bounds of step times.
    """

    x: Measured
    y: Measured
    plans: tuple[FrontPlan, ...]
    scored: int
    ran: int
    certified: bool
    unequal: int = 0


def pareto(x: Floats, y: Floats) -> Ints:
    """Return indices of the points with no other point below in both `x` and `y`, by rising x."""
    order = np.lexsort((y, x))
    falling = np.minimum.accumulate(y[order])
    return order[np.flatnonzero(np.diff(falling, prepend=np.inf) < 0)]


def beaten(x: Floats, y: Floats, by_x: Floats, by_y: Floats) -> NDArray[np.bool_]:
    """Return which points (x, y) some point of (by_x, by_y) equals or beats in both."""
    order = np.lexsort((by_y, by_x))
    lowest = np.concatenate([[np.inf], np.minimum.accumulate(by_y[order])])
    return np.asarray(lowest[np.searchsorted(by_x[order], x, side="right")] <= y)


@checked
def front(
    found: Tuned,
    x: Measured = "memory_headroom",
    y: Measured = "step_time",
    most: int = MAX_CONFIRMED,
    levels: int = 0,
) -> Front:
    """Return the plans of a search that no other one beats in both objectives, as the engine confirms them.

    The closed forms' front is run first, then everything that a lower bound of its step time leaves in the race,
    until nothing is left (`certified`) or `most` plans have run. Equal plans count once. The peak is the closed
    form's until a plan has run. levels: so many times the search over unequal stages runs again, each time with
    another part of the devices' memory (the epsilon-constraint method), and its fastest plan joins.

    Raises:
        InputError: the objectives are the same, one needs a price that is not known, or `most` or `levels` is out of
            range.
    """
    if x == y:
        raise InputError("y", y, f"another objective than x: {', '.join(name for name in MEASURES if name != x)}")
    if most < 1:
        raise InputError("most", most, "a whole number from 1")
    if not 0 <= levels <= MAX_LEVELS:
        raise InputError("levels", levels, f"a whole number from 0 to {MAX_LEVELS}")
    setting = Setting(found.model, found.cluster, found.global_batch)
    space, scores = found.space, found.scores
    flat = np.flatnonzero((space.allowed & scores.fits).ravel())
    time, peak, least = (a.ravel()[flat] for a in (scores.step_time_s, scores.peak_memory_bytes, bounds(space)))

    def losses(step_time_s: Floats, peak_bytes: Floats) -> tuple[Floats, Floats]:
        each = (MEASURES[name].loss(setting, step_time_s, peak_bytes) for name in (x, y))
        first, second = (np.asarray(loss, dtype=float) for loss in each)
        return first, second

    closed = pareto(*losses(time, peak))
    optimum = losses(least, peak)
    others = [one for plan in _unequal(found, levels) if (one := _run(found, plan, setting, x, y))]
    ran: dict[int, FrontPlan | None] = {}
    fitting, todo = others, closed
    while len(todo) and len(ran) < most:
        for i in todo[: most - len(ran)].tolist():
            at = np.unravel_index(int(flat[i]), space.allowed.shape)
            ran[i] = _run(found, space.plan(*map(int, at)), setting, x, y)
        fitting = [*(plan for plan in ran.values() if plan), *others]
        race = ~beaten(*optimum, *losses(*_measured(fitting)))
        race[list(ran)] = False
        left = np.flatnonzero(race)
        todo = left[pareto(optimum[0][left], optimum[1][left])]
    plans = tuple(fitting[i] for i in pareto(*losses(*_measured(fitting))))
    return Front(x, y, plans, len(closed), len(ran), not len(todo), len(others))


def _measured(plans: Sequence[FrontPlan]) -> tuple[Floats, Floats]:
    return np.array([p.step_time_s for p in plans]), np.array([p.peak_memory_bytes for p in plans])


def _unequal(found: Tuned, levels: int) -> Iterator[Plan]:
    """Yield the plans of unequal stages that the search has ranked, and the fastest of every level of memory."""
    if found.unequal:
        yield from (plan for _, plan in found.unequal.found)
        for level in range(1, levels + 1):
            smaller = _with_memory(found.cluster, level / (levels + 1))
            yield from (plan for _, plan in found.unequal.again(smaller, np.inf).found)


def _with_memory(cluster: Cluster, share: float) -> Cluster:
    """Return a cluster whose devices have a share of their memory."""
    if not cluster.groups:
        return replace(cluster, memory_bytes=share * cluster.memory_bytes)
    sizes = [share * member.memory_bytes for member in cluster.members]
    groups = tuple(replace(g, memory_bytes=size) for g, size in zip(cluster.groups, sizes, strict=True))
    return Cluster(groups=groups, links=cluster.links)


def _run(found: Tuned, plan: Plan, setting: Setting, x: Measured, y: Measured) -> FrontPlan | None:
    """Return what the engine says of one plan, or None where it does not fit after all."""
    step = simulate(found.model, found.cluster, plan)
    if step.fits != "yes":
        return None
    time, peak = step.step_time_s, step.peak_memory_bytes
    first, second = (float(MEASURES[name].value(setting, time, peak)) for name in (x, y))
    return FrontPlan(plan, first, second, time, peak)
