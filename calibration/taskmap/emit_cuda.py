"""Tile programs as CUDA C: a block of C is a thread block, a worker is a thread.

Tiles are in shared memory. A thread's sums are an array that is only indexed by unrolled loops, so that the compiler
keeps it in registers; barriers are __syncthreads().
"""

import shutil
import subprocess
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from calibration.taskmap.emit_c import Dialect, arguments, extents, loops, nest, statement
from calibration.taskmap.mapping import Atom, TaskMapping
from calibration.taskmap.program import Compute, Program, Statement, Steps, Store
from sim.specs.fields import InputError

THREADS, SHARED_BYTES = 1024, 48 * 1024
"""What a block may have of threads, and of shared memory that is declared (CUDA C++ Programming Guide)."""
UNROLL = '_Pragma("unroll") '


def source(program: Program, name: str = "kernel") -> str:
    """Return CUDA C with the kernel `name`(a, b, c, vectors in the order of the epilogue, sizes), arrays of fp32.

    The grid is rows / block rows by columns / block columns, both rounded up, of as many threads as there are workers.

    Raises:
        ValueError: a block has too many threads or too large tiles, or who stores sums has not made them.
    """
    _check(program)
    high, wide, deep = program.block
    n, workers = program.buffers, program.workers
    rows, columns = _registers(_mappings(program.body)[0])
    lines = [
        f'extern "C" __global__ void __launch_bounds__({workers}) {name}({arguments(program, "__restrict__")}) {{',
        f"  {extents(program)}",
        f"  const long row = (long)blockIdx.x * {high}, column = (long)blockIdx.y * {wide};",
        "  const int worker = threadIdx.x;",
        f"  __shared__ float a_tile[{n}][{high}][{deep}];",
        f"  __shared__ float b_tile[{n}][{deep}][{wide}];",
        f"  float sums[{rows}][{columns}] = {{}};",
        *chain.from_iterable(statement(s, program, _THREADS, "0", "  ") for s in program.body),
        "}",
    ]
    return "\n".join(lines) + "\n"


def nvcc() -> str | None:
    """Return CUDA's compiler, or None."""
    return shutil.which("nvcc")


def ptx(program: Program) -> str:
    """Return the program's PTX, for the generation of GPUs that is nvcc's default; later ones run it too.

    Raises:
        InputError: there is no nvcc.
        ValueError: as `source`.
    """
    made_by = nvcc()
    if made_by is None:
        raise InputError("compiler", "none found", "nvcc on the PATH")
    with TemporaryDirectory(prefix="trainsim-cuda-") as folder:
        text, made = Path(folder) / "kernel.cu", Path(folder) / "kernel.ptx"
        text.write_text(source(program), "utf-8")
        command = [made_by, "-O3", "-ptx", str(text), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{made_by} failed on a kernel of ours: {done.stderr[:2000]}")
        return made.read_text("utf-8")


def _mappings(body: Sequence[Statement]) -> list[TaskMapping]:
    """Return the mappings of statements that use sums."""
    inner = chain.from_iterable(s.body if isinstance(s, Steps) else [s] for s in body)
    return [s.mapping for s in inner if isinstance(s, Compute | Store)]


def _check(program: Program) -> None:
    high, wide, deep = program.block
    if program.workers > THREADS:
        raise ValueError(f"workers: got {program.workers}; allowed: 1 to {THREADS}")
    tiles = 4 * program.buffers * deep * (high + wide)
    if tiles > SHARED_BYTES:
        raise ValueError(f"block: got {program.block}, {tiles} bytes of tiles; allowed: at most {SHARED_BYTES} bytes")
    if len(set(_mappings(program.body))) > 1:
        raise ValueError("mapping: got several of those who sum and store; allowed: the same for all")


def _own(mapping: TaskMapping) -> list[Atom]:
    """Return a mapping's primitives for one worker: what others do is left out, places in the list stay."""
    nothing = Atom("repeat", (1, 1), (0, 1))
    return [atom if atom.kind == "repeat" else nothing for atom in mapping.atoms]


def _registers(mapping: TaskMapping) -> tuple[int, ...]:
    """Return rows and columns of a worker's own tasks."""
    return TaskMapping(tuple(_own(mapping))).grid


def _sum(mapping: TaskMapping, letter: str = "w") -> str:
    """Return where the sum of the task is that the loops of `letter` have come to."""
    _, (row, column) = loops(_own(mapping), letter)
    return f"sums[{row}][{column}]"


def _compute(compute: Compute, program: Program, step: str, pad: str) -> list[str]:
    """Return the product of two tiles: each worker's loops inside of the one over the depth, but for the outer ones."""
    atoms = compute.mapping.atoms
    heads, (row, column) = loops(atoms, "w", "worker")
    outside = len(loops(atoms[: compute.outside], "w", "worker")[0])
    slot = f"{step} % {program.buffers}" if program.buffers > 1 else "0"
    product = f"a_tile[{slot}][{row}][deep] * b_tile[{slot}][deep][{column}]"
    depth = f"for (int deep = 0; deep < {program.block[2]}; deep++)"
    unrolled = [UNROLL + head for head in heads]
    return nest([*unrolled[:outside], depth, *unrolled[outside:]], [f"{_sum(compute.mapping)} += {product};"], pad)


_THREADS = Dialect(_compute, lambda mapping, *_: _sum(mapping), "worker", ("__syncthreads();",), UNROLL)
