"""Byte formulas are those that the layers charge; 16-bit kernels and their checks run wherever torch does."""

import pytest
import torch

from calibration.kernels.adam import Optimizer
from calibration.kernels.registry import FAMILIES
from calibration.kernels.work import evaluate
from tests.contracts.family import CPU, CUDA, cases, one_thread, work_of

__all__ = ["one_thread"]

BYTES = {
    ("gelu", "forward"): (4, 8),
    ("gelu", "backward"): (6, 12),
    ("swiglu", "forward"): (6, 12),
    ("swiglu", "backward"): (10, 20),
    ("norm", "any"): (4, 8),
    ("norm", "backward"): (6, 12),
    ("softmax", "any"): (4, 8),
    ("softmax", "backward"): (6, 12),
    ("dropout", "forward"): (5, 9),
    ("dropout", "backward"): (5, 9),
    ("cross_entropy", "forward"): (18, 12),
    ("cross_entropy", "backward"): (10, 8),
    ("embedding", "forward"): (4, 8),
    ("embedding", "backward"): (10, 12),
}
"""Bytes an element in 16 and in 32 bits."""

RESIDUAL = {
    ("forward", "add"): (6, 12),
    ("backward", "add"): (6, 12),
    ("forward", "dropout"): (7, 13),
    ("backward", "dropout"): (11, 21),
}


@pytest.mark.parametrize(("machine", "bits"), [(CUDA, 0), (CPU, 1)], ids=["bf16", "fp32"])
def test_bytes_an_element(machine, bits):
    seen = set()
    for family in FAMILIES:
        for case in cases(family, machine):
            key = case.op, case.direction
            each = RESIDUAL[case.direction, case.implementation] if case.op == "residual" else BYTES.get(key)
            if each:
                seen.add(key)
                assert case.shape["bytes"] == each[bits] * case.shape["elements"]
            if case.op == "adam":
                assert case.shape["bytes"] == (38, 28)[bits] * case.shape["parameters"]
    assert seen == set(BYTES) | {("residual", "forward"), ("residual", "backward")}


@pytest.mark.parametrize(
    "family", [f for f in FAMILIES if f.name not in ("block", "step", "copy", "launch", "snapshot", "allocate")],
    ids=lambda f: f.name.replace(" ", "-"),
)  # fmt: skip
def test_16_bit_kernels_are_right(family):
    done = set()
    for case in sorted(cases(family, CUDA), key=lambda c: work_of(family, c)):
        if (case.direction, case.implementation) not in done and case.implementation != "cudnn":
            done.add((case.direction, case.implementation))
            if evaluate(family.flop, case.shape) < 2e9:
                work = family.prepare(case, CPU, seed=5)
                assert case.dtype == "bfloat16"
                assert work.error() <= work.tolerance, case.id


def test_16_bit_weights_follow_their_masters():
    weights = [torch.ones(4, dtype=torch.bfloat16, requires_grad=True)]
    optimizer = Optimizer(weights, "fused", rate=0.25)
    weights[0].grad = torch.full((4,), -1.0, dtype=torch.bfloat16)
    optimizer.step()
    assert optimizer.masters[0].dtype == torch.float32
    assert torch.equal(weights[0].detach(), torch.full((4,), 1.25, dtype=torch.bfloat16))
    optimizer.zero_grad()
    assert weights[0].grad is None


def test_fp32_weights_are_their_own_masters():
    weights = [torch.ones(4, requires_grad=True)]
    assert Optimizer(weights, "foreach").masters[0] is weights[0]
