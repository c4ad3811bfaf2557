"""Image classification: ResNet-50 (arXiv 1512.03385) and Inception-v3 (arXiv 1512.00567), batch norm behind every
convolution."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from calibration.workloads.workload import Batch, Size, Workload

EXPANSION = 4
"""Channels behind a bottleneck over those inside it."""

AUXILIARY = 0.4
"""Weight of the auxiliary classifier's loss, as in the authors' own implementation (TensorFlow-Slim)."""

Pair = tuple[int, int]


def unit(inputs: int, outputs: int, kernel: int | Pair, stride: int = 1, padding: int | Pair = 0) -> nn.Sequential:
    """Return convolution, batch norm and ReLU."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


class Bottleneck(nn.Module):
    """1x1, 3x3 (with the stride) and 1x1 convolutions beside a shortcut; x[b, inputs, h, w]."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = EXPANSION * width
        last = unit(width, outputs, 1)[:2]  # the ReLU comes behind the sum
        self.body = nn.Sequential(unit(inputs, width, 1), unit(width, width, 3, stride, 1), last)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else unit(inputs, outputs, 1, stride)[:2]

    def forward(self, x: Tensor) -> Tensor:
        """Return [b, 4 width, h / stride, w / stride]."""
        return functional.relu(self.body(x) + self.shortcut(x))


def stage(inputs: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    """Return `blocks` bottlenecks, the first with the stride."""
    later = [Bottleneck(EXPANSION * width, width, 1) for _ in range(blocks - 1)]
    return nn.Sequential(Bottleneck(inputs, width, stride), *later)


def trunk(width: int, blocks: Sequence[int]) -> nn.Sequential:
    """Return stem and stages of a ResNet, each stage twice as wide as the one before."""
    stages, inputs = [], width
    for n, count in enumerate(blocks):
        stages.append(stage(inputs, width * 2**n, count, 1 if n == 0 else 2))
        inputs = EXPANSION * width * 2**n
    return nn.Sequential(unit(3, width, 7, 2, 3), nn.MaxPool2d(3, 2, 1), *stages)


class ResNet(nn.Module):
    """images[b, 3, side, side] to logits[b, classes]."""

    def __init__(self, width: int, blocks: Sequence[int], classes: int) -> None:
        super().__init__()
        self.trunk = trunk(width, blocks)
        self.head = nn.Linear(EXPANSION * width * 2 ** (len(blocks) - 1), classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.head(self.trunk(images).mean((2, 3)))
        return logits


class Branches(nn.Module):
    """Branches of one input, their results side by side in the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        """Return [b, channels of all, h, w]."""
        return torch.cat([branch(x) for branch in self.branches], 1)


