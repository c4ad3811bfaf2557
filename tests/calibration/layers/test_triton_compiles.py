"""Every kernel in Triton compiles for a GPU: the interpreter forgives what the compiler refuses."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="triton is not installed")

PROGRAM = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from calibration.layers import triton_cell, triton_tempo
from calibration.taskmap.contraction import BIAS, DGRAD, FORWARD, GELU, WGRAD
from calibration.taskmap.emit_triton import options, source
from calibration.taskmap.gpu import of_catalog
from calibration.taskmap.gpu_space import block_schedules
from calibration.taskmap.program import fused_after
from calibration.taskmap.triton_kernel import _function

SIZES = "outer inner gate gate_row state_row output_row carry_row size rows columns programs m n k".split()
OTHERS = {"right": "*i1", "dropped": "*i1", "derivatives": "*fp32", "sums": "*fp32", "scale": "fp32"}


def made(kernel, of, **constants):
    names = kernel.arg_names
    told = {n: "i32" if n in SIZES else OTHERS.get(n, of) for n in names} | dict.fromkeys(constants, "constexpr")
    held = {(names.index(name),): value for name, value in constants.items()}
    return ASTSource(kernel, told, held)


def check(kernel, of, how=None, **constants):
    compile(made(kernel, of, **constants), target=GPUTarget("cuda", 90, 32), options=how or {})


for of in ("*bf16", "*fp32"):
    check(triton_tempo.gelu_forward, of, at=-0.75, block=1024)
    check(triton_tempo.gelu_backward, of, minimum=-0.17, left_step=9.0, right_step=9.0, each=64, block=1024)
    check(triton_tempo.norm_backward, of, block=512)
    check(triton_tempo.core_backward, of, block=512)
    for cell, sees in (("lstm", False), ("lstm", True), ("gru", False)):
        for way in ("forward", "backward"):
            check(getattr(triton_cell, f"{cell}_{way}"), of, sees=sees, columns=True, block=256)
gpu = of_catalog("h200-sxm-141gb")
for contraction in (FORWARD, DGRAD, WGRAD):
    program = block_schedules(gpu, 2)[40].program(contraction)
    check(_function(source(program)), "*bf16", options(program), whole=True)
program = fused_after(block_schedules(gpu, 2)[40].program(FORWARD), BIAS, GELU)
check(_function(source(program)), "*bf16", options(program), whole=False)
print("compiled")
"""


@pytest.mark.slow
def test_all_kernels_compile_for_a_gpu(tmp_path):
    """In a process of its own: where there is no CUDA this one has told Triton to interpret."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.strip() == "compiled", done.stderr[-2000:]
