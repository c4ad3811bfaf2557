"""Fused kernels of Tempo's layers, in C and in Triton (interpreted), beside rows of torch's operations in fp64."""

from importlib.util import find_spec

import pytest
import torch
from torch import nn
from torch.nn import functional

from calibration.layers.gelu_table import FLAT, series, table
from calibration.layers.pieces import TorchKernels
from calibration.layers.tempo_kernels import HostKernels, TritonKernels, kernels
from calibration.taskmap.native import compiler
from tests.full import fully

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C compiler on the PATH")
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
EPS = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
"""Relative error by dtype."""
CASES = [
    *(pytest.param(HostKernels(), d, marks=needs_compiler, id=f"C {d}") for d in (torch.float32, torch.float64)),
    *(
        pytest.param(
            TritonKernels(), d, marks=[needs_triton, *([fully] if d == torch.float16 else [])], id=f"Triton {d}"
        )
        for d in (torch.float32, torch.float16, torch.bfloat16)
    ),
]
HELD = TorchKernels()


def normal(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(found, wanted, dtype, factor=1.0):
    assert found.dtype == dtype
    error = (found.double() - wanted).norm() / wanted.norm()
    assert error < factor * EPS[dtype]


@pytest.mark.parametrize(("kernel", "dtype"), CASES)
def test_gelu(kernel, dtype):
    """5,003 numbers: neither in whole blocks nor in whole vectors."""
    x, dy = normal(5003, dtype=dtype), normal(5003, dtype=dtype, seed=1)
    y, right = kernel.gelu(x)
    close(y, functional.gelu(x.double()), dtype)
    assert torch.equal(right, x >= table().at)
    close(kernel.gelu_backward(y, right, dy), HELD.gelu_backward(y.double(), right, dy.double()), dtype)


@needs_compiler
def test_gelu_in_c_is_as_exact_as_torchs():
    x = torch.linspace(-10, 10, 100_001)
    exact = functional.gelu(x.double())
    ours, torchs = ((y.double() - exact).abs().max() for y in (HostKernels().gelu(x)[0], functional.gelu(x)))
    assert ours < 1.2 * torchs
    near, tail = series()
    assert (near[0], sum(tail)) == (pytest.approx((2 * torch.pi) ** -0.5, rel=1e-6), pytest.approx(0.5, rel=1e-6))


@pytest.mark.parametrize(("kernel", "dtype"), CASES)
def test_what_is_no_number_stays_none(kernel, dtype):
    x = torch.tensor([float("nan"), 6e4, -6e4, FLAT + 1, 1.0], dtype=dtype)
    y, right = kernel.gelu(x)
    dx = kernel.gelu_backward(y, right, torch.ones_like(y))
    assert y[0].isnan() and dx[0].isnan()
    assert (y[1], round(float(y[2]), 9)) == (x[1], 0)
    assert dx[[1, 3]].tolist() == pytest.approx([1, 1], abs=1e-7)
    assert float(dx[4]) == pytest.approx(1.0833154, rel=EPS[dtype] if dtype != torch.float64 else 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "dtype"), CASES)
@pytest.mark.parametrize(("rows", "columns"), [(5, 37), (515, 3), (1, 1)])
def test_norm_backward(kernel, dtype, rows, columns):
    """Also with more rows than Triton has programs, and than a thread has."""
    kept, dy = normal(rows, columns, dtype=dtype), normal(rows, columns, dtype=dtype, seed=1)
    kind = torch.promote_types(dtype, torch.float32)
    vectors = tuple((normal(columns, seed=k).abs() + 0.5).to(kind) for k in (2, 3, 4))
    rstd = normal(rows, dtype=kind, seed=5).abs() + 0.5
    dx, sums = kernel.norm_backward(kept, rstd, vectors, dy)
    wanted = HELD.norm_backward(kept.double(), rstd.double(), tuple(v.double() for v in vectors), dy.double())
    close(sums, wanted[1], kind)
    close(dx, wanted[0], dtype)


@pytest.mark.parametrize(("kernel", "dtype"), CASES)
@pytest.mark.parametrize(("rows", "columns"), [(5, 37), (20, 32)])
def test_core_backward(kernel, dtype, rows, columns):
    shares = torch.softmax(normal(rows, columns), -1).to(dtype)
    kept, d = normal(rows, columns, seed=1) < 0.9, normal(rows, columns, dtype=dtype, seed=2)
    wanted = HELD.core_backward(shares.double(), kept, 1.25, d.double().clone())
    for found, exact in zip(kernel.core_backward(shares, kept, 1.25, d.clone()), wanted, strict=True):
        close(found, exact, dtype, 2)


@pytest.mark.parametrize(("kernel", "dtype"), [*CASES, pytest.param(HELD, torch.bfloat16, id="torch")])
def test_nothing_gives_nothing(kernel, dtype):
    empty, sides = torch.empty(0, 3, dtype=dtype), torch.empty(0, 3, dtype=torch.bool)
    assert kernel.gelu(empty)[0].shape == kernel.gelu_backward(empty, sides, empty).shape == (0, 3)
    kind = torch.promote_types(dtype, torch.float32)
    dx, sums = kernel.norm_backward(empty, empty[:, 0], (torch.ones(3, dtype=kind),) * 3, empty)
    assert dx.shape == (0, 3) and torch.equal(sums, torch.zeros(2, 3, dtype=kind))
    assert [each.shape for each in kernel.core_backward(empty, sides, 1.0, empty)] == [(0, 3)] * 2


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2])
def test_threads_share_rows(threads):
    """Enough numbers for more threads than one."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        test_norm_backward(HostKernels(), torch.float32, 700, 33)
        test_core_backward(HostKernels(), torch.float32, 600, 29)
        test_gelu(HostKernels(), torch.float64)
    finally:
        torch.set_num_threads(before)


@needs_compiler
def test_which_kernels_are_taken():
    whole = torch.ones(2)
    assert all(isinstance(kernels(x), HostKernels) for x in (whole, whole.double(), nn.Parameter(whole)))
    standing = torch.ones(2, device="meta")
    assert all(isinstance(kernels(x), TorchKernels) for x in (whole.bfloat16(), whole.half(), standing))
