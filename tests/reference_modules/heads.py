"""Attention heads, rotary angles, masks."""

import torch
from torch import Tensor


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(b, s, heads * d) -> (b, heads, s, d)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(b, heads, s, d) -> (b, s, heads * d)."""
    return x.transpose(1, 2).flatten(-2)


def rotate(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Turn pairs of columns (RoFormer, arXiv 2104.09864); x (b, heads, s, d), angles cos and sin (s, d)."""
    first, second = x.chunk(2, dim=-1)
    return x * angles[0] + torch.cat((-second, first), dim=-1) * angles[1]


def rotary(positions: Tensor, dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines (s, dim) of the angles at `positions`."""
    angle = positions[:, None].float() * 10_000.0 ** (-torch.arange(0, dim, 2, device=positions.device).float() / dim)
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def window_mask(seq: int, window: int) -> Tensor:
    """Causal mask of a sliding window (Mistral, arXiv 2310.06825): key j is seen by query i if i - window < j <= i."""
    distance = torch.arange(seq)[:, None] - torch.arange(seq)[None, :]
    return (distance >= 0) & (distance < window)
