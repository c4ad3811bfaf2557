"""Convolutions of ResNet-50 (arXiv 1512.03385, table 1): forward, gradients of inputs and of weights."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from torch.nn import functional

from calibration.kernels.family import Case, Machine, Suite, Use, Work
from calibration.kernels.work import (
    ITEM,
    TOLERANCE,
    Check,
    Draw,
    doubles,
    evaluate,
    fits,
    item,
    main_dtype,
    relative_error,
    rotated,
)
from sim.costs.algebra import symbol

MASK = {"dgrad": [True, False, False], "wgrad": [False, True, False]}


@dataclass(frozen=True)
class Conv:
    """A square convolution: `pixels` a side of its result, padded to keep the size but for the stride."""

    inputs: int
    outputs: int
    pixels: int
    kernel: int
    stride: int = 1


RESNET = (
    Conv(64, 64, 56, 3),
    Conv(128, 128, 28, 3, 2),
    Conv(128, 128, 28, 3),
    Conv(256, 256, 14, 3, 2),
    Conv(256, 256, 14, 3),
    Conv(512, 512, 7, 3, 2),
    Conv(512, 512, 7, 3),
    Conv(3, 64, 112, 7, 2),
)
"""All shapes of one image of 224 pixels a side that see more than one place at a time (the others are matrix products,
which have families of their own), the stem last."""

SMALL = (
    Conv(4, 4, 20, 7, 2),
    Conv(8, 8, 16, 3),
    Conv(1, 16, 32, 11, 2),
    Conv(3, 16, 32, 7, 2),
    Conv(24, 24, 12, 3),
    Conv(48, 48, 4, 3),
    Conv(32, 64, 8, 3, 2),
)
"""Of networks as small as a processor trains: what a launch takes decides, and how few channels there are."""

FIRST = (
    Conv(3, 64, 224, 3),
    Conv(3, 32, 148, 3, 2),
    Conv(3, 96, 56, 11, 4),
    Conv(4, 16, 20, 7, 4),
    Conv(1, 32, 80, 11, 2),
)
"""First convolutions of other networks (VGG, Inception, AlexNet, of games and of spectrograms), rounded: libraries are
slow where there are few channels."""

BATCHES: dict[tuple[str, Suite], tuple[tuple[int, ...], int]] = {
    ("cuda", "smoke"): ((8, 32, 128), 256),
    ("cuda", "full"): ((8, 32, 128), 256),
    ("cpu", "smoke"): ((1,), 2),
    ("cpu", "full"): ((1, 4), 8),
}
"""Images that are fitted, and the larger number that is held out."""

SMALL_BATCHES = (1, 16)
FEW = 8
"""With fewer inputs it is a network's first convolution, whose inputs have no gradient."""
HELD_OUT = RESNET[2]
micro_batch, inputs, outputs, pixels, kernel, stride = (
    symbol(name) for name in ("batch", "inputs", "outputs", "pixels", "kernel", "stride")
)


class Convolution:
    """All directions of the set; x[batch, inputs, pixels * stride, ...], channels last on a GPU."""

    name = "convolution"
    flop = 2 * micro_batch * pixels**2 * outputs * inputs * kernel**2
    bytes = item * (micro_batch * pixels**2 * (inputs * stride**2 + outputs) + outputs * inputs * kernel**2)

    def cases(self, machine: Machine, suite: Suite) -> Iterator[Case]:
        """Yield the set for batches of images; those of one layer are a group."""
        dtype = main_dtype(machine)
        batches, larger = BATCHES[machine.kind, suite]
        some = RESNET[::2] if suite == "smoke" else RESNET
        chosen: list[tuple[Use, Conv, int]] = [("fit", c, b) for c in some if c != HELD_OUT for b in batches]
        chosen += [("fit", c, b) for c in SMALL for b in SMALL_BATCHES] if machine.kind == "cpu" else []
        chosen += [("fit", c, b) for c in FIRST for b in batches] if (machine.kind, suite) == ("cuda", "full") else []
        chosen += [("random", HELD_OUT, batches[0])]
        chosen += [("larger", c, larger) for c in (RESNET[4:5] if suite == "smoke" else RESNET[4:7])]
        for use, conv, b in chosen:
            for direction in ("forward", *MASK) if conv.inputs >= FEW else ("forward", "wgrad"):
                shape = asdict(conv) | {"batch": b, "item": ITEM[dtype]}
                if fits(machine, evaluate(self.bytes, shape)):
                    group = f"{conv.inputs}-{conv.outputs}-{conv.kernel}"
                    yield Case("convolution", direction, dtype, "aten", shape, group, use=use)

    def prepare(self, case: Case, machine: Machine, seed: int) -> Work:
        """Return the convolution or one of its two gradients."""
        draw = Draw(machine, case.dtype, seed)
        conv = Conv(*(int(case.shape[name]) for name in Conv.__dataclass_fields__))
        b, side, padding = int(case.shape["batch"]), conv.pixels * conv.stride, conv.kernel // 2
        layout = torch.channels_last if machine.kind == "cuda" else torch.contiguous_format

        def operands() -> tuple[Tensor, Tensor, Tensor]:
            x = draw.normal(b, conv.inputs, side, side)
            weight = draw.normal(conv.outputs, conv.inputs, conv.kernel, conv.kernel)
            dy = draw.normal(b, conv.outputs, conv.pixels, conv.pixels)
            return x.to(memory_format=layout), weight.to(memory_format=layout), dy.to(memory_format=layout)

        def forward(x: Tensor, weight: Tensor, _: Tensor) -> Tensor:
            return functional.conv2d(x, weight, stride=conv.stride, padding=padding)

        def backward(x: Tensor, weight: Tensor, dy: Tensor) -> Tensor:
            two, pad = [conv.stride] * 2, [padding] * 2
            mask = MASK[case.direction]
            out = torch.ops.aten.convolution_backward(dy, x, weight, None, two, pad, [1, 1], False, [0, 0], 1, mask)
            gradient: Tensor = out[mask.index(True)]
            return gradient

        sets = rotated(machine, evaluate(self.bytes, case.shape), operands)
        run = forward if case.direction == "forward" else backward

        def of(out: Tensor) -> float:
            x, weight, dy = doubles(sets[0])
            y = forward(x.requires_grad_(), weight.requires_grad_(), dy)
            if case.direction == "forward":
                return relative_error(out, y.detach())
            return relative_error(out, torch.autograd.grad(y, x if case.direction == "dgrad" else weight, dy)[0])

        return Work(run, sets, Check(lambda: run(*sets[0]), of), TOLERANCE[case.dtype])


def product(direction: str, shape: Mapping[str, float]) -> dict[str, float]:
    """Return the sizes of the implicit product that a case is: (m, k) times (k, n), in the order of its direction, and
    the channels of its images."""
    places = shape["batch"] * shape["pixels"] ** 2
    outputs, taps = shape["outputs"], shape["inputs"] * shape["kernel"] ** 2
    orders = {"forward": (places, outputs, taps), "dgrad": (places, taps, outputs), "wgrad": (outputs, taps, places)}
    return dict(zip("mnk", orders[direction], strict=True)) | {"batch": 1.0, "channels": shape["inputs"]}


FAMILIES = (Convolution(),)
