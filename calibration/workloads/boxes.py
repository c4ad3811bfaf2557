"""Boxes of a detector: anchors, overlaps, offsets, and features read inside a box. Boxes are (x1, y1, x2, y2)."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

RATIOS = (0.5, 1.0, 2.0)
"""Heights of anchors over their widths."""

LARGEST_LOG = 4.0
"""Sizes change by no more than this log, so that an untrained offset is a number."""


def anchors(features: Tensor, stride: int, scales: Sequence[int]) -> Tensor:
    """Return boxes [h w a, 4] about every place of features[..., h, w]: all scales in all of `RATIOS`."""
    h, w = features.shape[-2:]
    device = features.device
    y, x = torch.arange(h, device=device), torch.arange(w, device=device)
    centre = (torch.stack(torch.meshgrid(x, y, indexing="xy"), -1) + 0.5) * stride
    half = torch.tensor([(s / r**0.5 / 2, s * r**0.5 / 2) for s in scales for r in RATIOS], device=device)
    return torch.cat([centre[:, :, None] - half, centre[:, :, None] + half], -1).flatten(0, 2)


def overlaps(a: Tensor, b: Tensor) -> Tensor:
    """Return intersection over union [..., n, m] of a[..., n, 4] and b[..., m, 4]."""
    low = torch.maximum(a[..., :, None, :2], b[..., None, :, :2])
    high = torch.minimum(a[..., :, None, 2:], b[..., None, :, 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    return shared / (_area(a)[..., :, None] + _area(b)[..., None, :] - shared)


def _area(boxes: Tensor) -> Tensor:
    return (boxes[..., 2:] - boxes[..., :2]).prod(-1)


def offsets(boxes: Tensor, near: Tensor) -> Tensor:
    """Return what moves the boxes `near` to `boxes`: shifts by sizes and logs of sizes (arXiv 1506.01497, eq. 2)."""
    size, other = boxes[..., 2:] - boxes[..., :2], near[..., 2:] - near[..., :2]
    shift = (boxes[..., 2:] + boxes[..., :2] - near[..., 2:] - near[..., :2]) / 2 / other
    return torch.cat([shift, (size / other).log()], -1)


def moved(near: Tensor, by: Tensor, image: tuple[int, int]) -> Tensor:
    """Return the boxes `near` moved by `offsets`, inside an image (height, width) and a pixel large at least."""
    size = near[..., 2:] - near[..., :2]
    centre = (near[..., 2:] + near[..., :2]) / 2 + by[..., :2] * size
    half = size * by[..., 2:].clamp(max=LARGEST_LOG).exp() / 2
    y, x = image
    x1, y1 = (c.clamp(0, most - 1) for c, most in zip((centre - half).unbind(-1), (x, y), strict=True))
    x2, y2 = (c.clamp(0, most) for c, most in zip((centre + half).unbind(-1), (x, y), strict=True))
    return torch.stack([x1, y1, torch.maximum(x2, x1 + 1), torch.maximum(y2, y1 + 1)], -1)


def best(boxes: Tensor, scores: Tensor, tried: int, kept: int, most: float) -> Tensor:
    """Return the `kept` best [b, kept, 4] of boxes[b, n, 4] by scores[b, n].

    Of the `tried` best, those that overlap a better one by more than `most` come last. A box that is itself
    suppressed suppresses others here (as in arXiv 1904.02689, section 4): shapes then do not depend on data.
    """
    scores, order = scores.topk(tried, 1)
    chosen = boxes.gather(1, order[:, :, None].expand(-1, -1, 4))
    nearest = overlaps(chosen, chosen).tril(-1).amax(-1)
    order = torch.where(nearest > most, scores - scores.amax() + scores.amin() - 1, scores).topk(kept, 1).indices
    return chosen.gather(1, order[:, :, None].expand(-1, -1, 4))


def aligned(features: Tensor, boxes: Tensor, stride: int, side: int) -> Tensor:
    """Return features[b, c, h, w] inside boxes[b, n, 4] of the image as [b n, c, side, side].

    One bilinear sample in the middle of each bin, nothing rounded (RoIAlign, arXiv 1703.06870, section 3).
    """
    h, w = features.shape[-2:]
    bins = (torch.arange(side, device=boxes.device, dtype=boxes.dtype) + 0.5) / side
    low, size = boxes[..., :2], boxes[..., 2:] - boxes[..., :2]
    x, y = (low[..., i, None] + size[..., i, None] * bins for i in (0, 1))
    x, y = 2 * x / (stride * w) - 1, 2 * y / (stride * h) - 1
    shape = *boxes.shape[:2], side, side
    grid = torch.stack([x[:, :, None].expand(shape), y[:, :, :, None].expand(shape)], -1)
    found = functional.grid_sample(features, grid.flatten(1, 2).to(features.dtype), align_corners=False)
    return found.reshape(*found.shape[:2], boxes.shape[1], side, side).transpose(1, 2).flatten(0, 1)
