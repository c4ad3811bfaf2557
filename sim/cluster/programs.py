"""Programs over shares of time: what any division of a cluster keeps to, and the solvers that make the best one.

HiGHS solves the linear ones, Clarabel what is convex. Of many best solutions HiGHS returns a corner; where `published`
is asked for it is the one that the published system's solver stops at (`sim/cluster/interior.py`).
"""

from dataclasses import dataclass, replace

import clarabel
import numpy as np
import scipy  # loads its parts at their first use
from numpy.typing import NDArray

from sim.cluster.interior import interior
from sim.cluster.state import Floats, Ints, State

TOLERANCE = 1e-9
"""Of Clarabel, absolute and relative; HiGHS keeps to constraints within 1e-7."""


class SolverError(RuntimeError):
    """A program has a solution and its solver did not find it."""


@dataclass(frozen=True, eq=False)
class Linear:
    """Maximise `worth` (v,) times x, `rows` (c, v) times x at most `most` (c,), x but the last `free` at least 0."""

    worth: Floats
    rows: "scipy.sparse.csr_array"
    most: Floats
    free: int = 0

    def with_rows(self, rows: "scipy.sparse.csr_array", most: Floats) -> "Linear":
        """Return the same with further constraints."""
        held = self.rows.shape[0]
        both = matrix_of((held + len(most), len(self.worth)), entries(self.rows), entries(rows, held))
        return replace(self, rows=both, most=np.concatenate([self.most, most]))

    def solved(self, published: bool = False) -> Floats | None:
        """Return x (v,), None where the constraints contradict each other; raises SolverError."""
        return self._as_published() if published else self._solved()

    def _solved(self) -> Floats | None:
        lower = np.zeros(len(self.worth))
        lower[len(lower) - self.free :] = -np.inf
        limits = scipy.optimize.LinearConstraint(self.rows, ub=self.most)
        found = scipy.optimize.milp(-self.worth, bounds=scipy.optimize.Bounds(lower, np.inf), constraints=limits)
        if found.status == 2:
            return None
        if found.x is None:
            raise SolverError(found.message)
        return np.asarray(found.x)

    def _as_published(self) -> Floats | None:
        positive = len(self.worth) - self.free
        rows = scipy.sparse.vstack(
            [-scipy.sparse.eye_array(positive, len(self.worth), format="csr"), self.rows], format="csr"
        )
        try:
            return interior(-self.worth, rows, np.concatenate([np.zeros(positive), self.most]))
        except ArithmeticError:  # its steps lost their footing: any best solution will do
            return self._solved()


@dataclass(frozen=True, eq=False)
class Program:
    """What shares X (n + k, m) may be: the unknowns are its `cells` (v,), flat indices of what is not zero anyway.

    `rates` (n, v) times the unknowns are the jobs' effective steps/s; `rows` (n + m, v) times them are at most `most`:
    every job's time in all its rows 1, and every type its devices. `able` (n,): which jobs have an unknown at all.
    """

    shape: tuple[int, int]
    cells: Ints
    rates: "scipy.sparse.csr_array"
    rows: "scipy.sparse.csr_array"
    most: Floats
    able: NDArray[np.bool_]

    def shares(self, x: Floats) -> Floats:
        """Return X (n + k, m) of the unknowns (v,), what solvers leave outside of the constraints taken away."""
        x = np.clip(x[: len(self.cells)], 0.0, 1.0)
        used, full = self.rows @ x, self.most > 0
        shares = np.zeros(self.shape)
        shares.flat[self.cells] = x / max(1.0, float(np.max(used[full] / self.most[full], initial=1.0)))
        return shares

    def nothing(self) -> Floats:
        """Return the X (n + k, m) that gives no time to any."""
        return np.zeros(self.shape)

    def unknowns(self, shares: Floats) -> Floats:
        """Return the unknowns (v,) of given shares (n + k, m)."""
        return shares.flat[self.cells]

    def linear(self, worth: Floats) -> Linear:
        """Return: maximise `worth` (v,) times the unknowns."""
        return Linear(worth, self.rows, self.most)

    def least(self, gains: Floats) -> Linear:
        """Return: maximise t, the least of `gains` (n,) times effective steps/s; t is the last unknown.

        A job with a gain of 0 and one that is not able to run have no say.
        """
        said = self.able & (gains > 0)
        count, (limits, cells) = int(said.sum()), self.rows.shape
        of, at, rates = entries(self.rates[said])
        scaled = limits + of, at, -(gains[said][of] * rates)
        least = limits + np.arange(count), np.full(count, cells), np.ones(count)
        rows = matrix_of((limits + count, cells + 1), entries(self.rows), scaled, least)
        worth, most = np.append(np.zeros(cells), 1.0), np.concatenate([self.most, np.zeros(count)])
        return Linear(worth, rows, most, free=1)


Entries = tuple[Ints, Ints, Floats]
"""Row, column and value of whatever a sparse matrix holds."""


