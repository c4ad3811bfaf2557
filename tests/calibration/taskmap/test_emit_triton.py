"""Triton kernels: interpreted on the CPU, or compiled where there is CUDA, they are torch's results."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from torch.nn.functional import gelu

from calibration.taskmap import triton_kernel
from calibration.taskmap.contraction import BIAS, DGRAD, FORWARD, GELU, RELU, WGRAD, Elementwise
from calibration.taskmap.emit_triton import held, options, source
from calibration.taskmap.mapping import repeat, spatial
from calibration.taskmap.program import buffered, double_buffered, fused_after, fused_before, matmul
from calibration.taskmap.triton_kernel import compiled
from sim.specs.fields import InputError
from tests.calibration.taskmap.problems import PROBLEMS, product
from tests.full import full
from tests.oracle import ROOT

NAMES = [p.contraction.name for p in PROBLEMS]
SQUARE = repeat(2, 2) * spatial(8, 8)
"""Blocks of 16 x 16 by 64 workers."""
TALL = repeat(4, 2) * spatial(8, 8)
"""Blocks of 32 x 16."""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


def run(program, problem, vectors=None, dtype=torch.float32):
    def there(x):
        return x.to(DEVICE, dtype)

    c = there(torch.full((problem.wanted.numel(),), torch.nan))
    given = {name: there(vector) for name, vector in (vectors or {}).items()}
    compiled(program)(there(problem.a), there(problem.b), c, problem.sizes, given)
    return c.cpu()


@needs_triton
@pytest.mark.parametrize("problem", PROBLEMS, ids=NAMES)
@pytest.mark.parametrize("mapping", [SQUARE, TALL], ids=["square", "tall"])
def test_kernels_are_torch(problem, mapping):
    assert problem.close(run(matmul(problem.contraction, mapping, 16), problem))


@needs_triton
@pytest.mark.parametrize(("dtype", "rel"), [(torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 1e-2)])
def test_fused_functions_are_torchs(dtype, rel):
    problem, bias = product(FORWARD, 19, 37, 11), torch.randn(37)
    program = double_buffered(matmul(FORWARD, SQUARE, 16))
    program = fused_before(fused_after(program, BIAS, GELU), "a", RELU)
    wanted = gelu(problem.a.double().relu() @ problem.b.double().T + bias.double())
    assert problem._replace(wanted=wanted).close(run(program, problem, {"bias": bias}, dtype), rel)


@needs_triton
def test_nothing_outside_of_an_array_is_summed():
    """Also where the prologue would make something of the 0 that stands for it."""
    problem = product(FORWARD, 17, 5, 3)
    program = matmul(FORWARD, SQUARE, 16)
    for array in ("a", "b"):
        program = fused_before(program, array, Elementwise("shift", lambda f, x, _: x + 1.0))
    assert problem._replace(wanted=(problem.a + 1) @ (problem.b + 1).T).close(run(program, problem))


@needs_triton
@pytest.mark.parametrize("buffers", [2, 3, 4])
def test_buffers_keep_the_result(buffers):
    problem, plain = PROBLEMS[0], matmul(FORWARD, SQUARE, 16)
    assert torch.equal(run(buffered(plain, buffers), problem), run(plain, problem))


@needs_triton
@pytest.mark.parametrize("group", [1, 2, 3, 8])
@pytest.mark.parametrize("problem", PROBLEMS, ids=NAMES)
def test_every_order_of_blocks_is_torch(problem, group):
    """Also where the last group has fewer rows of blocks than the others."""
    assert problem.close(run(replace(matmul(problem.contraction, SQUARE, 16), group=group), problem))


@needs_triton
@pytest.mark.parametrize("contraction", [FORWARD, DGRAD, WGRAD], ids=lambda c: c.name)
def test_a_depth_that_divides_needs_no_mask(contraction):
    problem = product(contraction, 33, 50, 64)
    assert problem.close(run(replace(matmul(contraction, TALL, 16), group=2), problem))


@needs_triton
@pytest.mark.parametrize("contraction", [FORWARD, DGRAD, WGRAD], ids=lambda c: c.name)
@pytest.mark.parametrize("sizes", [(40, 56, 72), (64, 32, 48), (33, 29, 19)], ids=["edges", "whole", "unaligned"])
def test_tiles_copied_in_bulk_keep_the_result(contraction, sizes):
    """Also where a tile reaches beyond the matrix, and where its rows begin where the copy engine cannot."""
    problem, program = product(contraction, *sizes), replace(buffered(matmul(contraction, TALL, 16), 3), group=2)
    assert problem.close(run(replace(program, bulk=True), problem))
    bias = torch.randn(sizes[1])
    fused = fused_after(program, BIAS, GELU)
    assert torch.equal(*(run(replace(fused, bulk=bulk), problem, {"bias": bias}) for bulk in (False, True)))


@pytest.mark.parametrize(
    "program", [matmul(PROBLEMS[3].contraction, SQUARE, 16), None], ids=["convolution", "prologue"]
)
def test_what_is_no_matrix_in_memory_is_not_copied_in_bulk(program):
    with pytest.raises(ValueError, match=r"bulk: got .*allowed: a product of matrices"):
        source(replace(program or fused_before(matmul(FORWARD, SQUARE, 16), "a", RELU), bulk=True))


ON_A_GPU = """
import sys
sys.path.insert(0, sys.argv[1])
import triton
from made import kernel
from triton.backends.compiler import GPUTarget

