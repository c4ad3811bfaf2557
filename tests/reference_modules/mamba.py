"""Mamba-2 (arXiv 2405.21060)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.reference_modules.heads import merge_heads, split_heads


class Mamba2Mixer(nn.Module):
    """Projections, causal depthwise convolution, state-space recurrence in its quadratic (dual) form, gated norm.

    Parameters and projections as in state-spaces/mamba `Mamba2`; one chunk spans the sequence (section 6 of the
    paper with chunk length = s), so the recurrence is two batched products over the scores C B^T.
    """

    def __init__(
        self, hidden: int, state: int = 128, head_dim: int = 64, expand: int = 2, kernel: int = 4, groups: int = 1
    ) -> None:
        super().__init__()
        self.inner, self.state, self.groups = expand * hidden, state, groups
        self.heads = self.inner // head_dim
        channels = self.inner + 2 * groups * state
        self.in_proj = nn.Linear(hidden, 2 * self.inner + 2 * groups * state + self.heads, bias=False)
        self.conv = nn.Conv1d(channels, channels, kernel, groups=channels, padding=kernel - 1)
        self.dt_bias, self.A_log, self.D = (nn.Parameter(torch.ones(self.heads)) for _ in range(3))
        self.norm, self.out_proj = nn.RMSNorm(self.inner), nn.Linear(self.inner, hidden, bias=False)

    def forward(self, u: Tensor) -> Tensor:
        seq, g, n = u.shape[1], self.groups, self.state
        z, xbc, dt = self.in_proj(u).split((self.inner, self.inner + 2 * g * n, self.heads), dim=-1)
        xbc = F.silu(self.conv(xbc.transpose(1, 2))[..., :seq].transpose(1, 2))
        x, b, c = xbc.split((self.inner, g * n, g * n), dim=-1)
        x, b, c = split_heads(x, self.heads), split_heads(b, g), split_heads(c, g)
        dt = F.softplus(dt + self.dt_bias).transpose(1, 2)  # (b, heads, s)
        decay = (dt * -self.A_log.exp()[:, None]).cumsum(-1)
        steps = (decay[..., :, None] - decay[..., None, :]).tril()
        scores = (c @ b.transpose(-1, -2)).repeat_interleave(self.heads // g, dim=1)
        weights = (scores * steps.exp() * dt[..., None, :]).tril()
        y = merge_heads(weights @ x + self.D[:, None, None] * x)
        return self.out_proj(self.norm(y * F.silu(z)))


class Mamba2(nn.Module):
    """Token table, pre-norm residual mixers, final norm, tied head. tokens (b, s)."""

    def __init__(self, layers: int, hidden: int, vocab: int, state: int = 128, head_dim: int = 64) -> None:
        super().__init__()
        self.tokens, self.norm = nn.Embedding(vocab, hidden), nn.RMSNorm(hidden)
        self.mixers = nn.ModuleList(Mamba2Layer(hidden, state, head_dim) for _ in range(layers))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for mixer in self.mixers:
            x = mixer(x)
        return F.linear(self.norm(x), self.tokens.weight)


class Mamba2Layer(nn.Module):
    """x + mixer(norm(x))."""

    def __init__(self, hidden: int, state: int, head_dim: int) -> None:
        super().__init__()
        self.norm, self.mixer = nn.RMSNorm(hidden), Mamba2Mixer(hidden, state, head_dim)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mixer(self.norm(x))
