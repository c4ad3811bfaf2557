"""Cone programs by the interior point method of the published system's solver, to the point where that one stops.

Where many solutions are best, a solver's path decides which one it returns, and with it what a cluster does next. The
published results (arXiv 2008.09213) are those of ECOS (Domahidi, Chu and Boyd, ECC 2013): a homogeneous self-dual
embedding, Mehrotra's predictor and corrector, Nesterov-Todd scaling. This is that method for linear programs and cones
of three rows, with its start, steps and tolerances. It is for reproducing; what is only to be solved goes elsewhere.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy  # loads its parts at their first use

from sim.cluster.cones import Cones, Scaling
from sim.cluster.state import Floats, Ints

TOLERANCE = 1e-8
"""Of the residuals, and of the gap, absolute or relative."""
MOST_STEPS = 100
SCALINGS, TINY = 3, 1e-6
"""How often rows and columns are divided by the root of their largest entry; where that is tiny they stay."""
PART, LEAST_STEP, MOST_STEP, LEAST_CENTRE = 0.99, 1e-6, 0.999, 1e-4
"""Of the way to the border that a step takes; bounds of that way; least part of centring."""
REGULAR = 7e-8
"""Added to the diagonal of the equations, and part of what they ask for."""

Solve = Callable[[Floats, Floats], tuple[Floats, Floats]]
"""Of right hand sides (v,) and (c,) the x and z with rows' z = first, rows x - V z = second, a little regularised."""


@dataclass(frozen=True, eq=False)
class _Point:
    """Where the method stands, or a step of it: x (v,), slacks s and multipliers z (c,), tau and kappa."""

    x: Floats
    s: Floats
    z: Floats
    tau: float
    kappa: float

    def moved(self, by: "_Point", part: float) -> "_Point":
        """Return the point that lies `part` of `by` further."""
        x, s, z = self.x + part * by.x, self.s + part * by.s, self.z + part * by.z
        return _Point(x, s, z, self.tau + part * by.tau, self.kappa + part * by.kappa)


