"""Object detection in two stages: Faster R-CNN (arXiv 1506.01497) on ResNet-101 (arXiv 1512.03385, appendix A).

Everything is of fixed shapes: targets of what is not trained have the weight 0, instead of being left out.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from calibration.workloads.boxes import RATIOS, aligned, anchors, best, moved, offsets, overlaps
from calibration.workloads.images import EXPANSION, stage, trunk
from calibration.workloads.workload import Batch, Size, Workload

STRIDE = 16
"""Pixels between places of the features."""

SIDE = 14
"""Bins along a region, before the head's own stride."""

OBJECT, NOTHING, FOUND = 0.7, 0.3, 0.5
"""Overlaps from which an anchor is an object, below which it is none, and from which a region is an object."""

SUPPRESSED = 0.7
Found = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Sizes:
    """Of a detector: its ResNet, anchors, how many proposals are tried and kept, classes, image and objects in it."""

    width: int
    blocks: tuple[int, int, int, int]
    between: int
    scales: tuple[int, ...]
    tried: int
    kept: int
    classes: int
    image: tuple[int, int]
    objects: int


SIZES: dict[Size, Sizes] = {
    "tiny": Sizes(8, (1, 1, 1, 1), 16, (16, 32), 32, 8, 4, (64, 96), 3),
    "full": Sizes(64, (3, 4, 23, 3), 512, (128, 256, 512), 2000, 128, 20, (608, 800), 8),
}


class Detector(nn.Module):
    """Backbone, proposals, and a head for each proposed region; classes are numbered from 1, 0 is none."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        inner = EXPANSION * sizes.width * 4
        count = len(sizes.scales) * len(RATIOS)
        self.backbone = trunk(sizes.width, sizes.blocks[:3])
        self.between = nn.Sequential(nn.Conv2d(inner, sizes.between, 3, 1, 1), nn.ReLU())
        self.objectness, self.shift = nn.Conv2d(sizes.between, count, 1), nn.Conv2d(sizes.between, 4 * count, 1)
        self.head = stage(inner, sizes.width * 8, sizes.blocks[3], 2)
        self.classes = nn.Linear(2 * inner, sizes.classes + 1)
        self.boxes = nn.Linear(2 * inner, 4 * (sizes.classes + 1))

    def proposed(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return anchors [n, 4], and of features[b, c, h, w] scores [b, n] and offsets [b, n, 4]."""
        x = self.between(features)
        count = len(self.sizes.scales) * len(RATIOS)
        scores = self.objectness(x).permute(0, 2, 3, 1).flatten(1)
        shift = self.shift(x).unflatten(1, (count, 4)).permute(0, 3, 4, 1, 2).flatten(1, 3)
        return anchors(features, STRIDE, self.sizes.scales), scores.float(), shift.float()

    def judged(self, features: Tensor, regions: Tensor) -> Found:
        """Return logits [b, n, classes + 1] and offsets [b, n, classes + 1, 4] of regions[b, n, 4]."""
        x = self.head(aligned(features, regions, STRIDE, SIDE)).mean((2, 3)).unflatten(0, regions.shape[:2])
        return self.classes(x).float(), self.boxes(x).float().unflatten(-1, (-1, 4))


def _loss(model: Detector, batch: Batch) -> Tensor:
    """Return the four losses of the paper added up (equation 1, for both stages)."""
    images, truth, labels = batch[0], batch[1].float(), batch[2]
    features = model.backbone(images)
    at, scores, shift = model.proposed(features)
    sizes = model.sizes
    with torch.no_grad():
        boxes = moved(at, shift, sizes.image)
        regions = best(boxes, scores, sizes.tried, sizes.kept, SUPPRESSED)
        regions = torch.cat([regions, truth], 1)  # an untrained network proposes no object
    return _first(at, scores, shift, truth) + _second(*model.judged(features, regions), regions, truth, labels)


def _matched(boxes: Tensor, truth: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return overlaps [b, n, m], the largest of each box, and the offsets to the object that it is with."""
    shared = overlaps(boxes, truth)
    most, which = shared.max(-1)
    return shared, most, offsets(truth.gather(1, which[:, :, None].expand(-1, -1, 4)), boxes)


def _first(at: Tensor, scores: Tensor, shift: Tensor, truth: Tensor) -> Tensor:
    """Return the loss of the proposals: an object's best anchor is one in any case."""
    shared, most, wanted = _matched(at.expand(len(truth), -1, -1), truth)
    is_object = (most >= OBJECT) | ((shared == shared.amax(1, keepdim=True)) & (shared > 0)).any(-1)
    counts = (is_object | (most < NOTHING)).float()
    entropy = functional.binary_cross_entropy_with_logits(scores, is_object.float(), reduction="none")
    return (entropy * counts).sum() / counts.sum() + _box_loss(shift, wanted, is_object)


def _second(logits: Tensor, shift: Tensor, regions: Tensor, truth: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of the regions' classes and boxes."""
    shared, most, wanted = _matched(regions, truth)
    is_object = most >= FOUND
    classes = torch.where(is_object, labels.gather(1, shared.argmax(-1)), 0)
    own = shift.gather(2, classes[:, :, None, None].expand(-1, -1, 1, 4))[:, :, 0]
    return functional.cross_entropy(logits.flatten(0, 1), classes.flatten()) + _box_loss(own, wanted, is_object)


def _box_loss(shift: Tensor, wanted: Tensor, counts: Tensor) -> Tensor:
    each = functional.smooth_l1_loss(shift, wanted, reduction="none").sum(-1)
    return (each * counts).sum() / counts.sum().clamp(min=1)


def scenes(sizes: Sizes, samples: int, generator: torch.Generator) -> Batch:
    """Return images with noise and rectangles whose brightness is their class, their boxes [b, m, 4] and classes."""
    height, width = sizes.image
    labels = torch.randint(1, sizes.classes + 1, (samples, sizes.objects), generator=generator)
    extent = torch.tensor([width, height]) * (0.2 + 0.3 * torch.rand(*labels.shape, 2, generator=generator))
    low = (torch.tensor([width, height]) - extent) * torch.rand(*labels.shape, 2, generator=generator)
    truth = torch.cat([low, low + extent], -1)
    images = torch.randn(samples, 3, height, width, generator=generator)
    x, y = torch.arange(width)[None, None], torch.arange(height)[None, :, None]
    for box, label in zip(truth.unbind(1), labels.unbind(1), strict=True):
        x1, y1, x2, y2 = (c[:, None, None] for c in box.unbind(-1))
        inside = (x >= x1) & (x < x2) & (y >= y1) & (y < y2)
        images = images + (inside * (label / sizes.classes)[:, None, None])[:, None]
    return images, truth, labels


def _detector(size: Size) -> Detector:
    return Detector(SIZES[size])


def _batch(size: Size, samples: int, generator: torch.Generator) -> Batch:
    return scenes(SIZES[size], samples, generator)


WORKLOADS = (
    Workload(
        name="faster-rcnn",
        domain="object detection",
        paper="arXiv 1506.01497",
        parameters=47_457_494,
        samples={"tiny": 2, "full": 2},
        make=_detector,
        draw=_batch,
        loss=_loss,
    ),
)
