"""Tile programs as C: blocks over the cores, workers as loops whose innermost ones a compiler turns into SIMD.

What the workers of a block do between two barriers runs one after the other, so that a barrier needs no code. Sums stay
in an array that the compiler keeps in registers while the loop over a tile's depth runs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from calibration.taskmap.contraction import Place
from calibration.taskmap.mapping import Atom, TaskMapping
from calibration.taskmap.program import Barrier, Compute, Load, Program, Statement, Steps, Store
from calibration.taskmap.text import Apart, Tables, Text

HEAD = """\
#include <math.h>

/* x P(x^2) / Q(x^2), within 5e-7 of erf in single precision: unlike erff it is computed for a vector at once. */
static inline float erf_ratio(float x) {
  x = fminf(fmaxf(x, -4.0f), 4.0f);
  const float t = x * x;
  const float p = ((((1.98707016e-6f * t + 2.84526109e-4f) * t + 3.88159376e-3f) * t + 5.30962624e-2f) * t
                   + 1.93504235e-1f) * t + 1.12837914f;
  const float q = ((((3.74211269e-5f * t + 1.18514798e-3f) * t + 1.52037168e-2f) * t + 1.15333053e-1f) * t
                   + 5.04821227e-1f) * t + 1.0f;
  return x * p / q;
}

