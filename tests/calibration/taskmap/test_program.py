"""Tile programs: interpreted ones and compiled ones are torch's results; rewrites change nothing; races are caught."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import gelu

from calibration.taskmap.contraction import BIAS, FORWARD, GELU, RELU, convolution
from calibration.taskmap.emit_c import source
from calibration.taskmap.interpret import RaceError, interpret
from calibration.taskmap.mapping import repeat, spatial
from calibration.taskmap.native import compiled, compiler
from calibration.taskmap.program import (
    Barrier,
    Steps,
    buffered,
    double_buffered,
    fused_after,
    fused_before,
    loading,
    matmul,
)
from tests.calibration.taskmap.problems import PROBLEMS, product
from tests.full import FULL

NAMES = [p.contraction.name for p in PROBLEMS]
LANES = spatial(2, 1) * repeat(1, 2) * spatial(2, 4) * repeat(4, 2)
"""Warps, repeats, lanes, repeats: blocks of 16 x 16 by 16 workers."""
BUFFERS = (1, 2, 3, 4)
SIMD = repeat(3, 2) * repeat(4, 1) * spatial(1, 8)
"""One core: register tiles of 4 x 8 in blocks of 12 x 16."""


def run(program, problem, vectors=None):
    arrays = problem.a.numpy().ravel(), problem.b.numpy().ravel()
    return interpret(program, *arrays, problem.sizes, vectors or {})


def native(program, problem, vectors=None, threads=1):
    c = np.full(problem.wanted.numel(), np.nan, dtype=np.float32)
    compiled(program)(problem.a.numpy().ravel(), problem.b.numpy().ravel(), c, problem.sizes, vectors, threads)
    return c


MANY_STEPS = product(FORWARD, 17, 5, 45)
needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C compiler on the PATH")


@pytest.mark.parametrize("problem", PROBLEMS, ids=NAMES)
@pytest.mark.parametrize("buffers", BUFFERS)
@pytest.mark.parametrize(("mapping", "outside"), [(LANES, 0), (SIMD, 1)], ids=["lanes", "simd"])
def test_interpreted_is_torch(problem, mapping, outside, buffers):
    program = buffered(matmul(problem.contraction, mapping, 8, outside), buffers)
    assert program.buffers == buffers
    assert problem.close(run(program, problem))


def compiled_cases():
    """Problems, mappings and buffers: all triples in the full run, a third of them, with every pair, by default."""
    mappings = {"lanes": (LANES, 0), "split": (LANES, 2), "simd": (SIMD, 1)}
    for i, problem in enumerate(PROBLEMS):
        for j, (name, mapping) in enumerate(mappings.items()):
            for k, buffers in enumerate(BUFFERS):
                if FULL or (i + i // 3 + j + k) % 3 == 0:
                    yield pytest.param(problem, *mapping, buffers, id=f"{name}-{buffers}-{problem.contraction.name}")


@pytest.mark.slow
@needs_compiler
@pytest.mark.usefixtures("lightly")
@pytest.mark.parametrize(("problem", "mapping", "outside", "buffers"), list(compiled_cases()))
def test_compiled_is_torch(problem, mapping, outside, buffers):
    program = buffered(matmul(problem.contraction, mapping, 8, outside), buffers)
    assert problem.close(native(program, problem, threads=2))


@pytest.mark.parametrize("buffers", BUFFERS[1:])
def test_rewrites_keep_the_result(buffers):
    """To the last bit: the order of the sum stays, of one step (fewer than are loaded ahead) or of several."""
    plain = matmul(FORWARD, LANES, 8)
    for problem in (MANY_STEPS, product(FORWARD, 17, 5, 3)):
        assert np.array_equal(run(plain, problem), run(buffered(plain, buffers), problem))


def test_programs_that_cannot_be_buffered_are_refused():
    plain = matmul(FORWARD, LANES, 8)
    assert double_buffered(plain) == buffered(plain, 2)
    with pytest.raises(ValueError, match="buffers: got 0"):
        buffered(plain, 0)
    with pytest.raises(ValueError, match="buffers: got a program of 2"):
        buffered(double_buffered(plain), 3)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("rewrite", [lambda p: p, double_buffered], ids=["single", "double"])
def test_fused_functions_are_torchs(rewrite):
    problem, bias = product(FORWARD, 19, 37, 11), torch.randn(37)
    program = fused_before(fused_after(rewrite(matmul(FORWARD, LANES, 4)), BIAS, GELU), "a", RELU)
    wanted = gelu(problem.a.double().relu() @ problem.b.double().T + bias.double())
    problem = problem._replace(wanted=wanted)
    for found in (run(program, problem, {"bias": bias.numpy()}), native(program, problem, {"bias": bias.numpy()})):
        assert problem.close(found)


def test_what_only_one_rewrite_of_two_does_is_in_either_order():
    plain = matmul(FORWARD, LANES, 4)
    assert fused_after(double_buffered(plain), GELU) == double_buffered(fused_after(plain, GELU))


@pytest.mark.parametrize("which", [0, 1])
def test_a_missing_barrier_is_a_race(which):
    """After the loads: others read what is not written yet. After the sums: others write what is still read."""
    program = matmul(FORWARD, LANES, 8)
    (steps, store) = program.body
    places = [n for n, s in enumerate(steps.body) if isinstance(s, Barrier)]
    body = tuple(s for n, s in enumerate(steps.body) if n != places[which])
    with pytest.raises(RaceError, match="does not wait"):
        run(replace(program, body=(Steps(body), store)), PROBLEMS[0])


@pytest.mark.parametrize("buffers", BUFFERS[1:])
def test_loads_ahead_want_their_barrier_too(buffers):
    program = buffered(matmul(FORWARD, LANES, 8), buffers)
    body = tuple(replace(s, body=s.body[:-1]) if isinstance(s, Steps) else s for s in program.body)
    with pytest.raises(RaceError, match="does not wait"):
        run(replace(program, body=body), MANY_STEPS)


@pytest.mark.parametrize("buffers", BUFFERS[1:])
def test_one_buffer_less_is_too_few_for_loads_ahead(buffers):
    program = replace(buffered(matmul(FORWARD, LANES, 8), buffers), buffers=buffers - 1)
    with pytest.raises(RaceError):
        run(program, MANY_STEPS)


def test_who_stores_must_have_summed():
    program = matmul(FORWARD, LANES, 8)
    steps, store = program.body
    with pytest.raises(RaceError):
        run(replace(program, body=(steps, replace(store, mapping=spatial(4, 4) * repeat(4, 4)))), PROBLEMS[0])


@pytest.mark.parametrize(("rows", "columns", "workers"), [(16, 8, 32), (16, 8, 4), (8, 32, 8), (12, 8, 1)])
def test_loads_fill_a_tile(rows, columns, workers):
    found = loading(rows, columns, workers)
    assert (found.grid, found.workers) == ((rows, columns), workers)


@pytest.mark.parametrize(("rows", "columns", "workers"), [(16, 8, 12), (4, 8, 64), (3, 8, 16)])
def test_loads_that_cannot_are_refused(rows, columns, workers):
    with pytest.raises(ValueError, match="workers: got"):
        loading(rows, columns, workers)


def test_the_source_is_the_same_for_all_sizes():
    """One template: sizes are arguments, edges are predicated."""
    text = source(matmul(FORWARD, SIMD, 8, 1))
    assert "long m, long n, long k" in text
    assert "i < rows" in text and "29" not in text


@needs_compiler
def test_a_kernel_leaves_the_process_arithmetic_alone():
    """Small numbers are still there once it is loaded."""
    native(matmul(FORWARD, SIMD, 8, 1), PROBLEMS[0])
    assert np.float64(5e-324) * 1.0 > 0
    assert np.finfo(np.float32).smallest_subnormal / np.float32(1) > 0


def test_divisions_are_once_a_row_and_a_column():
    """Those of a convolution's addresses; products have none."""
    text = source(matmul(convolution(3, 1, 1), SIMD, 8, 1))
    (fill,) = [line for line in text.splitlines() if line.strip().startswith("a_tile[0][") and "=" in line]
    assert not {"/", "%"} & set(fill)
    assert text.count("[at] = ") == 6  # row, column and corner of an output; the same of an element of the kernel
    assert "[at] = " not in source(matmul(FORWARD, SIMD, 8, 1))
