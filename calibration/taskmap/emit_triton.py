"""Tile programs as Triton: a block is one Triton program, its tiles are Triton's blocks.

Who in a block does what is then Triton's to say, so that of the task mappings only the number of workers is left.
Inside of the loop over the sum stands as little as may be: where an address grows evenly, pointers move on by what it
grows; masks of rows and columns are made before. Where tiles are copied in bulk there are neither: the copy engine is
told the matrix, and puts 0 where a tile reaches beyond it.
"""

from collections.abc import Sequence
from typing import Any, Literal

import sympy

from calibration.taskmap.contraction import PRODUCT, Elementwise, Place, Sizes
from calibration.taskmap.program import Array, Program
from calibration.taskmap.text import Python
from sim.costs.algebra import Expr

HEAD = """\
import triton
import triton.language as tl


@triton.jit
"""
LEAST = 16
"""Rows, columns and depth that tl.dot wants at least."""
Precision = Literal["ieee", "tf32"]
"""How fp32 is multiplied: as it is, or rounded to 11 bits for the tensor units."""


class _Functions:
    @staticmethod
    def erf(x: Any) -> Python:
        return Python(f"tl.math.erf({x})")

    @staticmethod
    def largest(x: Any, y: Any) -> Python:
        return Python(f"tl.maximum({x}, {Python.text(y)})")


def source(program: Program, name: str = "kernel", precision: Precision = "ieee") -> str:
    """Return a Python file with the kernel `name`(a, b, c, vectors in the order of the epilogue, sizes, whole).

    Arrays may be of fp32, fp16 or bf16, which the pointers say; sums are of fp32. The grid has one dimension, rows /
    block rows times columns / block columns, both rounded up; `whole`: the block's depth divides the sum's. In bulk,
    a and b are tensor descriptors of the matrices of `held`.

    Raises:
        ValueError: Triton has no blocks of these sizes, or copies no such arrays in bulk.
    """
    high, wide, deep = program.block
    if program.bulk and not matrices(program):
        raise ValueError(f"bulk: got {program.contraction.name}; allowed: a product of matrices as they are in memory")
    if any(size < LEAST or size & (size - 1) for size in program.block):
        raise ValueError(f"block: got {program.block}; allowed: powers of two from {LEAST}")
    vectors = [f.vector for f in program.epilogue if f.vector]
    load = _bulk if program.bulk else _load
    before, inside, after = zip(*(load(program, array) for array in ("a", "b")), strict=True)
    body = [
        *_corner(program),
        *_lines(before),
        # No tl.zeros: like all that Triton's library writes in Triton, it is compiled where Triton was imported early.
        f"sums = tl.full(({high}, {wide}), 0.0, tl.float32)",
        f"for start in range(0, depth, {deep}):",
        *(f"    {line}" for line in _lines(inside)),
        f'    sums = tl.dot(a_tile, b_tile, sums, input_precision="{precision}")',
        *(f"    {line}" for line in _lines(after)),
        *_store(program),
    ]
    arguments = ", ".join(["a", "b", "c", *vectors, *program.contraction.sizes, "whole: tl.constexpr"])
    return f"{HEAD}def {name}({arguments}):\n" + "".join(f"    {line}\n" for line in body)


