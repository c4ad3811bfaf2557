"""Task mappings: which worker does which tasks, and in what order (Hidet, arXiv 2210.09603, section 5.1).

A mapping assigns the cells of a task grid to workers. Two primitives, `repeat` (one worker walks the grid) and
`spatial` (a worker a cell), compose to all others: `f * g` does each of f's tasks as a whole grid of g's tasks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Task = tuple[int, ...]


@dataclass(frozen=True)
class Atom:
    """A primitive: a grid of `sizes`, walked or spread with the dimensions of `ranking` from slowest to fastest."""

    kind: Literal["repeat", "spatial"]
    sizes: tuple[int, ...]
    ranking: tuple[int, ...]

    def __post_init__(self) -> None:
        if min(self.sizes, default=0) < 1:
            raise ValueError(f"sizes: got {self.sizes}; allowed: one or more numbers from 1")
        if sorted(self.ranking) != list(range(len(self.sizes))):
            raise ValueError(f"ranking: got {self.ranking}; allowed: an order of {tuple(range(len(self.sizes)))}")

    @property
    def cells(self) -> int:
        """Cells of the grid."""
        return prod(self.sizes)

    def cell(self, index: int) -> Task:
        """Return the coordinates of the cell that comes `index`-th in the ranking's order."""
        found = [0] * len(self.sizes)
        for dimension in reversed(self.ranking):
            index, found[dimension] = divmod(index, self.sizes[dimension])
        return tuple(found)


@dataclass(frozen=True)
class TaskMapping:
    """A composition of primitives, outermost first.

    The list is the whole of it: joining lists is associative, so composition is; and every cell has one digit for each
    primitive, so every task is some worker's exactly once.
    """

    atoms: tuple[Atom, ...]

    def __post_init__(self) -> None:
        if len({len(atom.sizes) for atom in self.atoms}) != 1:
            raise ValueError("atoms: got grids of different dimensions, or none; allowed: the same for all")

    @property
    def workers(self) -> int:
        """How many workers there are."""
        return prod(atom.cells for atom in self.atoms if atom.kind == "spatial")

    @property
    def grid(self) -> Task:
        """Sizes of the task grid."""
        return tuple(map(prod, zip(*(atom.sizes for atom in self.atoms), strict=True)))

    @property
    def tasks(self) -> int:
        """Tasks of each worker."""
        return prod(atom.cells for atom in self.atoms if atom.kind == "repeat")

    def __mul__(self, inner: "TaskMapping") -> "TaskMapping":
        return TaskMapping(self.atoms + inner.atoms)

    def __call__(self, worker: int) -> list[Task]:
        """Return the tasks of a worker, in the order in which it does them.

        Raises:
            ValueError: there is no such worker.
        """
        if not 0 <= worker < self.workers:
            raise ValueError(f"worker: got {worker}; allowed: 0 to {self.workers - 1}")
        return [self._task(cells) for cells in product(*self._choices(worker))]

    def table(self) -> NDArray[np.int64]:
        """Return all tasks as [worker, task, dimension]."""
        found = np.zeros((1, 1, len(self.grid)), dtype=np.int64)
        for atom in self.atoms:
            cells = np.array([atom.cell(i) for i in range(atom.cells)])
            spread = cells[None, :, None] if atom.kind == "spatial" else cells[None, None]
            corner = (found * atom.sizes)[:, None] if atom.kind == "spatial" else (found * atom.sizes)[:, :, None]
            shape = np.array(found.shape[:2]) * ((atom.cells, 1) if atom.kind == "spatial" else (1, atom.cells))
            found = (corner + spread).reshape(*shape, -1)
        return found

    def _choices(self, worker: int) -> Iterator[list[Task]]:
        """Yield, for each primitive, the cells that this worker visits."""
        left = self.workers
        for atom in self.atoms:
            if atom.kind == "repeat":
                yield [atom.cell(i) for i in range(atom.cells)]
            else:
                left //= atom.cells
                yield [atom.cell(worker // left % atom.cells)]

    def _task(self, cells: tuple[Task, ...]) -> Task:
        found = [0] * len(self.grid)
        for atom, cell in zip(self.atoms, cells, strict=True):
            found = [t * size + u for t, size, u in zip(found, atom.sizes, cell, strict=True)]
        return tuple(found)


def repeat(*sizes: int, ranking: tuple[int, ...] | None = None) -> TaskMapping:
    """Return the mapping in which one worker walks the whole grid, by default the last dimension fastest."""
    return TaskMapping((Atom("repeat", sizes, ranking or tuple(range(len(sizes)))),))


def spatial(*sizes: int, ranking: tuple[int, ...] | None = None) -> TaskMapping:
    """Return the mapping with a worker for each cell, numbered by default with the last dimension fastest."""
    return TaskMapping((Atom("spatial", sizes, ranking or tuple(range(len(sizes)))),))
