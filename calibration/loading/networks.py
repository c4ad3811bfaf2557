"""The nine networks of the study of data stalls (arXiv 2007.06775), as torch modules; x[b, ...] to logits."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from calibration.workloads.images import ResNet, unit

CLASSES = 1000


def separable(inputs: int, outputs: int, stride: int, kernel: int = 3) -> nn.Sequential:
    """Return a convolution channel by channel, its batch norm, and a 1 x 1 unit."""
    each = nn.Conv2d(inputs, inputs, kernel, stride, kernel // 2, groups=inputs, bias=False)
    return nn.Sequential(each, nn.BatchNorm2d(inputs), unit(inputs, outputs, 1))


class Shuffled(nn.Module):
    """Half of the channels pass, the others are convolved, and both halves are shuffled; stride 2 convolves both."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        half = outputs // 2
        own = inputs if stride > 1 else half
        self.body = nn.Sequential(unit(own, half, 1), separable(half, half, stride))
        self.shortcut = separable(inputs, half, stride) if stride > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        """Return [b, outputs, h / stride, w / stride]."""
        kept, own = x.chunk(2, 1) if self.shortcut is None else (self.shortcut(x), x)
        joined = torch.stack([kept, self.body(own)], 2)
        return joined.flatten(1, 2)


def shufflenet() -> nn.Module:
    """Return ShuffleNet v2, half as wide (arXiv 1807.11164, table 5)."""
    layers: list[nn.Module] = [unit(3, 24, 3, 2, 1), nn.MaxPool2d(3, 2, 1)]
    inputs = 24
    for outputs, blocks in ((48, 4), (96, 8), (192, 4)):
        for block in range(blocks):
            layers.append(Shuffled(inputs, outputs, 1 if block else 2))
            inputs = outputs
    return nn.Sequential(*layers, unit(inputs, 1024, 1), Mean(), nn.Linear(1024, CLASSES))


class Mean(nn.Module):
    """The mean over all places."""

    def forward(self, x: Tensor) -> Tensor:
        """Return [b, channels]."""
        return x.flatten(2).mean(2)


def plain(inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0) -> nn.Sequential:
    """Return convolution and ReLU, without batch norm."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, padding), nn.ReLU())


def dense(inputs: int, hidden: int = 4096) -> nn.Sequential:
    """Return the three layers behind the convolutions of AlexNet and VGG."""
    first, second = nn.Sequential(nn.Dropout(), nn.Linear(inputs, hidden), nn.ReLU()), nn.Linear(hidden, hidden)
    return nn.Sequential(nn.Flatten(), first, nn.Dropout(), second, nn.ReLU(), nn.Linear(hidden, CLASSES))


def alexnet() -> nn.Module:
    """Return AlexNet on one device (Krizhevsky, arXiv 1404.5997)."""
    pool = nn.MaxPool2d(3, 2)
    first = [plain(3, 64, 11, 4, 2), pool, plain(64, 192, 5, 1, 2), pool]
    later = [plain(192, 384, 3, 1, 1), plain(384, 256, 3, 1, 1), plain(256, 256, 3, 1, 1), pool]
    return nn.Sequential(*first, *later, dense(256 * 6 * 6))


def vgg() -> nn.Module:
    """Return VGG-11, configuration A (arXiv 1409.1556)."""
    layers: list[nn.Module] = []
    inputs = 3
    for outputs in (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0):
        layers.append(plain(inputs, outputs, 3, 1, 1) if outputs else nn.MaxPool2d(2, 2))
        inputs = outputs or inputs
    return nn.Sequential(*layers, dense(512 * 7 * 7))


class Basic(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut (arXiv 1512.03385, figure 5, left)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(unit(inputs, outputs, 3, stride, 1), unit(outputs, outputs, 3, 1, 1)[:2])
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else unit(inputs, outputs, 1, stride)[:2]

    def forward(self, x: Tensor) -> Tensor:
        """Return [b, outputs, h / stride, w / stride]."""
        return functional.relu(self.body(x) + self.shortcut(x))


def stages(strides: tuple[int, ...] = (1, 2, 2, 2)) -> list[nn.Module]:
    """Return stem and stages of ResNet-18, as many as there are strides."""
    made: list[nn.Module] = [unit(3, 64, 7, 2, 3), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for n, stride in enumerate(strides):
        outputs = 64 * 2**n
        made.append(nn.Sequential(Basic(inputs, outputs, stride), Basic(outputs, outputs, 1)))
        inputs = outputs
    return made


def resnet18() -> nn.Module:
    """Return ResNet-18 (arXiv 1512.03385)."""
    return nn.Sequential(*stages(), Mean(), nn.Linear(512, CLASSES))


def resnet50() -> nn.Module:
    """Return ResNet-50 (arXiv 1512.03385)."""
    return ResNet(64, (3, 4, 6, 3), CLASSES)


class Fire(nn.Module):
    """A 1 x 1 convolution, then 1 x 1 and 3 x 3 side by side (arXiv 1602.07360)."""

    def __init__(self, inputs: int, squeezed: int, each: int) -> None:
        super().__init__()
        self.squeeze = plain(inputs, squeezed, 1)
        self.small, self.large = plain(squeezed, each, 1), plain(squeezed, each, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return [b, 2 each, h, w]."""
        squeezed = self.squeeze(x)
        return torch.cat([self.small(squeezed), self.large(squeezed)], 1)


