"""T5 (arXiv 1910.10683)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.reference_modules.heads import merge_heads, split_heads


class T5Attention(nn.Module):
    """Unscaled attention without biases, plus a learned position bias (heads, queries, keys) given by the caller."""

    def __init__(self, hidden: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads, width = heads, heads * head_dim
        self.q, self.k, self.v = (nn.Linear(hidden, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, hidden, bias=False)

    def forward(self, x: Tensor, memory: Tensor, bias: Tensor | None) -> Tensor:
        q, k, v = split_heads(self.q(x), self.heads), *(split_heads(f(memory), self.heads) for f in (self.k, self.v))
        scores = q @ k.transpose(-1, -2)
        return self.out(merge_heads(F.softmax(scores if bias is None else scores + bias, dim=-1) @ v))


class T5Layer(nn.Module):
    """Self-attention, cross-attention in the decoder, ReLU (gated: GELU, as in v1.1) feed-forward; pre-RMSNorm."""

    def __init__(self, hidden: int, heads: int, head_dim: int, ffn: int, decoder: bool, gated: bool = False) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(hidden) for _ in range(3 if decoder else 2))
        self.attention = T5Attention(hidden, heads, head_dim)
        self.cross = T5Attention(hidden, heads, head_dim) if decoder else None
        self.up, self.down = nn.Linear(hidden, ffn, bias=False), nn.Linear(ffn, hidden, bias=False)
        self.gate = nn.Linear(hidden, ffn, bias=False) if gated else None

    def forward(self, x: Tensor, bias: Tensor, memory: Tensor | None = None) -> Tensor:
        y = self.norms[0](x)
        x = x + self.attention(y, y, bias)
        if self.cross is not None:
            x = x + self.cross(self.norms[1](x), memory, None)
        y = self.norms[-1](x)
        inner = F.relu(self.up(y)) if self.gate is None else F.gelu(self.gate(y)) * self.up(y)
        return x + self.down(inner)


class T5(nn.Module):
    """Encoder and decoder that share the token table (and, if tied, the head). source (b, s), target (b, t)."""

    def __init__(
        self,
        layers: int,
        decoder_layers: int,
        hidden: int,
        heads: int,
        head_dim: int,
        ffn: int,
        vocab: int,
        buckets: int = 32,
        gated: bool = False,
        tied: bool = True,
    ) -> None:
        super().__init__()
        self.tokens, self.buckets = nn.Embedding(vocab, hidden), buckets
        self.encoder = nn.ModuleList(T5Layer(hidden, heads, head_dim, ffn, False, gated) for _ in range(layers))
        self.decoder = nn.ModuleList(T5Layer(hidden, heads, head_dim, ffn, True, gated) for _ in range(decoder_layers))
        self.encoder_bias, self.decoder_bias = nn.Embedding(buckets, heads), nn.Embedding(buckets, heads)
        self.encoder_norm, self.decoder_norm = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.head = nn.Linear(hidden, vocab, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def bias(self, table: nn.Embedding, length: int, causal: bool) -> Tensor:
        """Bias (heads, length, length) by clipped distance, -inf ahead of a causal query."""
        places = torch.arange(length, device=table.weight.device)
        distance = places[:, None] - places[None, :]
        bias = table(distance.abs().clamp(max=self.buckets - 1)).permute(2, 0, 1)
        return bias.masked_fill(distance < 0, float("-inf")) if causal else bias

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, bias = self.tokens(source), self.bias(self.encoder_bias, source.shape[1], False)
        for layer in self.encoder:
            memory = layer(memory, bias)
        memory = self.encoder_norm(memory)
        x, bias = self.tokens(target), self.bias(self.decoder_bias, target.shape[1], True)
        for layer in self.decoder:
            x = layer(x, bias, memory)
        return self.head(self.decoder_norm(x))
