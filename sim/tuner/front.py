"""The plans between two objectives: what no other plan beats in both."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.engine.step import simulate
from sim.specs import InputError, Plan
from sim.specs.arguments import checked
from sim.tuner.objectives import MEASURES, Measured, Setting
from sim.tuner.score import bounds
from sim.tuner.search import MAX_CONFIRMED
from sim.tuner.tune import Tuned

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
    """The non-dominated plans by `x`, best first.

    scored: how many configurations the closed forms alone leave undominated; ran: how many the engine ran; certified:
    no configuration that it has not run can be on the front, by the lower bounds of step times.
    """

    x: Measured
    y: Measured
    plans: tuple[FrontPlan, ...]
    scored: int
    ran: int
    certified: bool


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
def front(found: Tuned, x: Measured = "memory_headroom", y: Measured = "step_time", most: int = MAX_CONFIRMED) -> Front:
    """Return the plans of a search that no other one beats in both objectives, as the engine confirms them.

    The closed forms' front is run first, then everything that a lower bound of its step time leaves in the race,
    until nothing is left (`certified`) or `most` plans have run. Equal plans count once. The peak is the closed
    form's until a plan has run.

    Raises:
        InputError: the objectives are the same, one needs a price that is not known, or `most` is not positive.
    """
    if x == y:
        raise InputError("y", y, f"another objective than x: {', '.join(name for name in MEASURES if name != x)}")
    if most < 1:
        raise InputError("most", most, "a whole number from 1")
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
    ran: dict[int, FrontPlan | None] = {}
    todo = closed
    while len(todo) and len(ran) < most:
        for i in todo[: most - len(ran)].tolist():
            ran[i] = _run(found, int(flat[i]), setting, x, y)
        fitting = [plan for plan in ran.values() if plan]
        known = losses(np.array([p.step_time_s for p in fitting]), np.array([p.peak_memory_bytes for p in fitting]))
        race = ~beaten(*optimum, *known)
        race[list(ran)] = False
        left = np.flatnonzero(race)
        todo = left[pareto(optimum[0][left], optimum[1][left])]
    plans = tuple(fitting[i] for i in pareto(*known))
    return Front(x, y, plans, len(closed), len(ran), not len(todo))


def _run(found: Tuned, flat: int, setting: Setting, x: Measured, y: Measured) -> FrontPlan | None:
    """Return what the engine says of one configuration, or None where it does not fit after all."""
    plan = found.space.plan(*(int(i) for i in np.unravel_index(flat, found.space.allowed.shape)))
    step = simulate(found.model, found.cluster, plan)
    if step.fits != "yes":
        return None
    time, peak = step.step_time_s, step.peak_memory_bytes
    first, second = (float(MEASURES[name].value(setting, time, peak)) for name in (x, y))
    return FrontPlan(plan, first, second, time, peak)