"""
"""The ratio was fitted to erf(x) / x on 0 to 4, beyond which erf is 1 in single precision."""


@dataclass(frozen=True)
class _Functions:
    error_function: str

    def erf(self, x: Any) -> Text:
        return Text(f"{self.error_function}({x})")

    def largest(self, x: Any, y: Any) -> Text:
        return Text(f"fmaxf({x}, {Text.text(y)})")


@dataclass(frozen=True)
class Dialect:
    """How the workers of a block run: as loops, one after the other, or as threads.

    worker: the variable that says which worker this is; "" where loops run all of them. compute: the lines of a Compute
    in the program, at a step, after a padding. sums: where a task's sum is, by mapping, row and column in the block.
    barrier: its lines. unroll: what stands before loops over sums. error_function: the name of erf.
    """

    compute: Callable[[Compute, Program, str, str], list[str]]
    sums: Callable[[TaskMapping, Text, Text], str]
    worker: str = ""
    barrier: tuple[str, ...] = ()
    unroll: str = ""
    error_function: str = "erff"

    @property
    def functions(self) -> _Functions:
        """What element-wise functions are written with."""
        return _Functions(self.error_function)


def source(program: Program, name: str = "kernel") -> str:
    """Return a C file with the function `name`(a, b, c, vectors in the order of the epilogue, sizes, threads)."""
    high, wide, deep = program.block
    n, lanes = program.buffers, max(lanes_of(s.mapping) for s in _computes(program.body))
    lines = [
        f"typedef float vec __attribute__((vector_size({4 * lanes}), aligned(4), may_alias));\n"
        if lanes > 1
        else "typedef float vec;\n",
        f"void {name}({arguments(program, 'restrict')}, int threads) {{",
        f"  {extents(program)}",
        "#pragma omp parallel for collapse(2) num_threads(threads)",
        f"  for (long row = 0; row < rows; row += {high})",
        f"  for (long column = 0; column < columns; column += {wide}) {{",
        f"    float a_tile[{n}][{high}][{deep}] __attribute__((aligned(64)));",
        f"    float b_tile[{n}][{deep}][{wide}] __attribute__((aligned(64)));",
        f"    float sums[{high}][{wide}] __attribute__((aligned(64))) = {{{{0}}}};",
        *chain.from_iterable(statement(s, program, LOOPS, "0", "    ") for s in program.body),
        "  }",
        "}",
    ]
    return HEAD + "\n".join(lines) + "\n"


def _computes(body: Sequence[Statement]) -> list[Compute]:
    inner = [s for statement in body if isinstance(statement, Steps) for s in statement.body]
    return [s for s in (*body, *inner) if isinstance(s, Compute)]


def arguments(program: Program, restrict: str) -> str:
    """Return the arguments of a kernel; restrict: the word for an array that no other one overlaps."""
    vectors = [f.vector for f in program.epilogue if f.vector]
    arrays = [f"const float *{restrict} a", f"const float *{restrict} b", f"float *{restrict} c"]
    arrays += [f"const float *{restrict} {v}" for v in vectors]
    return ", ".join([*arrays, *(f"long {size}" for size in program.contraction.sizes)])


def extents(program: Program) -> str:
    """Return the line that says how far C and the sum go, in elements and in steps."""
    rows, columns, depth = program.contraction.extents({n: Text(n) for n in program.contraction.sizes})
    deep = program.block[2]
    return f"const long rows = {rows}, columns = {columns}, depth = {depth}, steps = (depth + {deep - 1}) / {deep};"


def statement(each: Statement, program: Program, dialect: Dialect, step: str, pad: str) -> list[str]:
    """Return the lines of a statement of the program at a step, each after a padding."""
    if isinstance(each, Steps):
        inner = chain.from_iterable(statement(s, program, dialect, "step", pad + "  ") for s in each.body)
        return [f"{pad}for (long step = 0; step < steps; step++) {{", *inner, f"{pad}}}"]
    if isinstance(each, Load):
        return _load(each, program, dialect, step, pad)
    if isinstance(each, Compute):
        return dialect.compute(each, program, step, pad)
    if isinstance(each, Store):
        return _store(each, program, dialect, pad)
    assert isinstance(each, Barrier)
    return [f"{pad}{line}" for line in dialect.barrier]


def loops(atoms: Sequence[Atom], letter: str, worker: str = "") -> tuple[list[str], list[Text]]:
    """Return the loops of a composition of primitives, outermost first, and the task's coordinates in them.

    worker: the variable that says which worker this is, whose digits then stand for the loops over workers.
    """
    heads, found = [], [Text("0")] * len(atoms[0].sizes) if atoms else []
    left = workers = TaskMapping(tuple(atoms)).workers if atoms else 1
    for n, atom in enumerate(atoms):
        if worker and atom.kind == "spatial":
            outermost, left = left == workers, left // atom.cells
            index = Text(worker) // left
            digits = _digits(atom, index if outermost else index % atom.cells)
        else:
            digits = [Text(f"{letter}{n}_{dimension}") for dimension in range(len(atom.sizes))]
            walked = [(digits[d], atom.sizes[d]) for d in atom.ranking if atom.sizes[d] > 1]
            heads += [f"for (int {digit} = 0; {digit} < {size}; {digit}++)" for digit, size in walked]
        for dimension, size in enumerate(atom.sizes):
            here = found[dimension]
            outer = 0 if str(here) == "0" else here * size
            if size > 1:
                found[dimension] = outer + digits[dimension]
            else:
                found[dimension] = Text("0") if isinstance(outer, int) else outer
    return heads, found


def _digits(atom: Atom, index: Text) -> list[Text]:
    """Return the coordinates of the cell that comes `index`-th in a primitive's order."""
    digits, faster = [Text("0")] * len(atom.sizes), 1
    for dimension in reversed(atom.ranking):
        digit, faster = index // faster, faster * atom.sizes[dimension]
        digits[dimension] = digit if faster == atom.cells else digit % atom.sizes[dimension]
    return digits


def nest(heads: Sequence[str], body: Sequence[str], pad: str) -> list[str]:
    """Return a body inside of loops."""
    if not heads:
        return [f"{pad}{line}" for line in body]
    lines = [f"{pad}{'  ' * n}{head}{' {' if n == len(heads) - 1 else ''}" for n, head in enumerate(heads)]
    deep = pad + "  " * len(heads)
    return [*lines, *(f"{deep}{line}" for line in body), f"{deep[:-2]}}}"]


