"""Networks in plain torch, readable top to bottom: what closed forms and the tracer are checked against.

Each takes its dimensions and nothing else; weights are whatever torch makes of them (trace under a fake or meta device
for large ones). `x` is (batch, seq, hidden) unless a docstring says otherwise.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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


# GPT-2 and GPT-3 (arXiv 2005.14165)


class GPTBlock(nn.Module):
    """Pre-LN block; eager attention computes the scores as Megatron-LM does, flash calls the fused kernel.

    Activations are (s, b, h) with eager attention, the layout of the closed form 34 s b h + 5 a s^2 b.
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


# Llama (arXiv 2302.13971), Mistral, Qwen3, Mixtral, DeepSeek


class LlamaAttention(nn.Module):
    """Grouped queries (arXiv 2305.13245), rotary positions, optional norms of queries and keys, sliding window."""

    def __init__(
        self,
        hidden: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        qk_norm: bool = False,
        window: int | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.window = heads, kv_heads, window
        self.q, self.out = nn.Linear(hidden, heads * head_dim, bias), nn.Linear(heads * head_dim, hidden, bias=False)
        self.k, self.v = (nn.Linear(hidden, kv_heads * head_dim, bias) for _ in range(2))
        self.q_norm = nn.RMSNorm(head_dim) if qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(head_dim) if qk_norm else nn.Identity()

    def forward(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        q = rotate(self.q_norm(split_heads(self.q(x), self.heads)), angles)
        k = rotate(self.k_norm(split_heads(self.k(x), self.kv_heads)), angles)
        v = split_heads(self.v(x), self.kv_heads)
        mask = window_mask(x.shape[1], self.window).to(x.device) if self.window else None
        context = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, enable_gqa=True)
        return self.out(merge_heads(context))


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
        qk_norm: bool = False,
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


# BERT (arXiv 1810.04805)


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


# T5 (arXiv 1910.10683)


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


# Vision: ViT (arXiv 2010.11929), ResNet (arXiv 1512.03385)


class ViT(nn.Module):
    """Patch convolution, class token, pre-LN blocks without mask, classifier. images (b, 3, size, size)."""

    def __init__(
        self, layers: int, hidden: int, heads: int, ffn: int, size: int = 224, patch: int = 16, classes: int = 1000
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, hidden, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, hidden))
        self.positions = nn.Parameter(torch.zeros(1, (size // patch) ** 2 + 1, hidden))
        self.blocks = nn.ModuleList(ViTBlock(hidden, heads, ffn) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(hidden, eps=1e-6), nn.Linear(hidden, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), dim=1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class ViTBlock(nn.Module):
    """Pre-LN encoder block."""

    def __init__(self, hidden: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(hidden, eps=1e-6), nn.LayerNorm(hidden, eps=1e-6)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split_heads(t, self.heads) for t in self.qkv(self.ln1(x)).chunk(3, dim=-1))
        x = x + self.out(merge_heads(F.scaled_dot_product_attention(q, k, v)))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions with batch norms and a shortcut. x (b, channels, height, width)."""

    def __init__(self, channels: int, width: int, out: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, groups=groups, bias=False)
        self.norm2, self.norm3 = nn.BatchNorm2d(width), nn.BatchNorm2d(out)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        same = channels == out and stride == 1
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.norm3(self.conv3(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """Stem, `stages` of bottlenecks (ResNet-50: 3, 4, 6, 3), classifier. images (b, 3, size, size)."""

    def __init__(self, stages: tuple[int, ...] = (3, 4, 6, 3), width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.blocks = nn.Sequential()
        channels = width
        for n, count in enumerate(stages):
            inner = width * 2**n
            for i in range(count):
                self.blocks.append(Bottleneck(channels, inner, 4 * inner, 2 if n and not i else 1))
                channels = 4 * inner
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.stem(images))), 3, 2, 1)
        return self.head(self.blocks(x).mean((2, 3)))


# Mamba-2 (arXiv 2405.21060)


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
