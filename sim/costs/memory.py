"""Bytes of one rank: states, saved activations, temporaries (tensor level, exact for 16-bit activations).

Saved activations after Korthikanti et al. 2022 (arXiv 2205.05198), section 4: 34 s b h + 5 a s^2 b per layer with
eager attention, 34 s b h + 4 a s b with flash attention (fp32 logsumexp), plus the fp32 statistics of the norms.
Model states after ZeRO (arXiv 1910.02054), section 3.
"""

from dataclasses import dataclass

from sim.costs.algebra import Expr, maximum, symbol
from sim.costs.layers.dense import (
    Structure,
    ffn,
    heads,
    hidden,
    kv_width,
    micro_batch,
    norm_tokens,
    query_width,
    seq,
    tokens,
    tp,
    vocab,
)
from sim.specs.model import Model

OPTIMIZER_BYTES = 12  # fp32 master weight and two moments (Adam)
WEIGHT_BYTES = 2
full, selective = symbol("full"), symbol("selective")
scores = micro_batch * heads / tp * seq * seq
"""Elements of the attention matrix on one rank."""


@dataclass(frozen=True)
class Saved:
    """What the forward pass of one block leaves for its backward pass, in bytes by origin."""

    norms: Expr
    attention: Expr
    scores: Expr
    mlp: Expr
    masks: Expr

    @property
    def all(self) -> Expr:
        """Everything, without recompute."""
        return self.norms + self.attention + self.scores + self.mlp + self.masks


def saved(structure: Structure, statistics: int) -> Saved:
    """Return the saved bytes of a block; `statistics` fp32 numbers per row and norm (2 LayerNorm, 1 RMSNorm)."""
    norm_inputs = 2 * (2 * norm_tokens * hidden + 4 * statistics * norm_tokens)
    product_inputs = 2 * 2 * norm_tokens * hidden  # what qkv and mlp up read: gathered again when sharded
    qkv_and_context = 2 * tokens * (2 * query_width + 2 * kv_width) / tp
    core = (5 if structure.dropout else 2) * scores if structure.eager else 4 * micro_batch * heads / tp * seq
    activation = 2 * tokens * ffn / tp * (3 if structure.gated else 2)
    masks = 2 * norm_tokens * hidden if structure.dropout else 0
    return Saved(norm_inputs + product_inputs, qkv_and_context, core, activation, masks)


def block_bytes(structure: Structure, statistics: int) -> tuple[Expr, Expr]:
    """Return (kept per microbatch in flight, rebuilt while one block runs backward) of one block."""
    s = saved(structure, statistics)
    outputs = 2 * 2 * norm_tokens * hidden + 2 * tokens * ffn / tp  # of both norms and of the activation
    dropped = s.scores if structure.eager else outputs
    kept_full = 2 * norm_tokens * hidden
    kept = (1 - full - selective) * s.all + selective * (s.all - dropped) + full * kept_full
    return kept, selective * dropped + full * (s.all - kept_full)


def gradient_bytes(structure: Structure) -> Expr:
    """Return the largest set of activation gradients alive at once in one block's backward pass."""
    mlp = 2 * tokens * ffn / tp * (3 if structure.gated else 2)
    heads_side = 4 * scores if structure.eager else 2 * tokens * (2 * query_width + 2 * kv_width) / tp
    return maximum(mlp, heads_side) + 2 * tokens * hidden


def embedding_bytes(structure: Structure) -> Expr:
    """Return what the embedding keeps per microbatch: its dropout mask."""
    return norm_tokens * hidden if structure.dropout else 0 * tokens


def head_bytes(statistics: int) -> tuple[Expr, Expr]:
    """Return (kept by final norm, logits product and fp32 softmax; 16-bit logits beside them)."""
    logits = tokens * vocab / tp
    kept = 2 * 2 * norm_tokens * hidden + 4 * statistics * norm_tokens + 4 * logits
    return kept, 2 * logits


def rank_parameters(structure: Structure) -> dict[str, Expr]:
    """Return the parameters of one rank by what it holds: block (one layer), first and last extras.

    Norms and output biases are repeated on every tensor-parallel rank; all else is split.
    """
    split, repeated = symbol("layer_parameters_split"), symbol("layer_parameters_repeated")
    table = vocab * hidden / tp
    learned = 0 if structure.rope else seq * hidden
    return {
        "block": split / tp + repeated,
        "first": table + learned,
        "last": table + symbol("norm_parameters"),  # a tied table is held twice when pp > 1
    }


def parameter_symbols(model: Model) -> dict[str, float]:
    """Return the values of the symbols of `rank_parameters`."""
    biases = 2 * model.hidden if model.bias else 0
    repeated = 2 * model.norm_parameters + biases
    return {
        "layer_parameters_split": model.layer_parameters - repeated,
        "layer_parameters_repeated": repeated,
        "norm_parameters": model.norm_parameters,
    }
