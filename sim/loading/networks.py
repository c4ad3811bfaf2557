"""What the networks of the study of data stalls compute and move, and how fast servers train them.

A step of one sample takes (FLOP / peak + bytes of memory-bound kernels / memory bandwidth) times `FACTOR`. Peak FLOP/s
alone would say nothing of networks that memory bounds, which these mostly are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Task = Literal["image classification", "object detection", "audio classification"]


@dataclass(frozen=True)
class Network:
    """A network trained on whole samples.

    flop: of a training step, a sample, as traced (two a multiply-add); traffic_bytes: that its memory-bound kernels
    move in 16 bit, as traced; published_macs: multiply-adds of a forward pass by the paper, None where it has none;
    datasets: of the catalog.
    """

    name: str
    task: Task
    flop: float
    traffic_bytes: float
    published_macs: float | None
    source: str
    datasets: tuple[str, ...]


IMAGES = ("imagenet-1k", "imagenet-22k", "openimages-extended")
NETWORKS: tuple[Network, ...] = (
    Network("shufflenet-v2", "image classification", 2.27e8, 2.93e7, 41e6, "arXiv 1807.11164, table 5 (0.5x)", IMAGES),
    Network("alexnet", "image classification", 4.145e9, 1.01e7, None, "arXiv 1404.5997", IMAGES),
    Network("resnet-18", "image classification", 1.0648e10, 7.69e7, 1.8e9, "arXiv 1512.03385, table 1", IMAGES),
    Network("squeezenet", "image classification", 4.578e9, 9.11e7, None, "arXiv 1602.07360 (1.0)", IMAGES),
    Network("mobilenet-v2", "image classification", 1.783e9, 1.574e8, 300e6, "arXiv 1801.04381, table 4", IMAGES),
    Network(
        "resnet-50",
        "image classification",
        2.4299e10,
        3.278e8,
        4.1e9,
        "arXiv 1512.03385, and 4.1e9 with the stride in the 3 x 3 convolution (NVIDIA's v1.5)",
        IMAGES,
    ),
    Network("vgg-11", "image classification", 4.5481e10, 1.568e8, None, "arXiv 1409.1556", IMAGES),
    Network(
        "ssd-resnet-18",
        "object detection",
        4.6269e10,
        2.0e8,
        None,
        "arXiv 1512.02325 on ResNet-18",
        ("openimages-detection",),
    ),
    Network("audio-m5", "audio classification", 1.496e9, 5.43e7, None, "arXiv 1610.00087", ("fma-full",)),
)


@dataclass(frozen=True)
class Gpu:
    """Peak FLOP/s and memory bytes/s of a GPU in the precision it trains in."""

    name: str
    flop_per_s: float
    bytes_per_s: float
    element_bytes: int
    source: str


FACTOR = 2.5
"""How many times as long as at peak rates a step takes. Assumption: networks reach two fifths of them."""


def ideal_s(network: Network, flop_per_s: float, bytes_per_s: float, element_bytes: int) -> float:
    """Return the seconds of a sample at peak rates."""
    return network.flop / flop_per_s + network.traffic_bytes * element_bytes / 2 / bytes_per_s


GPUS: Mapping[str, Gpu] = {
    "v100": Gpu("v100", 125e12, 900e9, 2, "NVIDIA V100 datasheet (2020), fp16"),
    "gtx-1080-ti": Gpu("gtx-1080-ti", 11.34e12, 484e9, 4, "NVIDIA GeForce GTX 1080 Ti, fp32"),
}


def samples_per_s(network: Network, gpu: Gpu) -> float:
    """Return what one GPU trains when data is always there."""
    return 1 / (FACTOR * ideal_s(network, gpu.flop_per_s, gpu.bytes_per_s, gpu.element_bytes))
