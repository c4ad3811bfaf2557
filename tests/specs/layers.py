"""Plain torch layers of every family, for counting their FLOP: weights are made where they are used."""

import torch
from torch import Tensor
from torch.nn import functional

from sim.specs.blocks import GATES, Block
from sim.specs.model import Model


def linear(x: Tensor, columns: int) -> Tensor:
    return functional.linear(x, torch.empty(columns, x.shape[-1]))


def split(x: Tensor, heads: int) -> Tensor:
    """Return [heads, tokens, dim] of [tokens, heads x dim]."""
    return x.unflatten(-1, (heads, -1)).transpose(0, 1)


def core(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return the context [tokens, heads x dim] of queries, keys and values [heads, tokens, dim]; all keys count."""
    k, v = (t.repeat_interleave(q.shape[0] // t.shape[0], 0) for t in (k, v))
    return (torch.softmax(q @ k.mT, -1) @ v).transpose(0, 1).flatten(1)


def attention(m: Model, x: Tensor, memory: Tensor) -> Tensor:
    q = split(linear(x, m.heads * m.head_dim), m.heads)
    k, v = (split(linear(memory, m.kv_heads * m.head_dim), m.kv_heads) for _ in "kv")
    if m.qk_norm:
        q, k = (functional.rms_norm(t, t.shape[-1:]) for t in (q, k))
    return linear(core(q, k, v), m.hidden)


def latent_attention(m: Model, x: Tensor) -> Tensor:
    """Multi-head latent attention, DeepSeek-V2 (arXiv 2405.04434), equations 9 to 19, nothing absorbed."""
    low = functional.rms_norm(linear(x, m.q_lora_rank), (m.q_lora_rank,)) if m.q_lora_rank else x
    q = split(linear(low, m.heads * (m.head_dim + m.rope_head_dim)), m.heads)
    latent, turned = linear(x, m.kv_lora_rank + m.rope_head_dim).split([m.kv_lora_rank, m.rope_head_dim], -1)
    kv = split(linear(latent, m.heads * (m.head_dim + m.v_head_dim)), m.heads)
    k, v = kv.split([m.head_dim, m.v_head_dim], -1)
    k = torch.cat([k, turned.expand(m.heads, -1, -1)], -1)
    return linear(core(q, k, v), m.hidden)


def mamba(m: Model, x: Tensor) -> Tensor:
    """Mamba-2 in its dual form (arXiv 2405.21060, section 6, listing 1), chunk by chunk."""
    inner, states, tokens, chunk = m.ssm_width, m.ssm_groups * m.ssm_state, x.shape[0], m.ssm_chunk
    z, mixed, step = linear(x, 2 * inner + 2 * states + m.ssm_heads).split([inner, inner + 2 * states, m.ssm_heads], -1)
    kernel = torch.empty(mixed.shape[1], 1, m.ssm_conv)
    mixed = functional.conv1d(functional.pad(mixed.T, (m.ssm_conv - 1, 0)), kernel, groups=mixed.shape[1]).T
    values, b, c = mixed.split([inner, states, states], -1)
    per_head = m.ssm_heads // m.ssm_groups

    def chunked(t: Tensor, heads: int) -> Tensor:
        return split(t, heads).unflatten(1, (tokens // chunk, chunk))

    v, b, c = chunked(values, m.ssm_heads), chunked(b, m.ssm_groups), chunked(c, m.ssm_groups)
    decay = split(step.sigmoid(), m.ssm_heads).unflatten(1, (tokens // chunk, chunk)).cumprod(2)
    scores = (c @ b.mT).repeat_interleave(per_head, 0) * (decay / decay.mT)
    b, c = (t.repeat_interleave(per_head, 0) for t in (b, c))
    state = (b.mT @ v).cumsum(1)  # what a chunk leaves behind
    out = scores @ v + (c * decay) @ state
    return linear(out.flatten(1, 2).transpose(0, 1).flatten(1) * functional.silu(z), m.hidden)


def mlp(x: Tensor, width: int, gated: bool) -> Tensor:
    up = functional.silu(linear(x, width))
    return linear(up * linear(x, width) if gated else up, x.shape[-1])


def experts(m: Model, x: Tensor) -> Tensor:
    """Routed experts on equal shares of the tokens, between two projections where they are latent; shared ones."""
    chosen = linear(x, m.experts).softmax(-1).topk(m.experts_per_token, -1).indices.flatten().argsort()
    low = linear(x, m.moe_latent) if m.moe_latent else x
    rows = low[chosen // m.experts_per_token].unflatten(0, (m.experts, -1))
    width = low.shape[-1]
    up = functional.silu(rows @ torch.empty(m.experts, width, m.moe_ffn))
    if m.gated_mlp:
        up = up * (rows @ torch.empty(m.experts, width, m.moe_ffn))
    down = (up @ torch.empty(m.experts, m.moe_ffn, width)).flatten(0, 1)
    out = torch.zeros_like(low).index_add(0, chosen // m.experts_per_token, down)
    out = linear(out, m.hidden) if m.moe_latent else out
    if not m.shared_ffn:
        return out
    shared = mlp(x, m.shared_ffn, m.gated_mlp)
    return out + (shared * linear(x, 1).sigmoid() if m.shared_gate else shared)


def recurrent(x: Tensor, gates: int) -> Tensor:
    """Return states [tokens, hidden] by the products of an LSTM (4 gates) or a GRU (3), step by step."""
    state, out = x[:1], []
    for step in x.split(1):
        sums = linear(step, gates * x.shape[1]) + linear(state, gates * x.shape[1])
        state = sums[:, : x.shape[1]].tanh()
        out.append(state)
    return torch.cat(out)


def layer(block: Block, x: Tensor, memory: Tensor) -> Tensor:
    """Return a layer's output [tokens, hidden]; `memory` is the encoder's output."""
    m = block.model
    if block.mixer in GATES:
        return recurrent(x, GATES[block.mixer])
    if block.letter == "P":
        x = linear(torch.cat([x, x], -1), m.hidden)
    if block.mixer == "mamba":
        x = x + mamba(m, x)
    elif block.mixer != "none":
        x = x + (latent_attention(m, x) if block.mixer == "mla" else attention(m, x, x))
    if block.cross:
        x = x + attention(m, x, memory)
    if block.mlp == "none":
        return x
    return x + (mlp(x, m.ffn, m.gated_mlp) if block.mlp == "dense" else experts(m, x))
