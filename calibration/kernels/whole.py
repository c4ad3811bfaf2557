"""One transformer block and one whole training step of a small GPT: held out, never fitted."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from calibration.kernels.adam import PER_PARAMETER, Optimizer
from calibration.kernels.family import Case, Machine, Suite, Work
from calibration.kernels.gpt import SmallGpt, SmallGptBlock
from calibration.kernels.overhead import gradients, loss_and_gradients
from calibration.kernels.work import (
    ITEM,
    Check,
    Draw,
    fits,
    item,
    main_dtype,
    relative_error,
    rotated,
)
from sim.costs.algebra import symbol
from sim.specs.model import Model

TOLERANCE = {"float32": 1e-3, "bfloat16": 1e-1}
"""Rounding adds up over layers."""

OPTIMIZER = "fused"
Attention = Literal["eager", "flash"]
ATTENTIONS: tuple[Attention, ...] = ("flash", "eager")

layers, hidden, ffn, vocab, seq, micro_batch, parameters, per_parameter = (
    symbol(name) for name in ("layers", "hidden", "ffn", "vocab", "seq", "micro_batch", "parameters", "per_parameter")
)
FORWARD_AND_BACKWARD = 3
products = layers * (4 * hidden**2 + 2 * hidden * ffn)
scores = layers * 2 * seq * hidden / 2  # two products over the keys that the causal mask leaves


@dataclass(frozen=True)
class Dimensions:
    """A GPT and how many samples of it go through at once; `smoke` if both suites hold it."""

    layers: int
    hidden: int
    heads: int
    vocab: int
    seq: int
    micro_batch: int
    smoke: bool = True

    def model(self, attention: Attention) -> Model:
        """Return the simulator's model of these dimensions."""
        sizes = {"layers": self.layers, "hidden": self.hidden, "heads": self.heads, "seq": self.seq}
        return model_of(sizes | {"ffn": 4 * self.hidden, "vocab": self.vocab}, attention)


CPU_STEPS = (
    Dimensions(2, 128, 4, 1024, 64, 2),
    Dimensions(2, 256, 8, 2048, 128, 2),
    Dimensions(4, 256, 8, 4096, 128, 2),
    Dimensions(4, 384, 6, 8192, 128, 2, smoke=False),
    Dimensions(6, 512, 8, 8192, 256, 2, smoke=False),
)
CUDA_STEPS = (
    Dimensions(4, 1024, 16, 32768, 1024, 2),
    Dimensions(8, 2048, 16, 32768, 2048, 2),
    Dimensions(12, 768, 12, 50304, 1024, 8, smoke=False),
    Dimensions(24, 1024, 16, 50304, 1024, 8, smoke=False),
    Dimensions(16, 2048, 16, 50304, 2048, 4, smoke=False),
    Dimensions(4, 4096, 32, 32768, 2048, 2, smoke=False),
)
CPU_BLOCKS = (
    Dimensions(1, 128, 4, 2, 128, 4),
    Dimensions(1, 256, 8, 2, 256, 2),
    Dimensions(1, 512, 8, 2, 128, 2),
    Dimensions(1, 512, 8, 2, 512, 2, smoke=False),
)
CUDA_BLOCKS = (
    Dimensions(1, 2048, 16, 2, 2048, 4),
    Dimensions(1, 4096, 32, 2, 4096, 1),
    Dimensions(1, 1024, 16, 2, 1024, 8, smoke=False),
    Dimensions(1, 8192, 64, 2, 4096, 1, smoke=False),
    Dimensions(1, 12288, 96, 2, 2048, 1, smoke=False),
)


def model_of(shape: Mapping[str, float], implementation: str) -> Model:
    """Return the simulator's model of a `block` or `step` sample (its implementation is the model's attention)."""
    return Model(
        name="small",
        layers=int(shape["layers"]),
        hidden=int(shape["hidden"]),
        heads=int(shape["heads"]),
        ffn=int(shape["ffn"]),
        vocab=int(shape.get("vocab", 2)),
        seq=int(shape["seq"]),
        attention="eager" if implementation == "eager" else "flash",
    )


def _shape(size: Dimensions, dtype: str) -> dict[str, float]:
    """Return what both families say of a model; `parameters` are those that are trained."""
    names = {name: getattr(size, name) for name in ("layers", "hidden", "heads", "seq", "micro_batch")}
    return names | {"ffn": 4 * size.hidden, "item": ITEM[dtype]}


def _other(attention: str) -> Attention:
    """Return the attention that a result is compared with."""
    return "flash" if attention == "eager" else "eager"


MASTERS, FLOAT64 = 16, 24
"""Bytes a parameter: masters, moments and gradients in fp32; weights and twice the gradients of the check."""


def _activations(size: Dimensions, bytes_each: int, attention: Attention) -> float:
    """Return the bytes that a run keeps for backward, and those of its check, one sample in float64.

    Korthikanti et al. 2022 (arXiv 2205.05198, equation 2): s b h (34 + 5 a s / h) in 16 bits, and the logits.
    """

    def kept(samples: int, item: int, stores: bool) -> float:
        layer = 34 * size.hidden + (5 * size.heads * size.seq if stores else 0)
        return samples * size.seq * (size.layers * layer * item / 2 + 3 * max(4, item) * size.vocab)

    return kept(size.micro_batch, bytes_each, attention == "eager") + kept(1, 8, True)


