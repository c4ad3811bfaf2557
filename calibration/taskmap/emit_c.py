"""Tile programs as C: blocks over the cores, workers as loops whose innermost ones a compiler turns into SIMD.

What the workers of a block do between two barriers runs one after the other, so that a barrier needs no code. Sums stay
in an array that the compiler keeps in registers while the loop over a tile's depth runs.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

from calibration.taskmap.contraction import Place
from calibration.taskmap.mapping import Atom, TaskMapping
from calibration.taskmap.program import Barrier, Compute, Load, Program, Statement, Steps, Store
from calibration.taskmap.text import Text

HEAD = """\
#include <math.h>

static inline float largest(float x, float y) { return x > y ? x : y; }

"""


class _Functions:
    @staticmethod
    def erf(x: Any) -> Text:
        return Text(f"erff({x})")

    @staticmethod
    def largest(x: Any, y: Any) -> Text:
        return Text(f"largest({x}, {Text.text(y)})")


def source(program: Program, name: str = "kernel") -> str:
    """Return a C file with the function `name`(a, b, c, vectors in the order of the epilogue, sizes, threads)."""
    vectors = [f.vector for f in program.epilogue if f.vector]
    arrays = ["const float *restrict a", "const float *restrict b", "float *restrict c"]
    arrays += [f"const float *restrict {v}" for v in vectors]
    sizes = [f"long {size}" for size in program.contraction.sizes]
    high, wide, deep = program.block
    rows, columns, depth = program.contraction.extents({n: Text(n) for n in program.contraction.sizes})
    n, lanes = program.buffers, max(lanes_of(s.mapping) for s in _computes(program.body))
    lines = [
        f"typedef float vec __attribute__((vector_size({4 * lanes}), aligned(4), may_alias));\n"
        if lanes > 1
        else "typedef float vec;\n",
        f"void {name}({', '.join([*arrays, *sizes, 'int threads'])}) {{",
        f"  const long rows = {rows}, columns = {columns}, depth = {depth}, steps = (depth + {deep - 1}) / {deep};",
        "#pragma omp parallel for collapse(2) num_threads(threads)",
        f"  for (long row = 0; row < rows; row += {high})",
        f"  for (long column = 0; column < columns; column += {wide}) {{",
        f"    float a_tile[{n}][{high}][{deep}] __attribute__((aligned(64)));",
        f"    float b_tile[{n}][{deep}][{wide}] __attribute__((aligned(64)));",
        f"    float sums[{high}][{wide}] __attribute__((aligned(64))) = {{{{0}}}};",
        *chain.from_iterable(_statement(s, program, "0", "    ") for s in program.body),
        "  }",
        "}",
    ]
    return HEAD + "\n".join(lines) + "\n"


def _computes(body: Sequence[Statement]) -> list[Compute]:
    inner = [s for statement in body if isinstance(statement, Steps) for s in statement.body]
    return [s for s in (*body, *inner) if isinstance(s, Compute)]


def _statement(statement: Statement, program: Program, step: str, pad: str) -> list[str]:
    if isinstance(statement, Steps):
        inner = chain.from_iterable(_statement(s, program, "step", pad + "  ") for s in statement.body)
        return [f"{pad}for (long step = 0; step < steps; step++) {{", *inner, f"{pad}}}"]
    if isinstance(statement, Load):
        return _load(statement, program, step, pad)
    if isinstance(statement, Compute):
        return _compute(statement, program, step, pad)
    if isinstance(statement, Store):
        return _store(statement, program, pad)
    assert isinstance(statement, Barrier)
    return []


def loops(atoms: Sequence[Atom], letter: str) -> tuple[list[str], list[Text]]:
    """Return the loops of a composition of primitives, outermost first, and the task's coordinates in them."""
    heads, found = [], [Text("0")] * len(atoms[0].sizes) if atoms else []
    for n, atom in enumerate(atoms):
        for dimension in atom.ranking:
            size = atom.sizes[dimension]
            if size > 1:
                var = f"{letter}{n}_{dimension}"
                heads.append(f"for (int {var} = 0; {var} < {size}; {var}++)")
        for dimension, size in enumerate(atom.sizes):
            here = found[dimension]
            outer = 0 if str(here) == "0" else here * size
            if size > 1:
                found[dimension] = outer + Text(f"{letter}{n}_{dimension}")
            else:
                found[dimension] = Text("0") if isinstance(outer, int) else outer
    return heads, found


