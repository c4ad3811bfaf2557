"""GPT-2 and GPT-3 (arXiv 2005.14165)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.reference_modules.heads import merge_heads, split_heads


class GPTBlock(nn.Module):
    """Pre-LN block; eager attention keeps the scores as Megatron-LM does, flash calls the fused kernel.

    The causal mask of eager attention, which a fused softmax applies for nothing, is left out. Its activations are
    (s, b, h), the layout of the closed form 34 s b h + 5 a s^2 b.
    """

    def __init__(self, hidden: int, heads: int, eager: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.eager, self.p = heads, eager, dropout
        self.ln1, self.ln2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def attend(self, x: Tensor) -> Tensor:
        if not self.eager:
            q, k, v = (split_heads(t, self.heads) for t in self.qkv(x).chunk(3, dim=-1))
            return merge_heads(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        qkv = self.qkv(x).unflatten(-1, (self.heads, -1)).permute(1, 2, 0, 3)
        q, k, v = qkv.chunk(3, dim=-1)  # (b, heads, s, d)
        scores = F.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, dim=-1)
        context = F.dropout(scores, self.p, self.training) @ v
        return context.permute(2, 0, 1, 3).flatten(-2)

    def forward(self, x: Tensor) -> Tensor:
        x = x + F.dropout(self.out(self.attend(self.ln1(x))), self.p, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(self.ln2(x)))), self.p, self.training)


class GPT(nn.Module):
    """Token and learned position tables, blocks, final norm, head tied to the token table. tokens (b, s)."""

    def __init__(
        self,
        layers: int,
        hidden: int,
        heads: int,
        vocab: int,
        seq: int,
        eager: bool = False,
        dropout: float = 0.0,
        tied: bool = True,
    ) -> None:
        super().__init__()
        self.eager, self.p = eager, dropout
        self.tokens, self.positions = nn.Embedding(vocab, hidden), nn.Embedding(seq, hidden)
        self.blocks = nn.ModuleList(GPTBlock(hidden, heads, eager, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, vocab, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        x = F.dropout(x.transpose(0, 1).contiguous() if self.eager else x, self.p, self.training)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