def entries(matrix: "scipy.sparse.csr_array", row: int = 0, column: int = 0) -> Entries:
    """Return what a matrix holds that stands in a larger one from `row` and `column` on."""
    of: Ints = np.repeat(np.arange(matrix.shape[0], dtype=np.int64), np.diff(matrix.indptr))
    at: Ints = matrix.indices.astype(np.int64)
    return of + row, at + column, matrix.data


def matrix_of(shape: tuple[int, int], *parts: Entries) -> "scipy.sparse.csr_array":
    """Return the matrix of all entries: to stack blocks takes SciPy many times as long for a few hundred of them."""
    row, column, value = (np.concatenate(part) for part in zip(*parts, strict=True))
    return scipy.sparse.coo_array((value, (row, column)), shape=shape).tocsr()


def inverse(values: Floats) -> Floats:
    """Return 1 / values, and 0 for 0: of jobs that have no say."""
    return np.divide(1.0, values, out=np.zeros_like(values), where=values > 0)


def blind(state: State) -> Floats:
    """Return steps/s (n, m) as one sees them who does not know types apart: those of the fastest that runs the job."""
    first = np.argmax(state.steps_per_s > 0, axis=1)
    seen = np.take_along_axis(state.steps_per_s, first[:, None], axis=1)
    return np.broadcast_to(seen, state.steps_per_s.shape)


def runnable(state: State) -> NDArray[np.bool_]:
    """Return (n, m): where a job runs, on types that have so many devices."""
    return np.asarray((state.steps_per_s > 0) & (state.scale[:, None] <= state.devices))


def pairs_runnable(state: State, everywhere: bool = False) -> NDArray[np.bool_]:
    """Return (k, m): where pairs of equal scale run, both of their jobs unless `everywhere`."""
    first, second = state.pairs.jobs.T
    fits = np.asarray((state.scale[first] == state.scale[second])[:, None] & (state.devices > 0))
    if everywhere or not len(first):
        return fits
    runs = (state.pairs.steps_per_s > 0).all(axis=2)
    return np.asarray(fits & runs & (state.scale[first][:, None] <= state.devices))


def program(state: State, steps_per_s: Floats | None = None, packs: bool = False, everywhere: bool = False) -> Program:
    """Return the program of a state, of its pairs too if it `packs`.

    `steps_per_s` (n, m) stand in the place of the state's own. `everywhere`: shares also where a job cannot run, as the
    published programs give them (less than a whole share of more devices than there are).
    """
    n, m = state.jobs, len(state.types)
    rates = state.steps_per_s if steps_per_s is None else steps_per_s
    pairs = state.pairs.jobs
    allowed = (state.devices > 0) & np.ones((n + len(pairs), 1), dtype=bool)
    if not everywhere:
        allowed[:n] &= runnable(state)
    allowed[n:] = packs and pairs_runnable(state, everywhere)
    cells = np.flatnonzero(allowed)
    row, column = np.divmod(cells, m)
    singles = int(np.searchsorted(row, n))
    both, unknown = row[singles:] - n, np.arange(len(cells))
    job = np.concatenate([row[:singles], pairs[both, 0], pairs[both, 1]])
    at = np.concatenate([unknown[:singles], unknown[singles:], unknown[singles:]])
    steps = rates[row[:singles], column[:singles]]
    if len(both):
        steps = np.concatenate([steps, *state.pairs.steps_per_s[both, column[singles:]].T])
    scale = np.concatenate([state.scale, state.scale[pairs[:, 0]]])
    rate = scipy.sparse.coo_array((steps, (job, at)), shape=(n, len(cells))).tocsr()
    time_and_use = np.concatenate([np.ones(len(at)), scale[row]])
    place = np.concatenate([job, n + column]), np.concatenate([at, unknown])
    rows = scipy.sparse.coo_array((time_and_use, place), shape=(n + m, len(cells))).tocsr()
    most = np.concatenate([np.ones(n), state.devices * state.part])
    able = np.bincount(job[steps > 0], minlength=n) > 0
    return Program((n + len(pairs), m), cells, rate, rows, most, able)


def conic(cost: Floats, rows: "scipy.sparse.csc_array", most: Floats, cones: list[object]) -> Floats | None:
    """Return the x of least `cost` times x with `most` less `rows` times x in `cones`; None where there is none."""
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = TOLERANCE
    nothing = scipy.sparse.csc_array((len(cost), len(cost)))
    found = clarabel.DefaultSolver(nothing, cost, scipy.sparse.csc_array(rows), most, cones, settings).solve()
    if found.status in (clarabel.SolverStatus.PrimalInfeasible, clarabel.SolverStatus.AlmostPrimalInfeasible):
        return None
    if found.status not in (clarabel.SolverStatus.Solved, clarabel.SolverStatus.AlmostSolved):
        raise SolverError(str(found.status))
    return np.asarray(found.x)