def squeezenet() -> nn.Module:
    """Return SqueezeNet 1.0 (arXiv 1602.07360, table 1)."""
    layers: list[nn.Module] = [plain(3, 96, 7, 2), nn.MaxPool2d(3, 2, ceil_mode=True)]
    inputs = 96
    for squeezed, each, pooled in (
        (16, 64, False), (16, 64, False), (32, 128, True), (32, 128, False),
        (48, 192, False), (48, 192, False), (64, 256, True), (64, 256, False),
    ):  # fmt: skip
        layers.append(Fire(inputs, squeezed, each))
        layers += [nn.MaxPool2d(3, 2, ceil_mode=True)] if pooled else []
        inputs = 2 * each
    return nn.Sequential(*layers, nn.Dropout(), plain(inputs, CLASSES, 1), Mean())


class Inverted(nn.Module):
    """Wider, channel by channel, narrow again, beside a shortcut between narrow ends (arXiv 1801.04381)."""

    def __init__(self, inputs: int, outputs: int, stride: int, wider: int) -> None:
        super().__init__()
        inner = inputs * wider
        each = nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False)
        first = [unit(inputs, inner, 1)] if wider > 1 else []
        last = unit(inner, outputs, 1)[:2]
        self.body = nn.Sequential(*first, each, nn.BatchNorm2d(inner), nn.ReLU6(), last)
        self.passes = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Return [b, outputs, h / stride, w / stride]."""
        made: Tensor = self.body(x)
        return x + made if self.passes else made


def mobilenet() -> nn.Module:
    """Return MobileNet v2 (arXiv 1801.04381, table 2)."""
    layers: list[nn.Module] = [unit(3, 32, 3, 2, 1)]
    inputs = 32
    for wider, outputs, blocks, stride in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ):  # fmt: skip
        for block in range(blocks):
            layers.append(Inverted(inputs, outputs, 1 if block else stride, wider))
            inputs = outputs
    return nn.Sequential(*layers, unit(inputs, 1280, 1), Mean(), nn.Dropout(0.2), nn.Linear(1280, CLASSES))


class SSD(nn.Module):
    """images[b, 3, 300, 300] to boxes [b, 4, 8732] and scores [b, 81, 8732] (arXiv 1512.02325) on ResNet-18.

    The trunk ends after its third stage, whose stride is left out, as NVIDIA's and MLPerf's SSD have it.
    """

    def __init__(self, classes: int = 81) -> None:
        super().__init__()
        self.classes = classes
        self.trunk = nn.Sequential(*stages((1, 2, 1)))
        widths = (256, 512, 512, 256, 256, 256)
        inner, steps = (256, 256, 128, 128, 128), ((2, 1), (2, 1), (2, 1), (1, 0), (1, 0))
        self.more = nn.ModuleList(
            nn.Sequential(unit(a, i, 1), unit(i, b, 3, stride, padding))
            for a, b, i, (stride, padding) in zip(widths, widths[1:], inner, steps, strict=False)
        )
        boxes = (4, 6, 6, 6, 4, 4)
        self.places = nn.ModuleList(nn.Conv2d(w, 4 * n, 3, 1, 1) for w, n in zip(widths, boxes, strict=True))
        self.scores = nn.ModuleList(nn.Conv2d(w, classes * n, 3, 1, 1) for w, n in zip(widths, boxes, strict=True))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return boxes and scores of all places."""
        maps = [self.trunk(images)]
        for block in self.more:
            maps.append(block(maps[-1]))
        both = zip(maps, self.places, self.scores, strict=True)
        places, scores = zip(*((p(m).reshape(m.shape[0], 4, -1), s(m)) for m, p, s in both), strict=True)
        flat = [s.reshape(s.shape[0], self.classes, -1) for s in scores]
        return torch.cat(places, 2), torch.cat(flat, 2)


def m5(classes: int = 161) -> nn.Module:
    """Return M5 on waveforms (Dai et al., arXiv 1610.00087, table 1); classes: genres of FMA."""
    layers: list[nn.Module] = []
    inputs, kernel, stride = 1, 80, 4
    for outputs in (128, 128, 256, 512):
        convolution = nn.Conv1d(inputs, outputs, kernel, stride)
        layers += [convolution, nn.BatchNorm1d(outputs), nn.ReLU(), nn.MaxPool1d(4)]
        inputs, kernel, stride = outputs, 3, 1
    return nn.Sequential(*layers, Mean(), nn.Linear(inputs, classes))


class Network(NamedTuple):
    """How a network is made, and the shape of a sample."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]


PICTURE = (3, 224, 224)
NETWORKS: Mapping[str, Network] = {
    "shufflenet-v2": Network(shufflenet, PICTURE),
    "alexnet": Network(alexnet, PICTURE),
    "resnet-18": Network(resnet18, PICTURE),
    "squeezenet": Network(squeezenet, PICTURE),
    "mobilenet-v2": Network(mobilenet, PICTURE),
    "resnet-50": Network(resnet50, PICTURE),
    "vgg-11": Network(vgg, PICTURE),
    "ssd-resnet-18": Network(SSD, (3, 300, 300)),
    "audio-m5": Network(m5, (1, 32_000)),
}
