"""Water filling: raise the least until it cannot rise, leave it there, and raise the rest (arXiv 2008.09213, 4.3)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy  # loads its parts at their first use
from numpy.typing import NDArray

from sim.cluster.programs import Entries, Linear, Program, SolverError, entries, matrix_of
from sim.cluster.state import Floats
from sim.engine import highs

Weigh = Callable[[NDArray[np.bool_]], Floats]
"""Of which jobs (n,) are full already: the weights (n,) of those whose turn it is, 0 for the others."""

STEP, RISEN = 1e-3, 1e-2
"""How far a job may rise, over what it has, where it is asked whether it can; what part of that is not rounding."""
SLACK, EPSILON = 1.0001, 1e-5
"""By how much a job's level must rise, relative and absolute, for the published system to call it free."""


@dataclass(frozen=True, eq=False)
class Filling:
    """Jobs as vessels: a level is effective steps/s over `reference` (n,); all rise at weight / `scale` (n,)."""

    limits: Program
    reference: Floats
    scale: Floats
    gavel_parity: bool = False
    milp: bool = True
    """With `gavel_parity`: whether a mixed-integer program says who can rise; where none could be solved nobody can."""

    def shares(self, weigh: Weigh) -> Floats:
        """Return the X (n + k, m) by which no level can rise but at the cost of one as low (by weight); SolverError."""
        full = ~self.limits.able if not self.gavel_parity else np.zeros(len(self.scale), dtype=bool)
        levels, shares = np.zeros(len(full)), self.limits.nothing()
        while not full.all():
            weights = weigh(full)
            turn = ~full & (weights > 0)
            gains = np.divide(self.scale, weights, out=np.zeros_like(levels), where=turn)
            found = self._raised(gains, levels).solved(self.gavel_parity)
            if found is None and not self.gavel_parity:
                raise SolverError("water filling: levels that were reached cannot be reached again")
            if found is not None:
                shares = self.limits.shares(found)
                levels[turn] += max(0.0, found[-1]) / gains[turn]
            stuck = turn & ~self._can_rise(levels, turn)
            if found is None or not stuck.any():
                break
            full |= stuck
        return shares

    def _can_rise(self, levels: Floats, turn: NDArray[np.bool_]) -> NDArray[np.bool_]:
        if not self.gavel_parity:
            return self._free(levels, turn)
        return self._free_by_milp(levels, turn) if self.milp else np.zeros(len(levels), dtype=bool)

    @cached_property
    def _heights(self) -> "scipy.sparse.csr_array":
        """Return levels (n, v) by unknowns."""
        return scipy.sparse.csr_array(
            scipy.sparse.diags_array(1 / np.where(self.reference > 0, self.reference, 1.0)) @ self.limits.rates
        )

    @cached_property
    def _held(self) -> tuple[Entries, ...]:
        """Return the rows, limits and then levels (n), by which shares are within every limit and no level falls."""
        of, at, heights = entries(self._heights, len(self.limits.most))
        return entries(self.limits.rows), (of, at, -heights)

    def _raised(self, gains: Floats, levels: Floats) -> Linear:
        """Return: maximise t, the least rise by gain of the jobs that have one; no level falls.

        The published program bounds t once more for every other job, by what no rise can be.
        """
        turn, size = gains > 0, len(self.limits.cells)
        count, held = int(turn.sum()), len(self.limits.most) + len(levels)
        others = len(turn) - count if self.gavel_parity else 0
        of, at, heights = entries(self._heights[turn])
        rise = held + of, at, -(gains[turn][of] * heights)
        least = held + np.arange(count + others), np.full(count + others, size), np.ones(count + others)
        most = [self.limits.most, -levels, -(gains * levels)[turn], np.full(others, self._big if others else 0.0)]
        rows = matrix_of((held + count + others, size + 1), *self._held, rise, least)
        return Linear(np.append(np.zeros(size), 1.0), rows, np.concatenate(most), free=1)

    @property
    def _big(self) -> float:
        return float((self._heights.multiply(self.scale[:, None])).max())

    def _free(self, levels: Floats, turn: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which jobs can rise while none falls: asked together, a little each, until none of the rest does."""
        free = np.zeros(len(levels), dtype=bool)
        held, size = len(self.limits.most) + len(levels), len(self.limits.cells)
        while (turn & ~free).any():
            asked = turn & ~free
            step = STEP * np.maximum(levels[asked], STEP)
            count, each = len(step), np.arange(len(step))
            of, at, heights = entries(self._heights[asked], held)
            risen = held + each, size + each, step
            most_one = held + count + each, size + each, np.ones(count)
            rows = matrix_of((held + 2 * count, size + count), *self._held, (of, at, -heights), risen, most_one)
            most = np.concatenate([self.limits.most, -levels, -levels[asked], np.ones(count)])
            found = Linear(np.append(np.zeros(size), np.ones(count)), rows, most).solved()
            if found is None or not (found[size:] > RISEN).any():
                break
            free[np.flatnonzero(asked)[found[size:] > RISEN]] = True
        return free

    def _free_by_milp(self, levels: Floats, turn: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return what the published mixed-integer program calls free; none where it contradicts itself.

        It asks for the most jobs z with a level above SLACK times what they have, the others' below it by EPSILON:
        which no low level (a job that waits its turn has 0) can satisfy.
        """
        n, size = len(levels), len(self.limits.cells)
        big = self._big
        held, target, each = len(self.limits.most) + n, levels * SLACK, np.arange(n)
        of, at, heights = entries(self._heights, held)
        above = of, at, heights
        below = of + n, at, -heights
        bigs = (held + each, size + each, np.full(n, -big)), (held + n + each, size + each, np.full(n, big))
        rows = matrix_of((held + 2 * n, size + n), *self._held, above, below, *bigs)
        most = np.concatenate([self.limits.most, -levels, target - EPSILON, big - target])
        whole = np.append(np.zeros(size), np.ones(n))
        upper = np.append(np.full(size, np.inf), turn.astype(float))
        limits = scipy.optimize.LinearConstraint(rows, ub=most)
        bounds = scipy.optimize.Bounds(0, upper)
        found = highs.milp(c=-whole, integrality=whole.astype(int), bounds=bounds, constraints=limits)
        return np.zeros(n, dtype=bool) if found.x is None else found.x[size:] > 0.5
