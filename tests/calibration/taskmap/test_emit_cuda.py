"""CUDA kernels: compiled for the host, a thread a worker, they are torch's results; nvcc takes them too, if found."""

import ctypes
import shutil
import subprocess
from dataclasses import replace
from math import ceil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import gelu

from calibration.taskmap import emit_cuda
from calibration.taskmap.contraction import BIAS, FORWARD, GELU, RELU
from calibration.taskmap.emit_c import loops, nest
from calibration.taskmap.emit_cuda import nvcc, ptx, source
from calibration.taskmap.mapping import repeat, spatial
from calibration.taskmap.program import buffered, double_buffered, fused_after, fused_before, matmul
from sim.specs.fields import InputError
from tests.calibration.taskmap.problems import PROBLEMS, product

NAMES = [p.contraction.name for p in PROBLEMS]
KINDS = {kind: f"kind{n}" for n, kind in enumerate(dict.fromkeys(p.contraction for p in PROBLEMS))}
REWRITES = {"single": lambda p: p, "double": double_buffered, "fourfold": lambda p: buffered(p, 4)}
MAPPINGS = {
    "lanes": (spatial(2, 1) * repeat(1, 2) * spatial(2, 4) * repeat(4, 2), 2),
    "turned": (repeat(2, 1) * spatial(4, 2, ranking=(1, 0)) * repeat(2, 4, ranking=(1, 0)) * spatial(1, 4), 1),
}
"""By name: 16 workers in blocks of 16 x 16, 32 in blocks of 16 x 32; primitives outside of the loop over the depth."""
CXX = shutil.which("g++")
needs_compiler = pytest.mark.skipif(CXX is None, reason="no g++ on the PATH")
needs_nvcc = pytest.mark.skipif(nvcc() is None, reason="no nvcc on the PATH")


def program(contraction, mapping, rewrite):
    compute, outside = MAPPINGS[mapping]
    return REWRITES[rewrite](matmul(contraction, compute, 8, outside))


def fused(rewrite):
    return fused_before(fused_after(program(FORWARD, "lanes", rewrite), BIAS, GELU), "a", RELU)


def everything():
    """All programs of this file by the name of their kernel: one call of the compiler is faster than many."""
    plain = {f"{n}_{m}_{r}": program(c, m, r) for c, n in KINDS.items() for m in MAPPINGS for r in REWRITES}
    return plain | {f"fused_{r}": fused(r) for r in REWRITES}


def called(name, each):
    """The kernel's source and a function that launches it with arrays and sizes as arrays."""
    arrays = [f"arrays[{n}]" for n in range(3 + sum(bool(f.vector) for f in each.epilogue))]
    sizes = [f"sizes[{n}]" for n in range(len(each.contraction.sizes))]
    return (
        f'{source(each, name)}extern "C" void run_{name}(unsigned x, unsigned y, float **arrays, const long *sizes) '
        f"{{ launch({{x, y}}, {each.workers}, [=] {{ {name}({', '.join(arrays + sizes)}); }}); }}\n"
    )


def tasks(name, mapping):
    """A function that writes rows and columns of a worker's tasks."""
    heads, (row, column) = loops(mapping.atoms, "w", "worker")
    body = nest(heads, [f"*found++ = {row};", f"*found++ = {column};"], "  ")
    return "\n".join([f'extern "C" void tasks_{name}(int worker, int *found) {{', *body, "}\n"])


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cuda")
    text = '#include "cuda_on_host.h"\n' + "".join(called(name, each) for name, each in everything().items())
    text += "".join(tasks(name, mapping) for name, (mapping, _) in MAPPINGS.items())
    (folder / "kernels.cpp").write_text(text)
    flags = ["-std=c++20", "-O1", "-pthread", "-shared", "-fPIC", f"-I{Path(__file__).parent}"]
    subprocess.run([CXX, *flags, folder / "kernels.cpp", "-o", folder / "kernels.so"], check=True)
    return ctypes.CDLL(str(folder / "kernels.so"))


def run(library, name, problem, *vectors):
    each = everything()[name]
    c = torch.full((problem.wanted.numel(),), torch.nan)
    arrays = [problem.a, problem.b, c, *vectors]
    rows, columns, _ = each.contraction.extents(problem.sizes)
    pointers = (ctypes.c_void_p * len(arrays))(*(array.data_ptr() for array in arrays))
    sizes = (ctypes.c_long * len(problem.sizes))(*(problem.sizes[n] for n in each.contraction.sizes))
    library[f"run_{name}"](ceil(rows / each.block[0]), ceil(columns / each.block[1]), pointers, sizes)
    return c


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("name", MAPPINGS)
def test_threads_do_the_tasks_of_their_numbers(library, name):
    mapping, _ = MAPPINGS[name]
    found = np.full((mapping.workers, mapping.tasks, 2), -1, dtype=np.int32)
    for worker in range(mapping.workers):
        library[f"tasks_{name}"](worker, ctypes.c_void_p(found[worker].ctypes.data))
    assert np.array_equal(found, mapping.table())


@needs_compiler
@pytest.mark.parametrize("problem", PROBLEMS, ids=NAMES)
@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("rewrite", REWRITES)
def test_kernels_are_torch(library, problem, mapping, rewrite):
    assert problem.close(run(library, f"{KINDS[problem.contraction]}_{mapping}_{rewrite}", problem))


@needs_compiler
@pytest.mark.parametrize("rewrite", REWRITES)
def test_fused_functions_are_torchs(library, rewrite):
    problem, bias = product(FORWARD, 19, 37, 11), torch.randn(37)
    wanted = gelu(problem.a.double().relu() @ problem.b.double().T + bias.double())
    assert problem._replace(wanted=wanted).close(run(library, f"fused_{rewrite}", problem, bias))


@needs_nvcc
@pytest.mark.parametrize("rewrite", REWRITES)
def test_nvcc_keeps_sums_in_registers(rewrite):
    text = ptx(fused(rewrite))
    assert ".entry kernel(" in text and "bar.sync" in text and "fma.rn.f32" in text
    assert ".local" not in text  # where arrays go that stay arrays


def test_without_nvcc_one_error_says_so(monkeypatch):
    monkeypatch.setattr(emit_cuda, "nvcc", lambda: None)
    with pytest.raises(InputError, match="compiler: got 'none found'; allowed: nvcc"):
        ptx(program(FORWARD, "lanes", "single"))


def test_blocks_that_a_gpu_lacks_are_refused():
    with pytest.raises(ValueError, match="workers: got 2048; allowed: 1 to 1024"):
        source(matmul(FORWARD, spatial(32, 64), 64))
    with pytest.raises(ValueError, match=r"block: got .* 65536 bytes of tiles; allowed: at most 49152"):
        source(double_buffered(matmul(FORWARD, repeat(8, 8) * spatial(16, 16), 32)))


def test_who_stores_must_have_summed():
    plain = program(FORWARD, "lanes", "single")
    steps, store = plain.body
    with pytest.raises(ValueError, match="mapping: got several"):
        source(replace(plain, body=(steps, replace(store, mapping=spatial(4, 4) * repeat(4, 4)))))
