"""The inter-stage problem solved with less than is known of it, to see what that knowledge is worth."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sim.tuner.options import PLACE
from sim.tuner.solvers.chain import Cell, Choice, Effort, Ints, Solution, step_seconds
from sim.tuner.solvers.exact import exact
from sim.tuner.stages import StageCell, StageTables


def solve_without_surplus(tables: StageTables, effort: Effort, n: int) -> Solution:
    """Return the n best ways if the first and the last microbatch took no longer than the others (d = 0)."""
    chain = tables.chain(effort.at_most * tables.slower)
    made: dict[int, tuple[Sequence[Cell], tuple[Cell, ...]]] = {}

    def cells(stage: int, left: int, used: tuple[int, ...]) -> Sequence[Cell]:
        offered = chain.cells(stage, left, used)
        if id(offered) not in made:
            made[id(offered)] = offered, tuple(_fastest(cell) for cell in offered)
        return made[id(offered)][1]

    return exact(replace(chain, cells=cells), effort, n)


def _fastest(cell: Cell) -> Cell:
    assert isinstance(cell, StageCell)
    return replace(cell, t=cell.t[:1], d=np.zeros(1), x=cell.t[:1], o=np.zeros(1), options=cell.options[:1])


def solve_alike(tables: StageTables, effort: Effort, n: int) -> Solution:
    """Return the n best ways with the same layers, devices and techniques in every stage; one device type only."""
    tables.chain(effort.at_most * tables.slower)  # fills in what offloads
    table, stages = tables.tables[0], tables.asked.stages
    if len(tables.tables) > 1 or tables.asked.model.layers % stages or tables.devices[0] % stages:
        return Solution((), (), np.inf, True, 0, "stages cannot be alike")
    columns, gpus = table.columns, tables.devices[0] // stages
    fits = (columns["layers"] == tables.asked.model.layers // stages) & (columns["gpus"] == gpus)
    rows, crossings = _places(tables, gpus)
    for stage, row in enumerate(rows):
        fits &= table.alive[row] >= min(tables.asked.microbatches, stages - stage)
    options = np.flatnonzero(fits)
    each = {name: getattr(table, name)[rows, crossings][:, options] for name in "txdo"}
    values = step_seconds(**each, microbatches=tables.asked.microbatches)
    best = [k for k in np.argsort(values, kind="stable")[:n].tolist() if values[k] < effort.at_most]
    layers = tables.asked.model.layers // stages
    choices = [
        Choice(
            tuple(
                # one point each
                StageCell(layers, (gpus,), **{m: v[s, [k]] for m, v in each.items()}, table=table, options=options[[k]])
                for s in range(stages)
            ),
            (0,) * stages,
        )
        for k in best
    ]
    found = tuple(float(values[k]) for k in best)
    return Solution(tuple(choices), found, min(found, default=np.inf), True, len(options))


def _places(tables: StageTables, gpus: int) -> tuple[Ints, Ints]:
    """Return, per stage, the row of `Table.t` and whether the message to the next stage leaves the fast domain."""
    stages = tables.asked.stages
    rows = np.full(stages, PLACE["middle"])
    rows[-1], rows[0] = PLACE["last"], PLACE["first"]
    return rows, np.array([tables.crosses((s + 1) * gpus, gpus) for s in range(stages)])
