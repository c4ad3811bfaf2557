"""Tile programs as Triton: a block is one Triton program, its tiles are Triton's blocks.

Who in a block does what is then Triton's to say, so that of the task mappings only the number of workers is left.
"""

from typing import Any

from calibration.taskmap.contraction import Place
from calibration.taskmap.program import Array, Program
from calibration.taskmap.text import Python

HEAD = """\
import triton
import triton.language as tl


@triton.jit
"""
LEAST = 16
"""Rows, columns and depth that tl.dot wants at least."""


class _Functions:
    @staticmethod
    def erf(x: Any) -> Python:
        return Python(f"tl.math.erf({x})")

    @staticmethod
    def largest(x: Any, y: Any) -> Python:
        return Python(f"tl.maximum({x}, {Python.text(y)})")


def source(program: Program, name: str = "kernel") -> str:
    """Return a Python file with the kernel `name`(a, b, c, vectors in the order of the epilogue, sizes).

    Arrays may be of fp32, fp16 or bf16, which the pointers say; sums are of fp32. The grid is rows / block rows by
    columns / block columns, both rounded up.

    Raises:
        ValueError: Triton has no blocks of these sizes.
    """
    high, wide, deep = program.block
    if any(size < LEAST or size & (size - 1) for size in program.block):
        raise ValueError(f"block: got {program.block}; allowed: powers of two from {LEAST}")
    rows, columns, depth = program.contraction.extents(_sizes(program))
    vectors = [f.vector for f in program.epilogue if f.vector]
    body = [
        f"rows, columns, depth = {rows}, {columns}, {depth}",
        # Addresses of large matrices do not fit into the 32 bits of program ids.
        f"i = tl.program_id(0).to(tl.int64) * {high} + tl.arange(0, {high})",
        f"j = tl.program_id(1).to(tl.int64) * {wide} + tl.arange(0, {wide})",
        # No tl.zeros: like all that Triton's library writes in Triton, it is compiled where Triton was imported early.
        f"sums = tl.full(({high}, {wide}), 0.0, tl.float32)",
        f"for start in range(0, depth, {deep}):",
        f"    q = tl.cast(start, tl.int64) + tl.arange(0, {deep})",
        *(f"    {line}" for line in (*_load(program, "a"), *_load(program, "b"))),
        '    sums = tl.dot(a_tile, b_tile, sums, input_precision="ieee")',
        *_store(program),
    ]
    arguments = ", ".join(["a", "b", "c", *vectors, *program.contraction.sizes])
    return f"{HEAD}def {name}({arguments}):\n" + "".join(f"    {line}\n" for line in body)


def options(program: Program) -> dict[str, int]:
    """Return how Triton is to launch the program.

    num_warps: stands for the workers, 32 a warp and at least 1; a power of two, as the block's sizes are.
    num_stages: stands for the copies of the tiles: 1 loads and multiplies in turns, 2 is double buffering.
    """
    return {"num_warps": max(1, program.workers // 32), "num_stages": program.buffers}


def _sizes(program: Program) -> dict[str, Python]:
    return {size: Python(size) for size in program.contraction.sizes}


def _load(program: Program, array: Array) -> list[str]:
    """Return the lines that fill a tile; outside of the array it is 0, whatever the prologue makes of 0."""
    if array == "a":
        place = program.contraction.a(_sizes(program), Python("i[:, None]"), Python("q[None, :]"))
        inside = "(i[:, None] < rows) & (q[None, :] < depth)"
    else:
        place = program.contraction.b(_sizes(program), Python("q[:, None]"), Python("j[None, :]"))
        inside = "(q[:, None] < depth) & (j[None, :] < columns)"
    tile, mask = f"{array}_tile", f"{array}_inside"
    functions = [function for of, function in program.prologue if of == array]
    value: Any = Python(f"{tile}.to(tl.float32)")
    for function in functions:
        value = function.apply(_Functions, value, None)
    return [
        f"{mask} = {_both(inside, place)}",
        f"{tile} = tl.load({array} + {place.at}, mask={mask}, other=0.0)",
        *([f"{tile} = tl.where({mask}, {value}, 0.0).to({tile}.dtype)"] if functions else []),
    ]


def _both(inside: str, place: Place) -> str:
    return inside if place.inside is True else f"{inside} & {place.inside}"


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