class Inception(nn.Module):
    """images[b, 3, side, side] to logits and auxiliary logits [b, classes]; all channels over `shrink`.

    Figures 5, 6, 7 and 10 of the paper, with the numbers of channels of the authors' implementation.
    """

    def __init__(self, side: int, shrink: int, classes: int) -> None:
        super().__init__()
        self.shrink = shrink
        c = self._channels
        mixed = [self._a(192, 32), self._a(256, 64), self._a(288, 64), self._reduced(288)]
        mixed += [self._c(inner) for inner in (128, 160, 160, 192)]
        self.body = nn.Sequential(
            unit(3, c(32), 3, 2), unit(c(32), c(32), 3), unit(c(32), c(64), 3, 1, 1), nn.MaxPool2d(3, 2),
            unit(c(64), c(80), 1), unit(c(80), c(192), 3), nn.MaxPool2d(3, 2), *mixed,
        )  # fmt: skip
        self.top = nn.Sequential(self._reduced_again(), self._e(1280), self._e(2048))
        left = (_side(side) - 5) // 3 + 1
        self.auxiliary = nn.Sequential(
            nn.AvgPool2d(5, 3), unit(c(768), c(128), 1), unit(c(128), c(768), left), nn.Flatten(),
            nn.Linear(c(768), classes),
        )  # fmt: skip
        self.head = nn.Linear(c(2048), classes)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and auxiliary logits."""
        x = self.body(images)
        return self.head(self.top(x).mean((2, 3))), self.auxiliary(x)

    def _channels(self, full: int) -> int:
        return full // self.shrink

    def _unit(self, inputs: int, outputs: int, kernel: int | Pair, stride: int = 1) -> nn.Sequential:
        """Return a unit of the full sizes that keeps the picture's size, or halves it without padding."""
        around = tuple(k // 2 for k in ((kernel, kernel) if isinstance(kernel, int) else kernel))
        padding = 0 if stride > 1 else (around[0], around[1])
        return unit(self._channels(inputs), self._channels(outputs), kernel, stride, padding)

    def _row(self, inputs: int, *steps: tuple[int, int | Pair]) -> nn.Sequential:
        """Return units one behind the other: (channels, kernel) of each."""
        units = []
        for outputs, kernel in steps:
            units.append(self._unit(inputs, outputs, kernel))
            inputs = outputs
        return nn.Sequential(*units)

    def _pooled(self, inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(nn.AvgPool2d(3, 1, 1), self._unit(inputs, outputs, 1))

    def _a(self, inputs: int, pooled: int) -> Branches:
        return Branches(
            self._row(inputs, (64, 1)),
            self._row(inputs, (48, 1), (64, 5)),
            self._row(inputs, (64, 1), (96, 3), (96, 3)),
            self._pooled(inputs, pooled),
        )

    def _reduced(self, inputs: int) -> Branches:
        double = nn.Sequential(self._row(inputs, (64, 1), (96, 3)), self._unit(96, 96, 3, 2))
        return Branches(self._unit(inputs, 384, 3, 2), double, nn.MaxPool2d(3, 2))

    def _c(self, inner: int) -> Branches:
        across, down = (1, 7), (7, 1)
        return Branches(
            self._row(768, (192, 1)),
            self._row(768, (inner, 1), (inner, across), (192, down)),
            self._row(768, (inner, 1), (inner, down), (inner, across), (inner, down), (192, across)),
            self._pooled(768, 192),
        )

    def _reduced_again(self) -> Branches:
        first = nn.Sequential(self._row(768, (192, 1)), self._unit(192, 320, 3, 2))
        second = nn.Sequential(self._row(768, (192, 1), (192, (1, 7)), (192, (7, 1))), self._unit(192, 192, 3, 2))
        return Branches(first, second, nn.MaxPool2d(3, 2))

    def _e(self, inputs: int) -> Branches:
        def split() -> Branches:
            return Branches(self._unit(384, 384, (1, 3)), self._unit(384, 384, (3, 1)))

        return Branches(
            self._row(inputs, (320, 1)),
            nn.Sequential(self._row(inputs, (384, 1)), split()),
            nn.Sequential(self._row(inputs, (448, 1), (384, 3)), split()),
            self._pooled(inputs, 192),
        )


def _side(side: int) -> int:
    """Return the side of the picture that the auxiliary classifier sees."""
    for kernel, stride in ((3, 2), (3, 1), (3, 2), (3, 1), (3, 2), (3, 2)):
        side = (side - kernel) // stride + 1
    return side


def _pictures(side: int, classes: int, samples: int, generator: torch.Generator) -> Batch:
    labels = torch.randint(classes, (samples,), generator=generator)
    return torch.randn(samples, 3, side, side, generator=generator), labels


def _resnet(size: Size) -> ResNet:
    return ResNet(64, (3, 4, 6, 3), 1000) if size == "full" else ResNet(8, (1, 1, 1, 1), 10)


def _resnet_batch(size: Size, samples: int, generator: torch.Generator) -> Batch:
    return _pictures(*((224, 1000) if size == "full" else (64, 10)), samples, generator)


def _resnet_loss(model: ResNet, batch: Batch) -> Tensor:
    images, labels = batch
    return functional.cross_entropy(model(images).float(), labels)


def _inception(size: Size) -> Inception:
    return Inception(299, 1, 1000) if size == "full" else Inception(107, 8, 10)


def _inception_batch(size: Size, samples: int, generator: torch.Generator) -> Batch:
    return _pictures(*((299, 1000) if size == "full" else (107, 10)), samples, generator)


def _inception_loss(model: Inception, batch: Batch) -> Tensor:
    images, labels = batch
    logits, auxiliary = (t.float() for t in model(images))
    return functional.cross_entropy(logits, labels) + AUXILIARY * functional.cross_entropy(auxiliary, labels)


WORKLOADS = (
    Workload(
        name="resnet-50",
        domain="image classification",
        paper="arXiv 1512.03385",
        parameters=25_557_032,
        samples={"tiny": 8, "full": 32},
        make=_resnet,
        draw=_resnet_batch,
        loss=_resnet_loss,
    ),
    Workload(
        name="inception-v3",
        domain="image classification",
        paper="arXiv 1512.00567",
        parameters=27_161_264,
        samples={"tiny": 4, "full": 32},
        make=_inception,
        draw=_inception_batch,
        loss=_inception_loss,
    ),
)