def _nest(heads: Sequence[str], body: Sequence[str], pad: str) -> list[str]:
    """Return a body inside of loops."""
    if not heads:
        return [f"{pad}{line}" for line in body]
    lines = [f"{pad}{'  ' * n}{head}{' {' if n == len(heads) - 1 else ''}" for n, head in enumerate(heads)]
    deep = pad + "  " * len(heads)
    return [*lines, *(f"{deep}{line}" for line in body), f"{deep[:-2]}}}"]


def _load(load: Load, program: Program, step: str, pad: str) -> list[str]:
    of_a = load.array == "a"
    heads, (row, column) = loops(load.mapping.atoms, "w")
    deep = program.block[2]
    at = f"({step} + {load.ahead})" if load.ahead else step
    first = f"row + {row}" if of_a else f"{at} * {deep} + {row}"
    second = f"{at} * {deep} + {column}" if of_a else f"column + {column}"
    place = (program.contraction.a if of_a else program.contraction.b)(
        {n: Text(n) for n in program.contraction.sizes}, Text("i"), Text("j")
    )
    slot = f"{at} % {program.buffers}" if program.buffers > 1 else "0"
    body = [
        f"const long i = {first}, j = {second};",
        f"{load.array}_tile[{slot}][{row}][{column}] = {_guarded(place, load, program)};",
    ]
    nest = _nest(heads, body, pad + "  " * bool(load.ahead))
    return [f"{pad}if ({at} < steps) {{", *nest, f"{pad}}}"] if load.ahead else nest


def _guarded(place: Place, load: Load, program: Program) -> str:
    limits = ("rows", "depth") if load.array == "a" else ("depth", "columns")
    inside = f"i < {limits[0]} && j < {limits[1]}" + (f" && {place.inside}" if place.inside is not True else "")
    value: Any = Text(f"{load.array}[{place.at}]")
    for array, function in program.prologue:
        if array == load.array:
            value = function.apply(_Functions, value, None)
    return f"{inside} ? {value} : 0.0f"


def _compute(compute: Compute, program: Program, step: str, pad: str) -> list[str]:
    """Return the product of two tiles: per place of the outer primitives the sums of the inner ones in registers.

    Innermost workers side by side in a row are the lanes of a vector.
    """
    outer, inner = compute.mapping.atoms[: compute.outside], compute.mapping.atoms[compute.outside :]
    lanes = lanes_of(compute.mapping)
    heads, corner = loops(outer, "o")
    inside, cell = loops(inner[: len(inner) - (lanes > 1)] or (Atom("repeat", (1, 1), (0, 1)),), "i")
    high, wide = TaskMapping(tuple(inner)).grid
    slot = f"{step} % {program.buffers}" if program.buffers > 1 else "0"
    corners = (f"{corner[0]} * {high}", f"{corner[1]} * {wide}") if outer else ("0", "0")
    row, column = f"{corners[0]} + {cell[0]}", f"{corners[1]} + {cell[1]} * {lanes}"
    sums, part = f"*(vec *)&sums[{row}][{column}]", f"part[{cell[0]}][{cell[1]}]"
    product = f"a_tile[{slot}][{row}][k] * *(const vec *)&b_tile[{slot}][k][{column}]"
    unrolled = [line for head in inside for line in ("#pragma GCC unroll 64", head)]
    body = [
        f"vec part[{high}][{wide // lanes}];",
        *_nest(unrolled, [f"{part} = {sums};"], ""),
        f"for (int k = 0; k < {program.block[2]}; k++) {{",
        *_nest(unrolled, [f"{part} += {product};"], "  "),
        "}",
        *_nest(unrolled, [f"{sums} = {part};"], ""),
    ]
    return _nest(heads, body, pad)


def lanes_of(mapping: TaskMapping) -> int:
    """Return how many innermost workers lie side by side in a row, if that is a vector's length; else 1."""
    last = mapping.atoms[-1]
    wide = last.sizes[-1]
    return wide if last.kind == "spatial" and last.cells == wide in (4, 8, 16) else 1


def _store(store: Store, program: Program, pad: str) -> list[str]:
    heads, (row, column) = loops(store.mapping.atoms, "w")
    value: Any = Text(f"sums[{row}][{column}]")
    for function in store.epilogue:
        value = function.apply(_Functions, value, Text(f"{function.vector}[j]") if function.vector else None)
    address = program.contraction.c({n: Text(n) for n in program.contraction.sizes}, Text("i"), Text("j"))
    body = [
        f"const long i = row + {row}, j = column + {column};",
        f"if (i < rows && j < columns) c[{address}] = {value};",
    ]
    return _nest(heads, body, pad)
