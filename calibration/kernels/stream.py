"""Kernels that stream tensors of (rows, columns): the shapes they are measured at and how one is made ready."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from calibration.kernels.family import Case, Machine, Suite, Use, Work
from calibration.kernels.work import (
    ITEM,
    TOLERANCE,
    ZERO,
    Check,
    Draw,
    doubles,
    evaluate,
    fits,
    log_uniform,
    main_dtype,
    pick,
    relative_error,
    rotated,
)
from sim.costs.algebra import Expr

Shape = tuple[int, int]


@dataclass(frozen=True)
class Kernel:
    """One implementation: draws a set of inputs for (rows, columns), runs, and what the result should have been.

    `reference(out, *inputs)` gets the inputs in float64 and, for kernels that draw random numbers, the result.
    """

    inputs: Callable[[Draw, int, int], tuple[Any, ...]]
    run: Callable[..., Any]
    reference: Callable[..., Any]


@dataclass(frozen=True)
class Widths:
    """Sizes to choose from: rows, columns, and the elements of one tensor, all as (smallest, largest).

    `few` is the largest number of elements in the smoke suite; hold-outs beyond reach `beyond` elements.
    """

    rows: Shape
    columns: Shape
    few: int
    most: int
    beyond: int


CPU = Widths((32, 2048), (64, 4096), 2**20, 2**22, 2**24)
CUDA = Widths((64, 131072), (128, 16384), 2**24, 2**28, 2**30)
SMALLEST = 2**12
FIT, RANDOM, LARGER = (10, 24), (3, 8), (1, 3)
"""Shapes of an implementation in (smoke, full)."""


def usual(machine: Machine) -> Widths:
    """Return the sizes of activations: tokens of a microbatch by the widths of a layer."""
    return CUDA if machine.kind == "cuda" else CPU


def powers(low: int, high: int) -> list[int]:
    """Return the powers of two from `low` to `high`."""
    return [2**n for n in range(low.bit_length() - 1, high.bit_length()) if low <= 2**n <= high]


def area(shape: Shape) -> int:
    """Return the elements of a tensor."""
    return shape[0] * shape[1]


def widest(grid: list[Shape]) -> Shape:
    """Return, of the largest shapes, the one of fewest rows."""
    most = max(map(area, grid))
    return min(s for s in grid if area(s) == most)


def shapes(widths: Widths, suite: Suite, seed: int) -> Iterator[tuple[Use, Shape]]:
    """Yield (use, (rows, columns)): powers of two to fit, any sizes among them, and larger ones."""
    every = [(r, c) for r in reversed(powers(*widths.rows)) for c in powers(*widths.columns)]
    grid = [s for s in every if SMALLEST <= area(s) <= widths.most]
    ends = [widest([s for s in grid if area(s) <= widths.few]), widest(grid)]
    for shape in pick(grid, area, widths.few, suite, FIT, seed, ends):
        yield "fit", shape
    draw = random.Random(seed + 1)
    drawn = [(log_uniform(draw, *widths.rows), log_uniform(draw, *widths.columns)) for _ in range(200)]
    inside = [s for s in drawn if SMALLEST <= area(s) <= widths.most]
    for shape in pick(inside, area, widths.few, suite, RANDOM, seed):
        yield "random", shape
    above, most = (widths.few, 4 * widths.few) if suite == "smoke" else (widths.most, widths.beyond)
    beyond = [(2 * r, c) for r, c in every if above < 2 * r * c <= most]
    for shape in pick(beyond, area, most, "smoke", LARGER if suite == "smoke" else LARGER[::-1], seed):
        yield "larger", shape


@dataclass(frozen=True)
class Stream:
    """A kernel family over (rows, columns): one key of `sim.costs.kernels`, one or more implementations.

    `bytes` is a formula over elements (rows x columns), columns, rows and item (bytes of an element); its value is
    the input of the same name of the simulator's form.
    """

    name: str
    op: str
    direction: str
    bytes: Expr
    kernels: Mapping[str, Kernel]
    flop: Expr = ZERO
    widths: Callable[[Machine], Widths] = field(default=usual)
    seed: int = 0

    def cases(self, machine: Machine, suite: Suite) -> Iterator[Case]:
        """Yield every implementation at the same shapes; a shape is its own group."""
        dtype = main_dtype(machine)
        for implementation in self.kernels:
            for use, (r, c) in shapes(self.widths(machine), suite, self.seed):
                shape = {"rows": r, "columns": c, "elements": r * c, "item": ITEM[dtype]}
                moved = evaluate(self.bytes, shape)
                if fits(machine, moved):
                    whole = {"bytes": moved, **shape}
                    yield Case(self.op, self.direction, dtype, implementation, whole, f"{r}x{c}", use=use)

    def prepare(self, case: Case, machine: Machine, seed: int) -> Work:
        """Return the kernel on random sets of inputs."""
        kernel, draw = self.kernels[case.implementation], Draw(machine, case.dtype, seed)
        r, c = int(case.shape["rows"]), int(case.shape["columns"])
        sets = rotated(machine, case.shape["bytes"], lambda: kernel.inputs(draw, r, c))
        check = Check(
            lambda: kernel.run(*sets[0]), lambda out: relative_error(out, kernel.reference(out, *doubles(sets[0])))
        )
        return Work(kernel.run, sets, check, TOLERANCE[case.dtype])
