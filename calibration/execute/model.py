"""The small network that is really trained: a GPT as `sim.specs.Model` describes it, parameter for parameter."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, linear, scaled_dot_product_attention, softmax

from sim.specs import InputError, Model

NEEDED: dict[str, object] = {
    "family": "decoder",
    "norm": "layernorm",
    "norm_bias": True,
    "embedding_norm": False,
    "block_norms": 2,
    "parallel_block": False,
    "gated_mlp": False,
    "dropout": 0.0,
    "tied_embeddings": True,
    "bias": True,
    "qkv_bias": True,
    "mlp_bias": True,
    "head_bias": False,
    "qk_norm": False,
    "sinks": False,
    "positions": "learned",
    "type_vocab": 0,
    "window": 0,
    "experts": 0,
    "kv_lora_rank": 0,
    "mtp_layers": 0,
    "table": None,
}
"""What a model must be to be trained for real (GPT-2's block)."""

MOST_PARAMETERS = 500_000_000
"""A small network: states of 16 bytes a parameter stay below 8 GB a process."""


def check_model(model: Model) -> None:
    """Return if `SmallGpt` is that model.

    Raises:
        InputError: it has something else in it, or is too large to be trained beside other work.
    """
    for name, allowed in NEEDED.items():
        if getattr(model, name) != allowed:
            text = f"{allowed!r} in what is executed (GPT-2's block)"
            raise InputError(f"model.{name}", getattr(model, name), text)
    if set(model.pattern) != {"T"}:
        raise InputError("model.pattern", model.pattern, "T for every layer in what is executed")
    if model.kv_heads != model.heads or model.query_width != model.hidden:
        raise InputError("model.heads", model.heads, "as many key-value heads, together as wide as hidden")
    if model.parameters > MOST_PARAMETERS:
        raise InputError("model", f"{model.parameters} parameters", f"at most {MOST_PARAMETERS} in what is executed")


class GptBlock(nn.Module):
    """Pre-norm attention and MLP on (batch, seq, hidden); eager attention keeps the scores."""

    mask: Tensor

    def __init__(self, model: Model) -> None:
        super().__init__()
        hidden = model.hidden
        self.heads, self.eager = model.heads, model.attention == "eager"
        self.ln1, self.ln2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, model.ffn), nn.Linear(model.ffn, hidden)
        if self.eager:
            mask = torch.full((model.seq, model.seq), float("-inf")).triu(1)
            self.register_buffer("mask", mask, persistent=False)

    def _attend(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        if self.eager:
            scores = softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + self.mask, dim=-1)
            mixed = scores @ v
        else:
            mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        return mixed.transpose(1, 2).flatten(-2)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, of the shape of `x`."""
        x = x + self.out(self._attend(self.ln1(x)))
        out: Tensor = x + self.down(gelu(self.up(self.ln2(x))))
        return out


class SmallGpt(nn.Module):
    """Token and learned position tables, blocks, final norm, head tied to the token table.

    The tables are the first parameters, the blocks follow.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.tokens = nn.Embedding(model.vocab, model.hidden)
        self.positions = nn.Embedding(model.max_positions, model.hidden)
        self.blocks = nn.ModuleList(GptBlock(model) for _ in range(model.layers))
        self.norm = nn.LayerNorm(model.hidden)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the mean cross-entropy of predicting `tokens` (batch, seq + 1), from the second one on."""
        given, wanted = tokens[:, :-1], tokens[:, 1:]
        x = self.tokens(given) + self.positions.weight[: given.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = linear(self.norm(x), self.tokens.weight)
        return cross_entropy(logits.flatten(0, 1), wanted.flatten())
