"""Llama (arXiv 2302.13971), Mistral, Qwen3, Mixtral, DeepSeek."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.reference_modules.heads import merge_heads, rotary, rotate, split_heads, window_mask


class LlamaAttention(nn.Module):
    """Grouped queries (arXiv 2305.13245), rotary positions, optional norms of queries and keys, sliding window.

    The norms are of every head, or of all heads at once ("whole": OLMo 2, arXiv 2501.00656).
    """

    def __init__(
        self,
        hidden: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        qk_norm: bool | str = False,
        window: int | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.window = heads, kv_heads, window
        self.q, self.out = nn.Linear(hidden, heads * head_dim, bias), nn.Linear(heads * head_dim, hidden, bias=False)
        self.k, self.v = (nn.Linear(hidden, kv_heads * head_dim, bias) for _ in range(2))
        self.whole = qk_norm == "whole"
        of_queries, of_keys = (heads, kv_heads) if self.whole else (1, 1)
        self.q_norm = nn.RMSNorm(of_queries * head_dim) if qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(of_keys * head_dim) if qk_norm else nn.Identity()

    def forward(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        q = rotate(self._normed(self.q_norm, self.q(x), self.heads), angles)
        k = rotate(self._normed(self.k_norm, self.k(x), self.kv_heads), angles)
        v = split_heads(self.v(x), self.kv_heads)
        mask = window_mask(x.shape[1], self.window).to(x.device) if self.window else None
        context = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, enable_gqa=True)
        return self.out(merge_heads(context))

    def _normed(self, norm: nn.Module, x: Tensor, heads: int) -> Tensor:
        return split_heads(norm(x), heads) if self.whole else norm(split_heads(x, heads))


class LatentAttention(nn.Module):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1 and appendix C).

    Queries and keys are `nope` columns from a low-rank latent and `rope` columns that carry the position; the
    rotary key is one for all heads. q_lora = None: queries straight from the hidden state (V2-Lite).
    """

    def __init__(
        self, hidden: int, heads: int, q_lora: int | None, kv_lora: int, nope: int, rope: int, value_dim: int
    ) -> None:
        super().__init__()
        self.heads, self.nope, self.rope, self.kv_lora = heads, nope, rope, kv_lora
        width = heads * (nope + rope)
        if q_lora is None:
            self.q = nn.Linear(hidden, width, bias=False)
        else:
            down, up = nn.Linear(hidden, q_lora, bias=False), nn.Linear(q_lora, width, bias=False)
            self.q = nn.Sequential(down, nn.RMSNorm(q_lora), up)
        self.kv_down, self.kv_norm = nn.Linear(hidden, kv_lora + rope, bias=False), nn.RMSNorm(kv_lora)
        self.kv_up = nn.Linear(kv_lora, heads * (nope + value_dim), bias=False)
        self.out = nn.Linear(heads * value_dim, hidden, bias=False)

    def forward(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        q = split_heads(self.q(x), self.heads)
        q = torch.cat((q[..., : self.nope], rotate(q[..., self.nope :], angles)), dim=-1)
        latent, shared = self.kv_down(x).split((self.kv_lora, self.rope), dim=-1)
        kv = split_heads(self.kv_up(self.kv_norm(latent)), self.heads)
        turned = rotate(shared[:, None], angles).expand(-1, self.heads, -1, -1)
        k = torch.cat((kv[..., : self.nope], turned), dim=-1)
        return self.out(merge_heads(F.scaled_dot_product_attention(q, k, kv[..., self.nope :], is_causal=True)))


class SwiGLU(nn.Module):
    """down(silu(gate x) * up x) (arXiv 2002.05202)."""

    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(hidden, ffn, bias=False), nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class MoE(nn.Module):
    """Router, `top` of `experts` SwiGLU experts per token with equal loads (capacity factor 1), shared expert.

    Tokens are sorted by expert and cut into equal shares, as a balanced router would send them, so shapes do not
    depend on data; tokens * top must be divisible by `experts`.
    """

    def __init__(self, hidden: int, ffn: int, experts: int, top: int, shared_ffn: int = 0) -> None:
        super().__init__()
        self.top, self.experts = top, experts
        self.router = nn.Linear(hidden, experts, bias=False)
        self.gate, self.up = (nn.Parameter(torch.randn(experts, hidden, ffn) * hidden**-0.5) for _ in range(2))
        self.down = nn.Parameter(torch.randn(experts, ffn, hidden) * ffn**-0.5)
        self.shared = SwiGLU(hidden, shared_ffn) if shared_ffn else None

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, -2)
        weights, chosen = self.router(flat).softmax(-1).topk(self.top)
        order = chosen.flatten().argsort()
        token = order // self.top
        sent = flat[token].unflatten(0, (self.experts, -1))
        made = torch.bmm(F.silu(torch.bmm(sent, self.gate)) * torch.bmm(sent, self.up), self.down).flatten(0, 1)
        out = torch.zeros_like(flat).index_add(0, token, made * weights.flatten()[order, None])
        out = out.unflatten(0, x.shape[:-1])
        return out + self.shared(x) if self.shared else out


class LlamaBlock(nn.Module):
    """Pre-RMSNorm block of any attention and feed-forward network."""

    def __init__(self, hidden: int, attention: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.attention, self.mlp = attention, mlp

    def forward(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.attention(self.norm1(x), angles)
        return x + self.mlp(self.norm2(x))


class Llama(nn.Module):
    """Token table, blocks, final norm, untied head. tokens (b, s).

    `latent`: arguments of LatentAttention after `heads`; `moe`: of MoE after `hidden`, for all but the first
    `dense_layers`; `window` and `qk_norm` as in LlamaAttention.
    """

    def __init__(
        self,
        layers: int,
        hidden: int,
        heads: int,
        kv_heads: int,
        ffn: int,
        vocab: int,
        head_dim: int | None = None,
        qk_norm: bool | str = False,
        window: int | None = None,
        latent: dict[str, int | None] | None = None,
        moe: dict[str, int] | None = None,
        dense_layers: int = 0,
    ) -> None:
        super().__init__()
        head_dim = head_dim or hidden // heads
        self.rotary_dim = latent["rope"] if latent else head_dim
        self.tokens, self.norm = nn.Embedding(vocab, hidden), nn.RMSNorm(hidden)
        self.blocks = nn.ModuleList()
        for n in range(layers):
            if latent:
                attention = LatentAttention(hidden, heads, **latent)
            else:
                attention = LlamaAttention(hidden, heads, kv_heads, head_dim, qk_norm, window)
            mlp = MoE(hidden, **moe) if moe and n >= dense_layers else SwiGLU(hidden, ffn)
            self.blocks.append(LlamaBlock(hidden, attention, mlp))
        self.head = nn.Linear(hidden, vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        angles = rotary(torch.arange(tokens.shape[1], device=tokens.device), self.rotary_dim, x.dtype)
        for block in self.blocks:
            x = block(x, angles)
        return self.head(self.norm(x))