def options(program: Program) -> dict[str, int]:
    """Return how Triton is to launch the program.

    num_warps: stands for the workers, 32 a warp and at least 1; a power of two, as the block's sizes are.
    num_stages: stands for the copies of the tiles: 1 loads and multiplies in turns, 2 is double buffering.
    """
    return {"num_warps": max(1, program.workers // 32), "num_stages": program.buffers}


def _lines(parts: Sequence[list[str]]) -> list[str]:
    return [line for part in parts for line in part]


def _sizes(program: Program) -> dict[str, Python]:
    return {size: Python(size) for size in program.contraction.sizes}


def _corner(program: Program) -> list[str]:
    """Return the lines that say which rows `i`, columns `j` and first places in the sum `q` are the block's.

    Addresses of large matrices do not fit into the 32 bits of program ids; lengths do.
    """
    high, wide, deep = program.block
    rows, columns, depth = program.contraction.extents(_sizes(program))
    return [
        f"rows, columns, depth = {rows}, {columns}, {depth}",
        f"band = {program.group} * ((columns + {wide - 1}) // {wide})",
        f"first = tl.program_id(0) // band * {program.group}",
        f"side = tl.minimum((rows + {high - 1}) // {high} - first, {program.group})",
        "within = tl.program_id(0) % band",
        f"i = (first + within % side).to(tl.int64) * {high} + tl.arange(0, {high})",
        f"j = (within // side).to(tl.int64) * {wide} + tl.arange(0, {wide})",
        f"q = tl.arange(0, {deep})",
    ]


def matrices(program: Program) -> bool:
    """Return whether A and B are matrices that are multiplied as they are: what can be copied in bulk."""
    return program.contraction.sizes == PRODUCT and not program.prologue


def held(program: Program, array: Array, sizes: Sizes) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the rows and columns of A's or B's matrix as it lies in memory, row by row, and of its tiles."""
    rows, columns, depth = program.contraction.extents(sizes)
    high, wide, deep = program.block
    matrix, tile = ((rows, depth), (high, deep)) if array == "a" else ((depth, columns), (deep, wide))
    if program.contraction.beside[array == "b"]:
        return matrix, tile
    return (matrix[1], matrix[0]), (tile[1], tile[0])


def _bulk(program: Program, array: Array) -> tuple[list[str], list[str], list[str]]:
    """Return `_load`'s lines of tiles that are copied as a whole; a corner's place is of 32 bits, as lengths are."""
    high, wide, _ = program.block
    corner = f"{array}_corner"
    if array == "a":
        before, places = f"{corner} = (first + within % side) * {high}", (corner, "start")
    else:
        before, places = f"{corner} = within // side * {wide}", ("start", corner)
    if program.contraction.beside[array == "b"]:
        return [before], [f"{array}_tile = {array}.load([{places[0]}, {places[1]}])"], []
    return [before], [f"{array}_tile = {array}.load([{places[1]}, {places[0]}]).T"], []


def _load(program: Program, array: Array) -> tuple[list[str], list[str], list[str]]:
    """Return the lines before the loop, those that fill a tile, and those that end a step."""
    tile, edge = f"{array}_tile", f"{array}_edge"
    of_a = array == "a"
    side = "i[:, None] < rows" if of_a else "j[None, :] < columns"
    deep = "q[None, :]" if of_a else "q[:, None]"
    here = f"{deep} < depth - start"
    stride = _stride(program, array)
    if stride is None:
        place = _place(program, array, f"(start + {deep})")
        also = "" if place.inside is True else f" & {place.inside}"
        before, after, pointer = [f"{edge} = {side}"], [], f"{array} + {place.at}"
    else:
        place, also, pointer = _place(program, array, f"{deep}.to(tl.int64)"), "", f"{array}_at"
        before = [f"{edge} = {side}", f"{pointer} = {array} + {place.at}"]
        step = f"{program.block[2]}" if stride == 1 else f"tl.cast({stride}, tl.int64) * {program.block[2]}"
        after = [f"{pointer} += {step}"]
    inside = f"{array}_inside"
    functions = [function for of, function in program.prologue if of == array]
    return (
        before,
        [
            f"{inside} = {edge}{also}",
            "if not whole:",
            f"    {inside} = {inside} & ({here})",
            f"{tile} = tl.load({pointer}, mask={inside}, other=0.0)",
            *_made_of(tile, inside, functions),
        ],
        after,
    )


def _made_of(tile: str, inside: str, functions: Sequence[Elementwise]) -> list[str]:
    """Return the line that applies a prologue; outside of the array a tile is 0, whatever is made of 0."""
    value: Any = Python(f"{tile}.to(tl.float32)")
    for function in functions:
        value = function.apply(_Functions, value, None)
    return [f"{tile} = tl.where({inside}, {value}, 0.0).to({tile}.dtype)"] if functions else []


def _place(program: Program, array: Array, deep: str) -> Place:
    contraction, sizes = program.contraction, _sizes(program)
    if array == "a":
        return contraction.a(sizes, Python("i[:, None]"), Python(deep))
    return contraction.b(sizes, Python(deep), Python("j[None, :]"))


def _stride(program: Program, array: Array) -> Expr | None:
    """Return how far apart neighbours along the sum lie, if it is the same everywhere and all are there; else None."""
    contraction = program.contraction
    sizes = {size: sympy.Symbol(size, integer=True, positive=True) for size in contraction.sizes}
    side, deep = sympy.symbols("side deep", integer=True, nonnegative=True)
    here, there = (
        contraction.a(sizes, side, k) if array == "a" else contraction.b(sizes, k, side) for k in (deep, deep + 1)
    )
    step = sympy.expand(there.at - here.at)
    return step if here.inside is True and not step.free_symbols & {side, deep} else None


def _store(program: Program) -> list[str]:
    """Return the lines that apply the epilogue and write the block; each function reads `sums` once or more."""
    lines = []
    for function in program.epilogue:
        vector = None
        if function.vector:
            lines.append(f"row = tl.load({function.vector} + j, mask=j < columns, other=0.0).to(tl.float32)")
            vector = Python("row[None, :]")
        lines.append(f"sums = {function.apply(_Functions, Python('sums'), vector)}")
    at = program.contraction.c(_sizes(program), Python("i[:, None]"), Python("j[None, :]"))
    inside = "(i[:, None] < rows) & (j[None, :] < columns)"
    return [*lines, f"tl.store(c + {at}, sums.to(c.dtype.element_ty), mask={inside})"]
