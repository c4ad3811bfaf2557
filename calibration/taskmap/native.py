"""Kernels in C: compiled by the system's compiler, kept by content, called on NumPy arrays."""

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibration.taskmap.contraction import Contraction, Sizes
from calibration.taskmap.emit_c import source
from calibration.taskmap.program import Program
from sim.specs.fields import InputError

RELAXED = ("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math", "-ffinite-math-only")
"""Sums may be reordered, as every library's are; of infinities and NaN nothing is asked. Not -ffast-math, with which a
library turns off small numbers for the whole process that loads it."""
FLAGS = ("-O3", "-march=native", *RELAXED, "-fopenmp", "-shared", "-fPIC")

Floats = NDArray[np.float32]


def compiler() -> str | None:
    """Return the system's C compiler, or None."""
    return next((found for name in ("gcc", "clang", "cc") if (found := shutil.which(name))), None)


@lru_cache(maxsize=1)
def folder() -> tempfile.TemporaryDirectory[str]:
    """Return the folder of this process' compiled kernels, which goes with it."""
    return tempfile.TemporaryDirectory(prefix="trainsim-kernels-")


@dataclass(frozen=True)
class Kernel:
    """A compiled program; calls take flat fp32 arrays."""

    contraction: Contraction
    vectors: tuple[str, ...]
    function: Any

    def __call__(
        self,
        a: Floats,
        b: Floats,
        c: Floats,
        sizes: Sizes,
        vectors: Mapping[str, Floats] | None = None,
        threads: int = 1,
    ) -> None:
        """Compute c [rows x columns, flat] from a and b; vectors: the epilogue's inputs by name."""
        given = [a, b, c, *((vectors or {})[name] for name in self.vectors)]
        self.launch([array.ctypes.data for array in given], sizes, threads)

    def launch(self, addresses: Sequence[int], sizes: Sizes, threads: int = 1) -> None:
        """Do the same with the addresses of a, b, c and the epilogue's inputs."""
        pointers = map(ctypes.c_void_p, addresses)
        self.function(*pointers, *(ctypes.c_long(int(sizes[n])) for n in self.contraction.sizes), threads)


def compiled(program: Program) -> Kernel:
    """Return the program as a kernel of this machine; the same program is compiled once.

    Raises:
        InputError: there is no C compiler.
    """
    vectors = tuple(f.vector for f in program.epilogue if f.vector)
    return Kernel(program.contraction, vectors, library(source(program)).kernel)


@lru_cache(maxsize=512)
def library(text: str) -> Any:
    """Return the loaded library of a C file; the same text is compiled once.

    Raises:
        InputError: there is no C compiler.
    """
    made_by = compiler()
    if made_by is None:
        raise InputError("compiler", "none found", "gcc, clang or cc on the PATH")
    stem = Path(folder().name) / sha256(text.encode()).hexdigest()[:16]
    stem.with_suffix(".c").write_text(text, "utf-8")
    command = [made_by, *FLAGS, str(stem.with_suffix(".c")), "-o", str(stem.with_suffix(".so")), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}, check=False)
    if done.returncode:
        raise RuntimeError(f"{made_by} failed on a kernel of ours: {done.stderr[:2000]}")
    return ctypes.CDLL(str(stem.with_suffix(".so")))
