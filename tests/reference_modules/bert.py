"""BERT (arXiv 1810.04805)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.reference_modules.heads import merge_heads, split_heads


class BertLayer(nn.Module):
    """Post-LN encoder layer."""

    def __init__(self, hidden: int, heads: int, ffn: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.p = heads, dropout
        self.q, self.k, self.v, self.out = (nn.Linear(hidden, hidden) for _ in range(4))
        self.up, self.down = nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)
        self.norm1, self.norm2 = nn.LayerNorm(hidden, eps=1e-12), nn.LayerNorm(hidden, eps=1e-12)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split_heads(layer(x), self.heads) for layer in (self.q, self.k, self.v))
        y = self.out(merge_heads(F.scaled_dot_product_attention(q, k, v)))
        x = self.norm1(x + F.dropout(y, self.p, self.training))
        return self.norm2(x + F.dropout(self.down(F.gelu(self.up(x))), self.p, self.training))


class BertModel(nn.Module):
    """Three tables and a norm, layers, masked-token head tied to the token table (with its bias). tokens (b, s)."""

    def __init__(
        self, layers: int, hidden: int, heads: int, ffn: int, vocab: int, seq: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, hidden), nn.Embedding(seq, hidden)
        self.segments, self.norm, self.p = nn.Embedding(2, hidden), nn.LayerNorm(hidden, eps=1e-12), dropout
        self.layers = nn.ModuleList(BertLayer(hidden, heads, ffn, dropout) for _ in range(layers))
        self.transform, self.transform_norm = nn.Linear(hidden, hidden), nn.LayerNorm(hidden, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(vocab))

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places) + self.segments(torch.zeros_like(tokens))
        x = F.dropout(self.norm(x), self.p, self.training)
        for layer in self.layers:
            x = layer(x)
        return F.linear(self.transform_norm(F.gelu(self.transform(x))), self.tokens.weight, self.bias)
