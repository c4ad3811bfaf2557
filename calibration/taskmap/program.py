"""A kernel as a tile program: what a block of C loads, computes and stores, tile by tile, and who does it.

Every statement says what happens and, by a task mapping, which worker does which part. The program is made once from a
template and then rewritten: buffering and fusion are functions from program to program (Hidet, sections 4.2 and
4.3), so that an interpreter and the emitters need to know statements only.
"""

from dataclasses import dataclass, replace
from math import gcd
from typing import Literal

from calibration.taskmap.contraction import Contraction, Elementwise
from calibration.taskmap.mapping import TaskMapping, repeat, spatial

Array = Literal["a", "b"]


@dataclass(frozen=True)
class Load:
    """Fill a tile of `array` for step `step + ahead` of the sum; workers take its elements by `mapping`."""

    array: Array
    mapping: TaskMapping
    ahead: int = 0


@dataclass(frozen=True)
class Compute:
    """Add the products of this step's tiles to the block's sums; workers take elements of C by `mapping`.

    outside: how many of the mapping's primitives stand outside of the loop over the tile's depth; the sums of those
    inside stay in registers meanwhile.
    """

    mapping: TaskMapping
    outside: int = 0


@dataclass(frozen=True)
class Store:
    """Write the block's sums, after `epilogue`; workers take elements of C by `mapping`."""

    mapping: TaskMapping
    epilogue: tuple[Elementwise, ...] = ()


@dataclass(frozen=True)
class Barrier:
    """All workers of a block wait for each other."""


@dataclass(frozen=True)
class Steps:
    """The loop over the tiles of the sum."""

    body: tuple["Statement", ...]


Statement = Load | Compute | Store | Barrier | Steps


@dataclass(frozen=True)
class Program:
    """What one block does; blocks cover C, and edges are predicated.

    block: rows, columns and depth of its tiles. buffers: copies of the tiles of A and B (2: one fills while the other
    is read). prologue: what is done to an element of A or B when it is loaded. group: rows of blocks that go through
    the columns of blocks together, so that a cache still holds what they share of B (1: row after row); it changes no
    result, and only Triton's emitter heeds it. bulk: tiles of matrices are copied as a whole by the copy engine that
    GPUs have from Hopper on (TMA), not element by element by the workers; the same holds of it.
    """

    contraction: Contraction
    block: tuple[int, int, int]
    body: tuple[Statement, ...]
    buffers: int = 1
    prologue: tuple[tuple[Array, Elementwise], ...] = ()
    group: int = 1
    bulk: bool = False

    @property
    def workers(self) -> int:
        """Workers of a block."""
        return next(s.mapping.workers for s in self.body if isinstance(s, Store))

    @property
    def epilogue(self) -> tuple[Elementwise, ...]:
        """What is done to an element of C before it is stored."""
        return next(s.epilogue for s in self.body if isinstance(s, Store))


def matmul(contraction: Contraction, compute: TaskMapping, depth: int, outside: int = 0) -> Program:
    """Return the template of a sum of products: blocks of the mapping's grid, `depth` of the sum at a time."""
    rows, columns = compute.grid
    of_a, of_b = contraction.beside
    loads = (
        Load("a", loading(rows, depth, compute.workers, of_a)),
        Load("b", loading(depth, columns, compute.workers, of_b)),
    )
    steps = Steps((*loads, Barrier(), Compute(compute, outside), Barrier()))
    return Program(contraction, (rows, columns, depth), (steps, Store(compute)))


RUN = 32
"""Neighbours read at a stretch where they go down a tile: rows of a power of two share few sets of a cache."""


def loading(rows: int, columns: int, workers: int, beside: int = 1) -> TaskMapping:
    """Return the mapping by which workers fill a tile: side by side along the dimension `beside` as far as it goes.

    Raises:
        ValueError: the workers do not share the elements evenly.
    """
    near = gcd((rows, columns)[beside], workers)
    other = workers // near
    if (rows, columns)[1 - beside] % other:
        raise ValueError(f"workers: got {workers}; allowed: a number that shares a tile of {rows} x {columns} evenly")
    if beside:
        return repeat(rows // other, columns // near) * spatial(other, near)
    run = max(gcd(rows, RUN), near)
    walk = repeat(run // near, columns // other, ranking=(1, 0))
    return repeat(rows // run, 1) * walk * spatial(near, other, ranking=(1, 0))


def buffered(program: Program, buffers: int) -> Program:
    """Return the program in which the tiles of `buffers` - 1 later steps are loaded while this step's are multiplied.

    One barrier a step is enough: what is written to was last read in the step before it. One buffer changes nothing.

    Raises:
        ValueError: there is no buffer, or the program loads ahead already.
    """
    if buffers < 1:
        raise ValueError(f"buffers: got {buffers}; allowed: a number from 1")
    if program.buffers > 1:
        raise ValueError(f"buffers: got a program of {program.buffers}; allowed: one of 1, whose loads are not ahead")
    if buffers == 1:
        return program
    first: list[Statement] = []
    rest: list[Statement] = []
    for statement in program.body:
        if not isinstance(statement, Steps):
            rest.append(statement)
            continue
        loads = [s for s in statement.body if isinstance(s, Load)]
        ahead: list[Statement] = [replace(load, ahead=buffers - 1) for load in loads]
        others = [s for s in statement.body if not isinstance(s, Load | Barrier)]
        first += [*(replace(load, ahead=step) for step in range(buffers - 1) for load in loads), Barrier()]
        rest.append(Steps((*ahead, *others, Barrier())))
    return replace(program, body=(*first, *rest), buffers=buffers)


def double_buffered(program: Program) -> Program:
    """Return the program with two buffers (Hidet, section 4.2)."""
    return buffered(program, 2)


def fused_before(program: Program, array: Array, function: Elementwise) -> Program:
    """Return the program that applies a function to the elements of A or B as they are loaded."""
    return replace(program, prologue=(*program.prologue, (array, function)))


def fused_after(program: Program, *functions: Elementwise) -> Program:
    """Return the program that applies functions to the elements of C before they are stored."""
    body = tuple(replace(s, epilogue=(*s.epilogue, *functions)) if isinstance(s, Store) else s for s in program.body)
    return replace(program, body=body)
