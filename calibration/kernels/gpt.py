"""A small GPT (GPT-2, Radford et al. 2019; arXiv 2005.14165) in plain torch, of the dimensions of a `sim.Model`.

It has exactly the parameters that the simulator counts: pre-LayerNorm with bias, learned positions, biases in all
linear layers, GELU, tied or own output table.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from sim.specs.fields import InputError
from sim.specs.model import Model

DEVIATION = 0.02
"""Standard deviation of the initial weights (GPT-2)."""


class SmallGptBlock(nn.Module):
    """One layer on x[batch, seq, hidden]; eager attention stores the scores, flash calls the fused kernel."""

    mask: Tensor

    def __init__(self, model: Model) -> None:
        super().__init__()
        hidden, bias = model.hidden, model.norm_bias
        self.heads, self.eager = model.heads, model.attention == "eager"
        self.norm1, self.norm2 = nn.LayerNorm(hidden, bias=bias), nn.LayerNorm(hidden, bias=bias)
        mask = torch.full((model.max_positions, model.max_positions) if self.eager else (0, 0), -torch.inf)
        self.register_buffer("mask", mask.triu(1), persistent=False)
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=model.qkv_bias)
        self.out = nn.Linear(hidden, hidden, bias=model.bias)
        self.up = nn.Linear(hidden, model.ffn, bias=model.mlp_bias)
        self.gelu, self.down = nn.GELU(), nn.Linear(model.ffn, hidden, bias=model.mlp_bias)

    def attend(self, x: Tensor) -> Tensor:
        """Return causal attention over x[batch, seq, hidden]."""
        made = self.qkv(x)  # (head, q or k or v, column), so that a part of the rows is a part of the heads
        batch, seq, _ = made.shape
        # Taken apart before they are turned: in backward the three gradients then need one copy only.
        q, k, v = (t.transpose(1, 2) for t in made.view(batch, seq, self.heads, 3, -1).unbind(3))
        if not self.eager:
            context = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            q, k, v = (t.flatten(0, 1) for t in (q, k, v))
            # Scale and mask inside the product, as fused kernels do.
            scores = torch.baddbmm(self.mask[:seq, :seq], q, k.mT, alpha=q.shape[-1] ** -0.5)
            context = (torch.softmax(scores, -1) @ v).unflatten(0, (batch, self.heads))
        return context.transpose(1, 2).flatten(2)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output, of the shape of `x`."""
        x = x + self.out(self.attend(self.norm1(x)))
        out: Tensor = x + self.down(self.gelu(self.up(self.norm2(x))))
        return out


class SmallGpt(nn.Module):
    """The whole model: tokens[batch, seq] to logits[batch, seq, vocab].

    Weights are normal numbers from `seed`, on torch's default device.

    Raises:
        InputError: `model` is not a dense GPT that this module can be.
    """

    def __init__(self, model: Model, seed: int = 0) -> None:
        super().__init__()
        _check(model)
        self.model = model
        self.tokens = nn.Embedding(model.vocab, model.hidden)
        self.positions = nn.Embedding(model.max_positions, model.hidden)
        self.blocks = nn.ModuleList(SmallGptBlock(model) for _ in range(model.layers))
        self.norm = nn.LayerNorm(model.hidden, bias=model.norm_bias)
        self.head = nn.Linear(model.hidden, model.vocab, bias=model.head_bias)
        if model.tied_embeddings:
            self.head.weight = self.tokens.weight
        generator = torch.Generator(self.tokens.weight.device).manual_seed(seed)
        with torch.no_grad():
            for name, weight in self.named_parameters():
                if weight.dim() > 1:
                    weight.normal_(0.0, DEVIATION, generator=generator)
                elif name.endswith("bias"):
                    weight.zero_()

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits[batch, seq, vocab]."""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean fp32 cross-entropy of targets[batch, seq]."""
        return functional.cross_entropy(self(tokens).float().flatten(0, 1), targets.flatten())


def _check(model: Model) -> None:
    """Refuse what the module does not do, naming the field."""
    for name, only in (
        ("norm", "layernorm"),
        ("positions", "learned"),
        ("gated_mlp", False),
        ("parallel_block", False),
        ("qk_norm", False),
        ("embedding_norm", False),
        ("kv_heads", model.heads),
        ("head_dim", model.hidden // model.heads),
        ("dropout", 0.0),
        ("block_norms", 2),
        ("pattern", "T" * model.layers),
        ("mtp_layers", 0),
        ("adapter_rank", 0),
        ("type_vocab", 0),
    ):
        if getattr(model, name) != only:
            raise InputError(f"model.{name}", getattr(model, name), f"{only}: small GPTs only")