@dataclass(frozen=True, eq=False)
class _Problem:
    """Least `cost` (v,) times x with `most` (c,) less `rows` (c, v) times x in `cones`."""

    cost: Floats
    rows: "scipy.sparse.csr_array"
    most: Floats
    cones: Cones

    def residuals(self, at: _Point) -> tuple[Floats, Floats, float]:
        """Return what is missing in the dual (v,), in the primal (c,) and between the two."""
        dual = -(self.turned @ at.z) - at.tau * self.cost
        primal = at.s + self.rows @ at.x - at.tau * self.most
        return dual, primal, at.kappa + float(self.cost @ at.x) + float(self.most @ at.z)

    def good(self, at: _Point) -> bool:
        """Return whether the point is within tolerances of the best."""
        dual, primal, _ = self.residuals(at)
        cost, bound, gap = float(self.cost @ at.x), float(-self.most @ at.z), float(at.s @ at.z)
        off = _size(primal) / (max(1.0, _size(self.most)) + _size(at.x) + _size(at.s))
        dual_off = _size(dual) / (max(1.0, _size(self.cost)) + _size(at.z))
        worth = (-cost if cost < 0 else max(0.0, bound)) / at.tau
        return (
            (cost < 0 or bound >= -TOLERANCE)
            and max(off, dual_off) < TOLERANCE * at.tau
            and (gap < TOLERANCE or gap < TOLERANCE * worth)
        )

    def contradicts(self, at: _Point) -> bool:
        """Return whether the multipliers prove that nothing is within the constraints."""
        bound, size = float(-self.most @ at.z), max(1.0, _size(at.z))
        proof = _size(self.turned @ at.z) / size
        return at.tau < at.kappa and bound > TOLERANCE * size and proof < TOLERANCE * bound

    def room(self, at: _Point, by: _Point) -> float:
        """Return which part of `by` leads to the border of what must stay positive."""
        parts = [self.cones.room(at.s, by.s), self.cones.room(at.z, by.z)]
        parts += [-value / step for value, step in ((at.tau, by.tau), (at.kappa, by.kappa)) if step < 0]
        return float(np.clip(min(parts), LEAST_STEP, MOST_STEP))

    @cached_property
    def turned(self) -> "scipy.sparse.csr_array":
        """Return the rows as columns (v, c)."""
        return scipy.sparse.csr_array(self.rows.T)

    @cached_property
    def frame(self) -> tuple["scipy.sparse.csc_array", Ints]:
        """Return the equations' matrix (v + c, v + c), and which entry each of its numbers is: those of `equations`."""
        size, whole = len(self.cost), len(self.cost) + len(self.most)
        entries = self.rows.tocoo()
        row, column = self.cones.unit.places()
        rows = np.concatenate([np.arange(size), entries.col, size + entries.row, size + row])
        columns = np.concatenate([np.arange(size), size + entries.row, entries.col, size + column])
        numbered = scipy.sparse.coo_array(
            (np.arange(1.0, len(rows) + 1), (rows, columns)), shape=(whole, whole)
        ).tocsc()
        return numbered, numbered.data.astype(np.int64) - 1

    def equations(self, scaling: Scaling) -> Solve:
        """Return what solves the equations of a step with V the square of `scaling`."""
        size = len(self.cost)
        frame, order = self.frame
        row, column = scaling.places()
        entries, square = self.rows.data, scaling.squared() + REGULAR * (row == column)
        values = np.concatenate([np.full(size, REGULAR), entries, entries, -square])[order]
        matrix = scipy.sparse.csc_array((values, frame.indices, frame.indptr), shape=frame.shape)
        # Regularised, it has a factor in any symmetric order: one that leaves it sparse, and no other pivots.
        try:
            factor = scipy.sparse.linalg.splu(
                matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True}
            )
        except RuntimeError as error:
            raise ArithmeticError("the equations of a step have no factor") from error

        def solve(first: Floats, second: Floats) -> tuple[Floats, Floats]:
            found = factor.solve(np.concatenate([first, second]))
            return found[:size], found[size:]

        return solve

    def start(self) -> _Point:
        """Return the least squares solutions of both sides, slacks and multipliers moved into the cones."""
        solve = self.equations(self.cones.unit)
        x, slack = solve(np.zeros(len(self.cost)), self.most)
        _, multiplier = solve(-self.cost, np.zeros(len(self.most)))
        return _Point(x, self._inside(-slack), self._inside(multiplier), 1.0, 1.0)

    def _inside(self, values: Floats) -> Floats:
        """Return values moved along the cones' axes until the least height is 1, or by 0.01 where all are positive."""
        heights = self.cones.heights(values)
        below = heights[heights <= 0]
        return values + (1 + max(-PART, -float(below.min()) if len(below) else -PART)) * self.cones.axes

    def step(self, at: _Point) -> _Point:
        """Return the next step: a predictor that says how much to centre, then the corrector."""
        dual, primal, between = self.residuals(at)
        scaling = self.cones.scaling(at.s, at.z)
        scaled = scaling.times(at.z)
        solve = self.equations(scaling)
        x1, z1 = solve(-self.cost, self.most)
        under = at.kappa / at.tau - self.cost @ x1 - self.most @ z1

        def direction(left: float, slack: Floats, kappa: float) -> _Point:
            """Return the step that leaves `left` of the residuals and takes `slack` (c,) and `kappa` for products."""
            x2, z2 = solve((1 - left) * dual, -(1 - left) * primal + scaling.times(slack))
            tau = ((1 - left) * between - kappa / at.tau + self.cost @ x2 + self.most @ z2) / under
            z = z2 + tau * z1
            s = -scaling.times(slack + scaling.times(z))
            return _Point(x2 + tau * x1, s, z, float(tau), float(-(kappa + at.kappa * tau) / at.tau))

        cones = self.cones
        ahead = direction(0.0, scaled, at.kappa * at.tau)
        centre = float(np.clip((1 - self.room(at, ahead)) ** 3, LEAST_CENTRE, 1.0))
        mean = float(at.s @ at.z + at.kappa * at.tau) / (cones.degree + 1)
        ahead_z = scaling.times(ahead.z)
        second = cones.product(-scaled - ahead_z, ahead_z) - centre * mean * cones.axes
        slack = cones.quotient(cones.product(scaled, scaled) + second, scaled)
        return direction(centre, slack, at.kappa * at.tau + ahead.kappa * ahead.tau - centre * mean)


def interior(cost: Floats, rows: "scipy.sparse.csr_array", most: Floats, cones: int = 0) -> Floats | None:
    """Return x (v,) of the least `cost` (v,) times x; None where the constraints contradict each other.

    `most` (c,) less `rows` (c, v) times x is at least 0, but for the last three times `cones` rows: of each three the
    first is at least the length of the other two. Raises ArithmeticError where the steps do not lead there.
    """
    problem, units = _scaled(cost, rows, most, Cones(len(most) - 3 * cones, cones))
    at = problem.start()
    for _ in range(MOST_STEPS):
        if problem.good(at):
            return at.x / at.tau / units
        if problem.contradicts(at):
            return None
        step = problem.step(at)
        at = at.moved(step, PART * problem.room(at, step))
    raise ArithmeticError(f"interior point method: no solution in {MOST_STEPS} steps")


def _scaled(cost: Floats, rows: "scipy.sparse.csr_array", most: Floats, cones: Cones) -> tuple[_Problem, Floats]:
    """Return the problem with rows and columns near 1, and by what each column (v,) was divided."""
    columns, lines = np.ones(len(cost)), np.ones(len(most))
    for _ in range(SCALINGS):
        each = [np.asarray(abs(rows).max(axis=axis).toarray()).ravel() for axis in (0, 1)]
        by = [np.where(largest < TINY, 1.0, np.sqrt(largest)) for largest in (each[0], cones.together(each[1]))]
        rows = scipy.sparse.csr_array(scipy.sparse.diags_array(1 / by[1]) @ rows @ scipy.sparse.diags_array(1 / by[0]))
        columns, lines = columns * by[0], lines * by[1]
    return _Problem(cost / columns, rows, most / lines, cones), columns


def _size(values: Floats) -> float:
    return float(np.linalg.norm(values))
