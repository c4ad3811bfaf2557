"""From scores to confirmed plans: the front runners on the compiled engine, until no bound leaves a better one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from sim.engine.step import Step, simulate
from sim.specs import InputError, Plan
from sim.specs.job import Objective
from sim.tuner.explain import Outcome
from sim.tuner.infeasible import no_plan, nothing_fits
from sim.tuner.score import Scores
from sim.tuner.space import Space
from sim.tuner.stop import Stop

MAX_CONFIRMED = 200
"""Plans run through an engine at most; what then is still open is the `gap`."""

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class Search:
    """From scores to confirmed plans: flat indices of the space, best first by the objective.

    least: per configuration, a step time that no engine beats; until: the instant after which nothing more is run.
    """

    space: Space
    scores: Scores
    least: NDArray[np.float64]
    objective: Objective
    top: int
    until: float
    progress: Progress
    ran: dict[int, Outcome] = field(default_factory=dict)
    stop: Stop = field(default_factory=Stop)

    def late(self) -> bool:
        """Return whether the time is up."""
        return perf_counter() > self.until

    def run(self, flat: int) -> Outcome:
        """Return what the compiled engine says of one configuration (remembered, without its timeline)."""
        if flat not in self.ran:
            at = np.unravel_index(flat, self.space.allowed.shape)
            plan = self.space.plan(*(int(i) for i in at))
            step = simulate(self.space.model, self.space.cluster, plan)
            self.ran[flat] = Outcome(plan, step.step_time_s, step.peak_memory_bytes, step.fits == "yes")
        return self.ran[flat]

    def _fitting(self) -> list[Outcome]:
        """Return what has run and fits: with chunks of different layers the scores only estimate the memory."""
        return [outcome for outcome in self.ran.values() if outcome.fits]

    def nothing(self, hosts: bool = False) -> InputError:
        """Return the error that no plan is legal, or that none fits; hosts: as of `nothing_fits`."""
        return nothing_fits(self.space, self.scores, hosts) if self.space.allowed.any() else no_plan(self.space)

    def confirm(self) -> tuple[list[Step], float]:
        """Return the top plans as the compiled engine runs them, best first, and the gap left; none where none fits.

        Everything whose lower bound is under the best so far is run, so that no closed form decides.
        """
        order = self._order()
        try:
            self._confirm_top(order)
            if not self._fitting():
                return [], 0.0
            gap = self._close_gap(order)
        except KeyboardInterrupt:
            if not self._fitting():
                raise
            self.stop.press("the rest of the search")
            gap = self._open_gap(order)
        best = sorted(self._fitting(), key=self._key)[: self.top]
        return self.simulated([outcome.plan for outcome in best]), gap

    def simulated(self, plans: Sequence[Plan]) -> list[Step]:
        """Return the steps of plans; once stopped by hand of as many as the grace allows, the first at least."""
        steps: list[Step] = []
        while len(steps) < len(plans) and not (steps and self.stop.late):
            try:
                steps.append(simulate(self.space.model, self.space.cluster, plans[len(steps)]))
            except KeyboardInterrupt:
                self.stop.press("the rest of the search")
        return steps

    def _confirm_top(self, order: NDArray[np.int64]) -> None:
        """Run configurations in the order of their scores until as many as asked for fit."""
        for flat in order[:MAX_CONFIRMED].tolist():
            good = len(self._fitting())
            if good >= self.top or (good and self.late()):
                break
            self.progress("confirming", good, self.top)
            self.run(flat)

    @property
    def _bounds(self) -> NDArray[np.float64]:
        """Seconds, or by memory bytes (but for rounding), that no engine beats: orders without closed form are scored
        by a bound of their memory."""
        by_memory = self.objective == "memory_headroom"
        return (self.scores.peak_memory_bytes * (1 + 1e-9) if by_memory else self.least).ravel()

    def _best(self) -> float:
        """Return the least seconds, or by memory bytes, of what has run."""
        return min(self._key(outcome)[0] for outcome in self._fitting())

    def _open_gap(self, order: NDArray[np.int64]) -> float:
        """Return how much better than the best so far a configuration that has not run can be at most."""
        best = self._best()
        left = order[~np.isin(order, list(self.ran))]
        return max(0.0, float(1 - self._bounds[left].min(initial=best) / best))

    def _close_gap(self, order: NDArray[np.int64]) -> float:
        least = self._bounds
        for flat in order[np.argsort(least[order], kind="stable")].tolist():
            best = self._best()
            if least[flat] >= best:
                return 0.0
            if flat not in self.ran:
                if len(self.ran) >= max(self.top, MAX_CONFIRMED) or self.late():
                    return float(1 - least[flat] / best)
                self.progress("closing the gap", len(self.ran), MAX_CONFIRMED)
                self.run(flat)
        return 0.0

    def _key(self, outcome: Outcome) -> tuple[float, float]:
        by_time = (outcome.step_time_s, outcome.peak_memory_bytes)
        return by_time[::-1] if self.objective == "memory_headroom" else by_time

    def _order(self) -> NDArray[np.int64]:
        """Return the feasible configurations by their closed forms, best first.

        With all devices in use cost and tokens per dollar order plans as the step time does.
        """
        space, scores = self.space, self.scores
        feasible = space.allowed & scores.fits
        key = scores.peak_memory_bytes if self.objective == "memory_headroom" else scores.step_time_s
        flat = np.where(feasible, key, np.inf).ravel()
        return np.argsort(flat, kind="stable")[: int(feasible.sum())]
