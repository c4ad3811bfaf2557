"""Runs a tile program on real matrices, statement by statement, and catches workers that do not wait for each other."""

from collections.abc import Mapping
from functools import lru_cache
from itertools import product
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf

from calibration.taskmap.contraction import Index, Place, Sizes
from calibration.taskmap.mapping import TaskMapping
from calibration.taskmap.program import Array, Barrier, Compute, Load, Program, Statement, Steps, Store

Values = NDArray[Any]
Ints = NDArray[np.int64]


class RaceError(RuntimeError):
    """A worker uses what another one has written, or is still reading, without a barrier between."""


class _Functions:
    erf = staticmethod(erf)
    largest = staticmethod(np.maximum)


def interpret(
    program: Program, a: Values, b: Values, sizes: Sizes, vectors: Mapping[str, Values] | None = None
) -> Values:
    """Return C [rows x columns, flat] as the program computes it.

    a, b: flat arrays; sizes: by name as the contraction has them; vectors: inputs of epilogues by name, one element a
    column of C. What no statement writes stays NaN.

    Raises:
        RaceError: a barrier is missing.
    """
    rows, columns, depth = program.contraction.extents(sizes)
    c = np.full(rows * columns, np.nan, dtype=a.dtype)
    high, wide, _ = program.block
    for at in product(range(ceil(rows / high)), range(ceil(columns / wide))):
        _Block(
            program, {"a": a, "b": b}, sizes, vectors or {}, c, (at[0] * high, at[1] * wide), (rows, columns, depth)
        ).run()
    return c


@lru_cache(maxsize=64)
def workers_of(mapping: TaskMapping) -> tuple[Ints, Ints, Ints]:
    """Return worker, row and column of every task of a mapping, [task]."""
    table = mapping.table()
    worker = np.repeat(np.arange(len(table)), table.shape[1])
    return worker, *table.reshape(-1, 2).T


class _Tile:
    """Copies of one tile; `writer` and `reader` of every element since the last barrier: -1 none, -2 several."""

    def __init__(self, buffers: int, shape: tuple[int, int], dtype: Any) -> None:
        self.values = np.full((buffers, *shape), np.nan, dtype=dtype)
        self.writer = np.full(self.values.shape, -1)
        self.reader = np.full(self.values.shape, -1)

    def wait(self) -> None:
        self.writer[:], self.reader[:] = -1, -1

    def write(self, slot: int, worker: Ints, row: Ints, column: Ints, values: Values) -> None:
        for seen in (self.writer, self.reader):
            _check(seen[slot, row, column], worker)
        self.values[slot, row, column] = values
        self.writer[slot, row, column] = worker

    def read(self, slot: int, worker: Ints, row: Ints, column: Ints) -> Values:
        _check(self.writer[slot, row, column], worker)
        before = self.reader[slot, row, column]
        self.reader[slot, row, column] = np.where((before == -1) | (before == worker), worker, -2)
        # Several of these reads may be of one element: the last to be noted must not hide the others.
        many = self.reader[slot, row, column] != worker
        self.reader[slot, row[many], column[many]] = -2
        return np.asarray(self.values[slot, row, column])


def _check(other: Ints, worker: Ints) -> None:
    wrong = (other != -1) & (other != worker)
    if wrong.any():
        raise RaceError(f"worker {int(worker[wrong][0])} does not wait for another one")


class _Block:
    """One block of C under way."""

    def __init__(
        self,
        program: Program,
        arrays: Mapping[Array, Values],
        sizes: Sizes,
        vectors: Mapping[str, Values],
        c: Values,
        corner: tuple[int, int],
        extents: tuple[int, int, int],
    ) -> None:
        self.program, self.arrays, self.sizes, self.vectors, self.c = program, arrays, sizes, vectors, c
        self.corner, self.extents = corner, extents
        high, wide, deep = program.block
        shapes: dict[Array, tuple[int, int]] = {"a": (high, deep), "b": (deep, wide)}
        self.tiles = {name: _Tile(program.buffers, shape, c.dtype) for name, shape in shapes.items()}
        self.sums, self.owner = np.zeros((high, wide), dtype=c.dtype), np.full((high, wide), -1)
        self.steps = ceil(extents[2] / deep)

    def run(self) -> None:
        for statement in self.program.body:
            self._do(statement, 0)

    def _do(self, statement: Statement, step: int) -> None:
        if isinstance(statement, Steps):
            for n in range(self.steps):
                for inner in statement.body:
                    self._do(inner, n)
        elif isinstance(statement, Load):
            self._load(statement, step + statement.ahead)
        elif isinstance(statement, Compute):
            self._compute(statement, step % self.program.buffers)
        elif isinstance(statement, Barrier):
            for tile in self.tiles.values():
                tile.wait()
        elif isinstance(statement, Store):
            self._store(statement)

    def _load(self, load: Load, step: int) -> None:
        if step >= self.steps:
            return
        worker, row, column = workers_of(load.mapping)
        deep = self.program.block[2]
        if load.array == "a":
            first, second = self.corner[0] + row, step * deep + column
            place, limits = self.program.contraction.a, (self.extents[0], self.extents[2])
        else:
            first, second = step * deep + row, self.corner[1] + column
            place, limits = self.program.contraction.b, (self.extents[2], self.extents[1])
        found = _fetch(self.arrays[load.array], place(self.sizes, first, second), (first, second), limits)
        values, inside = found
        for array, function in self.program.prologue:
            if array == load.array:
                values = np.where(inside, function.apply(_Functions, values, None), 0)
        self.tiles[load.array].write(step % self.program.buffers, worker, row, column, values)

    def _compute(self, compute: Compute, slot: int) -> None:
        worker, row, column = workers_of(compute.mapping)
        _check(self.owner[row, column], worker)
        self.owner[row, column] = worker
        for k in range(self.program.block[2]):
            deep = np.full_like(row, k)
            a = self.tiles["a"].read(slot, worker, row, deep)
            b = self.tiles["b"].read(slot, worker, deep, column)
            np.add.at(self.sums, (row, column), a * b)

    def _store(self, store: Store) -> None:
        worker, row, column = workers_of(store.mapping)
        _check(self.owner[row, column], worker)  # sums live in the registers of who made them
        i, j = self.corner[0] + row, self.corner[1] + column
        inside = (i < self.extents[0]) & (j < self.extents[1])
        i, j, values = i[inside], j[inside], self.sums[row, column][inside]
        for function in store.epilogue:
            vector = self.vectors[function.vector][j] if function.vector else None
            values = function.apply(_Functions, values, vector)
        self.c[self.program.contraction.c(self.sizes, i, j)] = values


def _fetch(array: Values, place: Place, at: tuple[Index, Index], limits: tuple[int, int]) -> tuple[Values, Values]:
    """Return the elements at a place, 0 where there is none, and where there is one."""
    inside = (at[0] < limits[0]) & (at[1] < limits[1]) & place.inside
    return np.where(inside, array[np.where(inside, place.at, 0)], 0), inside