arrays, generation, dtype, warps = ("a", "b", "c", "bias"), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
tiles = dict(zip(arrays, sys.argv[5:]))  # copied in bulk
kinds = {name: f"*{dtype}" if name in arrays else "i32" for name in kernel.arg_names} | {"whole": "constexpr"}
kinds |= {name: f"tensordesc<{dtype}{tile}>" for name, tile in tiles.items()}
divides = {(n,): [["tt.divisibility", 16]] for n, name in enumerate(kernel.arg_names) if name not in ("whole", *tiles)}
made = triton.compile(
    triton.compiler.ASTSource(kernel, kinds, {"whole": True}, divides),
    target=GPUTarget("cuda", generation, 32),
    options={"num_warps": warps, "num_stages": 3},
)
print(made.asm["ptx"])
"""


def ptx(folder, program, generation=90, dtype="bf16", precision="ieee"):
    """Code for a GPU that need not be there, in a process of its own: in this one Triton may be there to interpret."""
    (folder / "made.py").write_text(source(program, precision=precision))
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(folder)}
    given = [str(folder), str(generation), dtype, str(options(program)["num_warps"])]
    if program.bulk:
        given += [str(list(held(program, array, {"m": 4096, "n": 4096, "k": 4096})[1])) for array in ("a", "b")]
    done = subprocess.run(
        [sys.executable, "-c", ON_A_GPU, *given], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def in_loop(text):
    """The lines of the first loop of a kernel: from a label to the branch back to it."""
    found = re.search(r"^(\$L__BB\w+):(?s:.)*?bra(?:\.uni)?\s+\1;", text, re.MULTILINE)
    return found.group()


LARGE = spatial(2, 2) * repeat(4, 2) * spatial(4, 8) * repeat(4, 4)
"""Blocks of 128 x 128 by four warps."""


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("contraction", [FORWARD, DGRAD, WGRAD], ids=lambda c: c.name)
@pytest.mark.parametrize(
    ("generation", "dtype", "precision", "product"),
    [
        (90, "bf16", "ieee", "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16"),
        full(90, "fp16", "ieee", "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16"),
        full(80, "bf16", "ieee", "mma.sync.aligned.m16n8k16.row.col.f32.bf16"),
        full(90, "fp32", "tf32", ".tf32"),
        full(90, "fp32", "ieee", "fma.rn.f32"),
    ],
)
def test_a_gpu_has_fast_code_for_products(tmp_path, contraction, generation, dtype, precision, product):
    """Units of its own multiply; what the loop loads are 16 bytes at a time; nothing is multiplied in 64 bits there."""
    deep = 64 if dtype != "fp32" else 16
    program = replace(buffered(matmul(contraction, LARGE, deep), 3), group=8)
    loop = in_loop(ptx(tmp_path, program, generation, dtype, precision))
    assert product in loop
    loads = re.findall(r"cp\.async\.c[ag]\.shared\.global[^;]*", loop)
    assert loads
    if precision == "ieee" or contraction is FORWARD:  # Hopper's units take tf32 along the sum alone
        assert all("], 0x10" in load for load in loads)
    assert "mul.lo.s64" not in loop and "mad.lo.s64" not in loop and "div." not in loop


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("contraction", [FORWARD, DGRAD, WGRAD], ids=lambda c: c.name)
def test_a_gpu_copies_whole_tiles(tmp_path, contraction):
    program = replace(buffered(matmul(contraction, LARGE, 64), 3), group=8, bulk=True)
    loop = in_loop(ptx(tmp_path, program))
    assert "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16" in loop
    assert len(re.findall(r"cp\.async\.bulk\.tensor\.2d", loop)) == 2
    assert "ld.global" not in loop and "cp.async.cg" not in loop


@pytest.mark.slow
@needs_triton
def test_a_gpu_has_code_for_convolutions(tmp_path):
    program = fused_after(double_buffered(matmul(PROBLEMS[3].contraction, SQUARE, 16)), BIAS, GELU)
    assert "mma" in ptx(tmp_path, program)


def test_workers_are_warps_and_copies_are_stages():
    program = matmul(FORWARD, SQUARE, 16)
    assert options(program) == {"num_warps": 2, "num_stages": 1}
    assert options(double_buffered(program)) == {"num_warps": 2, "num_stages": 2}
    assert options(buffered(program, 4))["num_stages"] == 4
    assert options(matmul(FORWARD, repeat(8, 8) * spatial(2, 2), 16))["num_warps"] == 1


@pytest.mark.parametrize("mapping", [repeat(3, 2) * spatial(8, 8), repeat(1, 2) * spatial(8, 8)], ids=["24", "8"])
def test_blocks_that_triton_lacks_are_refused(mapping):
    with pytest.raises(ValueError, match=r"block: got .*allowed: powers of two from 16"):
        source(matmul(FORWARD, mapping, 16))


@needs_triton
def test_tensors_that_a_kernel_cannot_read_are_refused():
    kernel, x, sizes = compiled(matmul(FORWARD, SQUARE, 16)), torch.ones(2, 3), {"m": 2, "n": 2, "k": 3}
    with pytest.raises(InputError, match=r"b\.dtype: got torch\.float64; allowed: the same"):
        kernel(x, x.double(), torch.empty(4), sizes)
    with pytest.raises(InputError, match=r"a\.stride: got .*contiguous"):
        kernel(x.T, x, torch.empty(4), sizes)


def test_without_triton_one_error_says_so(monkeypatch):
    monkeypatch.setattr(triton_kernel, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="triton: got 'not installed'"):
        compiled(fused_after(matmul(FORWARD, SQUARE, 16), RELU, RELU, RELU))


EARLY = """
import triton.language
import torch
from calibration.taskmap.triton_kernel import compiled
from tests.calibration.taskmap.test_emit_triton import PROBLEMS, SQUARE, matmul

problem = PROBLEMS[0]
c = torch.full((problem.wanted.numel(),), torch.nan)
compiled(matmul(problem.contraction, SQUARE, 16))(problem.a, problem.b, c, problem.sizes)
assert problem.close(c)
"""


@pytest.mark.slow
@needs_triton
@pytest.mark.skipif(DEVICE == "cuda", reason="nothing is interpreted here")
def test_it_is_interpreted_where_triton_was_imported_before():
    """As torch's compiler does."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", EARLY], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
