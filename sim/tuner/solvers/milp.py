"""The same problem as a mixed-integer programme for HiGHS (`scipy.optimize.milp`): an independent check of `exact`.

It shares nothing with the other solvers but the problem: places are enumerated here anew. A unit of flow runs from the
last stage's place to where everything is used; x[stage, cell, point] is 1 where a stage takes a cell at a point, and a
cell's points sum to the flow through its edges, so that whole x make the flow one path.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from sim.engine import highs
from sim.tuner.solvers.chain import NOTHING_BELOW, USUAL, Cell, Chain, Choice, Effort, Solution, value

if TYPE_CHECKING:
    from scipy.optimize import LinearConstraint, OptimizeResult

SECONDS = 60.0
TYPICAL = 1e3
"""Size of the longest t as HiGHS sees it: its tolerances are absolute (1e-6)."""

Place = tuple[int, int, tuple[int, ...]]


def milp(chain: Chain, effort: Effort = USUAL) -> Solution:
    """Return what HiGHS finds in `SECONDS` and its bound; steps are branch-and-bound nodes, the seed is unused.

    Certified: HiGHS closed its gap, which is to its tolerances, about 1e-6 of the value. How far it comes in the
    seconds depends on the machine, and of a search that is stopped it tells nothing: a checker and not the tuner's
    solver.
    """
    model = _Model(chain)
    found = None if effort.stop() else model.solve(effort)
    if found is None:
        return Solution((), (), 0.0, False, 0, "interrupted")
    steps = int(found.get("mip_node_count") or 0)
    if found.status == 2:
        return Solution((), (), np.inf, True, steps, f"infeasible: {found.message}")
    proven, note = found.status == 0, "" if found.status == 0 else str(found.message)
    bound = max(0.0, float(found.get("mip_dual_bound") or 0.0) * model.unit)
    if found.x is None:
        return Solution((), (), bound, False, steps, note)
    choice = model.choice(found.x)
    reached = value(chain, choice)
    bound = min(reached if proven else bound, reached)
    if reached >= effort.at_most:
        certified = proven or bound >= effort.at_most
        return Solution((), (), bound, certified, steps, NOTHING_BELOW if certified else note)
    return Solution((choice,), (reached,), bound, proven, steps, note)


@dataclass(eq=False)
class _Rows:
    """Rows of a sparse system low <= A v <= high."""

    row: list[int] = field(default_factory=list)
    column: list[int] = field(default_factory=list)
    factor: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)

    def add(self, terms: list[tuple[int, float]], low: float, high: float) -> None:
        self.row += [len(self.low)] * len(terms)
        self.column += [column for column, _ in terms]
        self.factor += [factor for _, factor in terms]
        self.low.append(low)
        self.high.append(high)

    def constraint(self, columns: int) -> "LinearConstraint":
        from scipy.optimize import LinearConstraint  # noqa: PLC0415 - every command would wait for it
        from scipy.sparse import coo_array  # noqa: PLC0415

        matrix = coo_array((self.factor, (self.row, self.column)), shape=(len(self.low), columns))
        return LinearConstraint(matrix.tocsr(), np.array(self.low), np.array(self.high))


class _Model:
    """Columns: 0 is max t, 1 the surplus, 2 max o (in `unit` s), then points and flows as they are met."""

    def __init__(self, chain: Chain) -> None:
        self.chain, self.columns = chain, 3
        self.points: dict[tuple[int, Cell], int] = {}
        self.flows: dict[tuple[int, Cell], list[int]] = defaultdict(list)
        self.out: dict[Place, list[int]] = defaultdict(list)
        self.into: dict[Place, list[int]] = defaultdict(list)
        self._places()
        self.unit = max((float(cell.t[-1]) for _, cell in self.points), default=1.0) / TYPICAL or 1.0

    def _places(self) -> None:
        chain, end = self.chain, (-1, 0, self.chain.devices)
        waiting: set[Place] = {(chain.stages - 1, chain.layers, (0,) * len(chain.devices))}
        while waiting:
            following: set[Place] = set()
            for place in sorted(waiting):
                stage, left, used = place
                for cell in chain.cells(stage, left, used):
                    taken = tuple(a + b for a, b in zip(used, cell.uses, strict=True))
                    reached = (stage - 1, left - cell.layers, taken)
                    over = reached[1] < 0 or any(a > b for a, b in zip(taken, chain.devices, strict=True))
                    if over or (stage == 0 and reached != end):
                        continue
                    if (stage, cell) not in self.points:
                        self.points[stage, cell] = self.columns
                        self.columns += len(cell.t)
                    self.flows[stage, cell].append(self.columns)
                    self.out[place].append(self.columns)
                    self.into[reached].append(self.columns)
                    following.add(reached)
                    self.columns += 1
            waiting = {place for place in following if place[0] >= 0}

    def _rows(self) -> _Rows:
        rows, chain = _Rows(), self.chain
        root = (chain.stages - 1, chain.layers, (0,) * len(chain.devices))
        rows.add([(column, 1.0) for column in self.out[root]], 1, 1)
        for place, entering in list(self.into.items()):
            if place[0] >= 0:
                rows.add([(c, 1.0) for c in entering] + [(c, -1.0) for c in self.out[place]], 0, 0)
        terms: dict[tuple[str, int], list[tuple[int, float]]] = defaultdict(list)
        for (stage, cell), first in self.points.items():
            columns = range(first, first + len(cell.t))
            rows.add([(c, 1.0) for c in columns] + [(c, -1.0) for c in self.flows[stage, cell]], 0, 0)
            for name in "txdo":
                terms[name, stage] += zip(columns, (getattr(cell, name) / self.unit).tolist(), strict=True)
        before: list[tuple[int, float]] = []
        for stage in range(chain.stages):
            rows.add([(0, 1.0), *((c, -t) for c, t in terms["t", stage])], 0, np.inf)
            rows.add([(1, 1.0), *((c, -d) for c, d in terms["d", stage]), *before], 0, np.inf)
            rows.add([(2, 1.0), *((c, -o) for c, o in terms["o", stage])], 0, np.inf)
            before += [(c, chain.fill * x) for c, x in terms["x", stage]]
        return rows

    def solve(self, effort: Effort) -> "OptimizeResult | None":
        """Run HiGHS; status 0 is optimal, 2 infeasible, 1 a limit; None where it was stopped."""
        from scipy import optimize  # noqa: PLC0415 - every command would wait for it

        cost, whole, most = np.zeros(self.columns), np.zeros(self.columns, dtype=np.int64), np.ones(self.columns)
        cost[:3], most[:3] = (self.chain.microbatches - self.chain.fill, 1, 1), np.inf
        for (_, cell), first in self.points.items():
            cost[first : first + len(cell.t)] = self.chain.fill * cell.x / self.unit
            whole[first : first + len(cell.t)] = 1
        constraint, bounds = self._rows().constraint(self.columns), optimize.Bounds(0, most)
        limit = {} if effort.steps is None else {"node_limit": effort.steps}
        options = {"time_limit": SECONDS, "mip_rel_gap": 0.0} | limit
        asked = {"c": cost, "integrality": whole, "bounds": bounds, "constraints": constraint, "options": options}
        found: OptimizeResult | None = highs.milp(effort.stop, **asked)
        return found

    def choice(self, x: np.ndarray) -> Choice:
        """Return the choice of a solution: per stage the largest x."""
        best: dict[int, tuple[float, Cell, int]] = {}
        for (stage, cell), first in self.points.items():
            k = int(x[first : first + len(cell.t)].argmax())
            if stage not in best or x[first + k] > best[stage][0]:
                best[stage] = float(x[first + k]), cell, k
        taken = [best[stage] for stage in range(self.chain.stages)]
        return Choice(tuple(cell for _, cell, _ in taken), tuple(k for _, _, k in taken))
