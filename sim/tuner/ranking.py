"""The short list: its order on the event engine, and why each plan stands where it stands."""

import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from multiprocessing import active_children, get_all_start_methods, get_context

import numpy as np
from numpy.typing import NDArray

from sim.engine.step import Step, simulate
from sim.specs import Cluster, Model, Plan
from sim.specs.job import Objective
from sim.tuner.binding import binding
from sim.tuner.explain import against, explain
from sim.tuner.orphans import end_with_parent
from sim.tuner.robustness import Robustness, robustness
from sim.tuner.search import Search

WORTH_PROCESSES = 100_000
"""Operations of all steps together that take seconds."""

TIE = 1e-6
"""Relative difference of step times that is none: rounding, and plans that only look different."""


@dataclass(frozen=True, eq=False)
class RankedPlan:
    """A plan of the short list, its prediction and why it stands where it stands.

    contended_s: its step time on the event engine, which decides the order; None: interrupted before any plan ran.
    """

    step: Step
    why: tuple[str, ...]
    contended_s: float | None
    p_best: float | None = None

    @property
    def ranked_s(self) -> float:
        """The step time that decides the order."""
        return self.step.step_time_s if self.contended_s is None else self.contended_s

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self.step.plan

    def because(self, reason: str) -> "RankedPlan":
        """Return the same with a further reason, after the time by cause."""
        return replace(self, why=(self.why[0], reason, *self.why[1:]))


def rank(search: Search, steps: Sequence[Step], top: int) -> tuple[tuple[RankedPlan, ...], bool]:
    """Return the best `top` of `steps` by their times under contention, and whether their order stayed as it was.

    By memory the order stays: it is the same on both engines. An interruption leaves those that are done; before the
    first of them all, in the order that they have.
    """
    by_time = search.objective != "memory_headroom"
    contended: list[float] = []

    def run() -> None:
        for n, seconds in enumerate(_contended(steps)):
            search.progress("ranking", n, len(steps))
            contended.append(seconds)

    search.stop.unless("the order under contention of the other plans", run, None)
    times = np.array(contended or [step.step_time_s for step in steps])
    order = np.argsort(times, kind="stable").tolist() if by_time else list(range(len(times)))
    kept = order[:top]
    unequal = any(len(step.plan.stages) > 1 for step in steps)
    following = [*((steps[j], (times[j] - times[i]) * by_time) for i, j in pairwise(kept)), None]
    before = np.array([step.step_time_s for step in steps[: len(times)]])
    ranked = tuple(
        RankedPlan(steps[i], _explained(steps[i], after, search, unequal), contended[i] if contended else None)
        for i, after in zip(kept, following, strict=True)
    )
    return ranked, not by_time or same_order(before, times)


def same_order(before: NDArray[np.float64], after: NDArray[np.float64]) -> bool:
    """Return whether no plan that took longer than another takes less time than it now; what is within `TIE` is
    equal, and has no order that could change."""
    longer = before[:, None] * (1 + TIE) < before[None, :]
    turned = after[:, None] > after[None, :] * (1 + TIE)
    return not bool((longer & turned).any())


def _contended(steps: Sequence[Step]) -> Iterator[float]:
    """Yield the seconds of every step under contention; many operations are worth processes of their own."""
    asked = [(s.model, s.cluster, s.plan) for s in steps]
    if sum(len(step.timeline.graph) for step in steps) < WORTH_PROCESSES or "fork" not in get_all_start_methods():
        yield from map(_seconds, asked)
        return
    # Forked, a process has what is asked and all that is built already.
    others = active_children()
    with ProcessPoolExecutor(os.cpu_count(), get_context("fork"), _prepare, (asked,)) as processes:
        try:
            yield from processes.map(_seconds_of, range(len(asked)))
        except BaseException:
            for process in {*active_children()} - {*others}:  # nobody waits for what they have begun
                process.kill()
            processes.shutdown(wait=False, cancel_futures=True)
            raise


Asked = tuple[Model, Cluster, Plan]
_asked: list[Asked] = []
"""What a process of `_contended` is asked for."""


def _prepare(asked: Sequence[Asked]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the parent alone
    end_with_parent()
    _asked[:] = asked


def _seconds_of(index: int) -> float:
    return _seconds(_asked[index])


def _seconds(asked: Asked) -> float:
    return simulate(*asked, "events").step_time_s


def _explained(step: Step, after: tuple[Step, float] | None, search: Search, unequal: bool) -> tuple[str, ...]:
    """Return `_why`; an interrupt leaves the plan without reasons."""
    none = ("interrupted before it was explained",)
    return search.stop.unless("why plans stand where they stand", lambda: _why(step, after, search, unequal), none)


def _why(step: Step, after: tuple[Step, float] | None, search: Search, unequal: bool) -> tuple[str, ...]:
    """Return why a plan stands where it stands, before the plan `after`, which takes so many seconds more under
    contention; unequal: whether plans of unequal stages are among them."""
    time, memory, *knobs = explain(step, search.space, search.scores, search.run, search.objective, unequal)
    limits = [bound.text for bound in binding(step)]
    return time, memory, *limits, *([against(step, *after)] if after else []), *knobs


def weighed(ranked: tuple[RankedPlan, ...], objective: Objective) -> tuple[tuple[RankedPlan, ...], Robustness | None]:
    """Return the plans with their probabilities of being the fastest, and how robust their order is."""
    by_time = objective != "memory_headroom"
    robust = robustness([r.step for r in ranked], [r.ranked_s for r in ranked]) if by_time else None
    if robust is None:
        return ranked, None
    return tuple(replace(r, p_best=p) for r, p in zip(ranked, robust.p_best, strict=True)), robust
