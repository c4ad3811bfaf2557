"""FLOP of the formulas are those that torch counts."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from calibration.kernels.attention import Attention
from calibration.kernels.convolution import Convolution
from calibration.kernels.gemm import Gemm
from calibration.kernels.gpt import SmallGpt
from calibration.kernels.whole import Block, Step, model_of
from calibration.kernels.work import evaluate
from tests.contracts.family import CPU, cases


def counted(run, *inputs):
    with FlopCounterMode(display=False) as counter:
        run(*inputs)
    return counter.get_total_flops()


def some(family, **wanted):
    """Return the first small cases of every direction that have the wanted attributes."""
    found = [c for c in cases(family, CPU) if all(getattr(c, k) == v for k, v in wanted.items())]
    return sorted(found, key=lambda c: evaluate(family.flop, c.shape))[:6]


@pytest.mark.parametrize("direction", ["forward", "dgrad", "wgrad"])
@pytest.mark.parametrize("family", [Gemm(), Convolution()], ids=["gemm", "convolution"])
def test_products(family, direction):
    for case in some(family, direction=direction):
        work = family.prepare(case, CPU, seed=0)
        assert counted(work.run, *work.inputs[0]) == evaluate(family.flop, case.shape)


def test_batched_products():
    case = next(c for c in cases(Gemm(), CPU) if c.shape["batch"] > 1)
    work = Gemm().prepare(case, CPU, seed=0)
    assert counted(work.run, *work.inputs[0]) == evaluate(Gemm.flop, case.shape)


@pytest.mark.parametrize(("direction", "products"), [("forward", 2), ("backward", 4)])
def test_attention_counts_the_half_that_the_mask_leaves(direction, products):
    family = Attention(direction)
    formula = 2 if direction == "forward" else 5  # fused backward computes the scores once more
    for case in some(family, implementation="math"):
        work = family.prepare(case, CPU, seed=0)
        whole = (1 + case.shape["causal"]) * evaluate(family.flop, case.shape)
        assert counted(work.run, *work.inputs[0]) == pytest.approx(whole * products / formula)


def _halved(shape):
    """FLOP of the scores' products that the causal mask takes away, forward and backward."""
    return 3 * shape["layers"] * 2 * shape["micro_batch"] * shape["seq"] ** 2 * shape["hidden"]


def test_step_is_what_torch_counts_and_the_simulator_says():
    case = next(c for c in cases(Step(), CPU) if c.implementation == "eager")
    work, flop = Step().prepare(case, CPU, seed=0), evaluate(Step.flop, case.shape)
    assert counted(work.run, *work.inputs[0]) == flop + _halved(case.shape)
    assert flop == model_of(case.shape, "eager").flop_per_sample("megatron") * case.shape["micro_batch"]


def test_block_is_what_torch_counts():
    case = next(c for c in cases(Block(), CPU) if c.implementation == "eager")
    model = model_of(case.shape, "eager")
    x = torch.randn(int(case.shape["micro_batch"]), model.seq, model.hidden, requires_grad=True)
    block = SmallGpt(model).blocks[0]
    found = counted(lambda: block(x).sum().backward())
    assert found == evaluate(Block.flop, case.shape) + _halved(case.shape)