def _load(load: Load, program: Program, dialect: Dialect, step: str, pad: str) -> list[str]:
    of_a = load.array == "a"
    heads, (row, column) = loops(load.mapping.atoms, "w", dialect.worker)
    deep = program.block[2]
    at = f"({step} + {load.ahead})" if load.ahead else step
    first = f"row + {row}" if of_a else f"{at} * {deep} + {row}"
    second = f"{at} * {deep} + {column}" if of_a else f"column + {column}"
    tables = Tables({"i": str(row), "j": str(column)})
    place = _place(load, program, tables if not dialect.worker else None)
    slot = f"{at} % {program.buffers}" if program.buffers > 1 else "0"
    body = [
        f"const long i = {first}, j = {second};",
        f"{load.array}_tile[{slot}][{row}][{column}] = {_guarded(place, load, program, dialect)};",
    ]
    high, wide, _ = program.block
    starts = ("row", f"{at} * {deep}") if of_a else (f"{at} * {deep}", "column")
    made = [
        *_filled(tables.of("i"), "i", starts[0], high if of_a else deep),
        *_filled(tables.of("j"), "j", starts[1], deep if of_a else wide),
    ]
    lines = nest(heads, body, pad + "  " * bool(load.ahead or made))
    if load.ahead or made:
        head = f"if ({at} < steps) {{" if load.ahead else "{"
        lines = [f"{pad}{head}", *(f"{pad}  {line}" for line in made), *lines, f"{pad}}}"]
    return lines


def _place(load: Load, program: Program, tables: Tables | None) -> Place:
    """Return where an element lies, with what divides in tables where there are such."""
    place = program.contraction.a if load.array == "a" else program.contraction.b
    names = program.contraction.sizes
    if tables is None:
        return place({n: Text(n) for n in names}, Text("i"), Text("j"))
    return place({n: Apart(n, tables) for n in names}, Apart("i", tables, "i"), Apart("j", tables, "j"))


def _filled(expressions: Mapping[str, str], index: str, start: str, size: int) -> list[str]:
    """Return the lines that compute tables of an index which begins at `start`."""
    if not expressions:
        return []
    arrays = ", ".join(f"{name}[{size}]" for name in expressions)
    lines = [f"  {name}[at] = {code};" for name, code in expressions.items()]
    head = f"for (int at = 0; at < {size}; at++) {{"
    return [f"long {arrays};", head, f"  const long {index} = {start} + at;", *lines, "}"]


def _guarded(place: Place, load: Load, program: Program, dialect: Dialect) -> str:
    limits = ("rows", "depth") if load.array == "a" else ("depth", "columns")
    inside = f"i < {limits[0]} && j < {limits[1]}"
    if place.inside is not True:  # many conditions: a branch each costs more than all of them do
        inside = f"(i < {limits[0]}) & (j < {limits[1]}) & {place.inside}"
    value: Any = Text(f"{load.array}[{place.at}]")
    for array, function in program.prologue:
        if array == load.array:
            value = function.apply(dialect.functions, value, None)
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
        *nest(unrolled, [f"{part} = {sums};"], ""),
        f"for (int k = 0; k < {program.block[2]}; k++) {{",
        *nest(unrolled, [f"{part} += {product};"], "  "),
        "}",
        *nest(unrolled, [f"{sums} = {part};"], ""),
    ]
    return nest(heads, body, pad)


def lanes_of(mapping: TaskMapping) -> int:
    """Return how many innermost workers lie side by side in a row, if that is a vector's length; else 1."""
    last = mapping.atoms[-1]
    wide = last.sizes[-1]
    return wide if last.kind == "spatial" and last.cells == wide in (4, 8, 16) else 1


def _store(store: Store, program: Program, dialect: Dialect, pad: str) -> list[str]:
    heads, (row, column) = loops(store.mapping.atoms, "w", dialect.worker)
    value: Any = Text(dialect.sums(store.mapping, row, column))
    for function in store.epilogue:
        value = function.apply(dialect.functions, value, Text(f"{function.vector}[j]") if function.vector else None)
    address = program.contraction.c({n: Text(n) for n in program.contraction.sizes}, Text("i"), Text("j"))
    body = [
        f"const long i = row + {row}, j = column + {column};",
        f"if (i < rows && j < columns) c[{address}] = {value};",
    ]
    return nest([dialect.unroll + head for head in heads], body, pad)


LOOPS = Dialect(_compute, lambda _, row, column: f"sums[{row}][{column}]", error_function="erf_ratio")