class Block:
    """Forward and backward of one layer, gradients of its input and weights included.

    `bytes` are those of the weights alone, read twice and their gradients written: a lower bound.
    """

    name = "block"
    flop = FORWARD_AND_BACKWARD * 2 * micro_batch * seq * (products + scores)
    bytes = 3 * item * parameters

    def cases(self, machine: Machine, suite: Suite) -> Iterator[Case]:
        """Yield every size with fused attention and with stored scores."""
        dtype = main_dtype(machine)
        for size in CUDA_BLOCKS if machine.kind == "cuda" else CPU_BLOCKS:
            for attention in ATTENTIONS:
                model = size.model(attention)
                block = next(iter(model.blocks))
                shape = _shape(size, dtype) | {"parameters": block.parameters}
                held = (2 * ITEM[dtype] + FLOAT64) * block.parameters + _activations(size, ITEM[dtype], attention)
                if (size.smoke or suite == "full") and fits(machine, held, factor=1.2):
                    yield Case("block", "any", dtype, attention, shape, f"{size.hidden}x{size.seq}", use="whole")

    def prepare(self, case: Case, machine: Machine, seed: int) -> Work:
        """Return forward and backward from x and the gradient of the output."""
        draw, model = Draw(machine, case.dtype, seed), model_of(case.shape, case.implementation)
        with draw.device:
            block = SmallGpt(model, seed).blocks[0].to(draw.dtype)
        extent = int(case.shape["micro_batch"]), model.seq, model.hidden

        def run(x: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
            return gradients(block, x, dy)

        def of(out: Any) -> float:
            with draw.device:
                other = SmallGptBlock(replace(model, attention=_other(case.implementation)))
            other.load_state_dict(block.state_dict())
            return relative_error(out, gradients(other.double(), *(t.double() for t in sample)))

        sets = rotated(machine, case.shape["item"] * 2 * extent[0] * extent[1] * extent[2], lambda: _pair(draw, extent))
        sample = [t[:1] for t in sets[0]]
        return Work(run, sets, Check(lambda: run(*sample), of), TOLERANCE[case.dtype])


def _pair(draw: Draw, extent: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    return draw.normal(*extent), draw.normal(*extent)


class Step:
    """Forward, backward and optimizer step of a whole model on micro_batch samples of tokens.

    `bytes` are those of the weights and the optimizer: a lower bound.
    """

    name = "step"
    flop = FORWARD_AND_BACKWARD * 2 * micro_batch * seq * (products + scores + vocab * hidden)
    bytes = (3 * item + per_parameter) * parameters

    def cases(self, machine: Machine, suite: Suite) -> Iterator[Case]:
        """Yield every size with fused attention; on a CPU the middle one with stored scores too."""
        dtype = main_dtype(machine)
        sizes = CUDA_STEPS if machine.kind == "cuda" else CPU_STEPS
        for size in sizes:
            for attention in ATTENTIONS if size is sizes[1] else ATTENTIONS[:1]:
                shape = _shape(size, dtype) | {"vocab": size.vocab, "per_parameter": PER_PARAMETER[dtype]}
                shape["parameters"] = size.model(attention).parameters
                held = (2 * ITEM[dtype] + MASTERS + FLOAT64) * shape["parameters"]
                held += _activations(size, ITEM[dtype], attention)
                if (size.smoke or suite == "full") and fits(machine, held, factor=1.2):
                    group = f"{size.layers}x{size.hidden}"
                    yield Case("step", "any", dtype, attention, shape, group, use="whole")

    def prepare(self, case: Case, machine: Machine, seed: int) -> Work:
        """Return the step on random tokens and targets."""
        draw, model = Draw(machine, case.dtype, seed), model_of(case.shape, case.implementation)
        with draw.device:
            gpt = SmallGpt(model, seed).to(draw.dtype)
        optimizer = Optimizer(list(gpt.parameters()), OPTIMIZER)
        extent = int(case.shape["micro_batch"]), model.seq

        def run(tokens: Tensor, targets: Tensor) -> None:
            optimizer.zero_grad()
            torch.autograd.backward(gpt.loss(tokens, targets))
            optimizer.step()

        def of(out: Any) -> float:
            with draw.device:
                other = SmallGpt(replace(model, attention=_other(case.implementation)))
            other.load_state_dict(gpt.state_dict())
            return relative_error(out, loss_and_gradients(other.double(), *sample))

        sets = [(draw.integers(model.vocab, *extent), draw.integers(model.vocab, *extent)) for _ in range(3)]
        sample = [t[:1] for t in sets[0]]
        return Work(run, sets, Check(lambda: loss_and_gradients(gpt, *sample), of), TOLERANCE[case.dtype])


FAMILIES = (Block(), Step())
