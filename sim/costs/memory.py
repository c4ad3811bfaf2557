"""Bytes of one rank: states, saved activations, temporaries (tensor level, exact for 16-bit activations).

Saved activations after Korthikanti et al. 2022 (arXiv 2205.05198), section 4: 34 s b h + 5 a s^2 b per layer with
eager attention, 34 s b h + 4 a s b with flash attention (fp32 logsumexp), plus the fp32 statistics of the norms.
Model states after ZeRO (arXiv 1910.02054), section 3.
"""

from dataclasses import dataclass

from sim.costs.algebra import Expr, maximum, symbol
from sim.costs.layers import ends, traced
from sim.costs.layers.mlp import etp, moe_ffn, routed_rows
from sim.costs.layers.ops import (
    Sizes,
    cp,
    heads,
    hidden,
    kv_columns,
    micro_batch,
    query_width,
    tp,
    v_width,
    vocab,
)
from sim.costs.layers.structure import BlockKind, Kind, Structure, TracedKind
from sim.specs.model import Model

OPTIMIZER_BYTES = 12  # fp32 master weight and two moments (Adam)
WEIGHT_BYTES = 2
full, selective, input_bytes = symbol("full"), symbol("selective"), symbol("input_bytes")


@dataclass(frozen=True)
class Saved:
    """What the forward pass of one layer leaves for its backward pass, in bytes by origin."""

    norms: Expr = 0
    mixer: Expr = 0
    scores: Expr = 0
    mlp: Expr = 0
    masks: Expr = 0

    @property
    def all(self) -> Expr:
        """Everything, without recompute."""
        return self.norms + self.mixer + self.scores + self.mlp + self.masks


def scores(size: Sizes) -> Expr:
    """Return the elements of the attention matrix on one rank."""
    return micro_batch * heads / tp * size.seq / cp * size.seq


def saved(kind: BlockKind, index: int, statistics: int) -> Saved:
    """Return the saved bytes of a layer; `statistics` fp32 numbers per row and norm."""
    size = Sizes(index)
    halves = (kind.mixer != "none") + (kind.mlp != "none")
    rows = size.norm_tokens
    norms = kind.norms * (2 * rows * hidden + 4 * statistics * rows)
    inputs = halves * input_bytes * rows * hidden  # what qkv and mlp up read: gathered again when sharded
    mixer, core = _mixer(kind, size)
    masks = halves * rows * hidden if kind.dropout else 0
    joined = 2 * 2 * size.tokens * hidden if kind.joins else 0
    return Saved(norms + inputs + joined, mixer, core, _mlp(kind, size), masks)


def _mixer(kind: BlockKind, size: Sizes) -> tuple[Expr, Expr]:
    """Return the bytes of projections and context, and of the scores (or the fused kernel's row sums)."""
    tokens = size.tokens
    if kind.mixer == "none":
        return 0, 0
    if kind.mixer == "mamba":
        inner, states = symbol("ssm_width"), symbol("ssm_states")
        # in-projection (gate, x, B, C, dt), convolution's output, scan's output, gated norm's output
        return 2 * tokens * (2 * inner + 2 * states + 2 * inner + inner + symbol("ssm_heads")) / tp, 0
    fused = 4 * micro_batch * heads / tp * size.seq / cp
    stored = (5 if kind.dropout else 2) * scores(size) if kind.eager else fused
    if kind.mixer == "mla":
        latents = 2 * size.norm_tokens * 2 * (symbol("q_lora_rank") + symbol("kv_lora_rank"))
        return 2 * tokens * (2 * query_width + 2 * v_width) / tp + latents, stored
    one = 2 * tokens * (2 * query_width / tp + 2 * kv_columns)
    if kind.cross:
        encoder = symbol("encoder_seq") * micro_batch / cp
        return one + 2 * (tokens * 2 * query_width / tp + encoder * 2 * kv_columns), stored + fused
    return one, stored


def _mlp(kind: BlockKind, size: Sizes) -> Expr:
    columns = 3 if kind.gated else 2
    dense = 2 * size.tokens * size.of("ffn") / tp * columns if kind.mlp == "dense" or kind.shared else 0
    if kind.mlp != "moe":
        return dense
    rows = routed_rows(size)
    # Permuted inputs, both activations, expert outputs (the router's gradient needs them), probabilities.
    routed = input_bytes * rows * hidden + 2 * rows * moe_ffn / etp * columns + 2 * rows * hidden
    return dense + routed + 4 * size.tokens / tp * symbol("experts")


def block_bytes(kind: Kind, index: int, statistics: int) -> tuple[Expr, Expr]:
    """Return (kept, rebuilt): bytes a layer keeps per microbatch, bytes its recompute brings back for a while."""
    if isinstance(kind, TracedKind):
        return traced.block_bytes(kind, full)
    s, size = saved(kind, index, statistics), Sizes(index)
    dropped = _selectively_dropped(kind, size, s)
    kept_full = 2 * size.norm_tokens * hidden
    kept = (1 - full - selective) * s.all + selective * (s.all - dropped) + full * kept_full
    return kept, selective * dropped + full * (s.all - kept_full)


def _selectively_dropped(kind: BlockKind, size: Sizes, s: Saved) -> Expr:
    """Return what selective recompute drops: stored scores, else the outputs of norms and activation."""
    if kind.eager and kind.mixer == "attention":
        return s.scores
    norms = 2 * size.norm_tokens * hidden * ((kind.mixer != "none") + (kind.mlp != "none"))
    if kind.mlp == "none":
        return norms
    width = size.tokens * size.of("ffn") / tp if kind.mlp == "dense" or kind.shared else 0
    return norms + 2 * (width + (routed_rows(size) * moe_ffn / etp if kind.mlp == "moe" else 0))


def gradient_bytes(kind: Kind, index: int) -> Expr:
    """Return the largest set of activation gradients alive at once in one layer's backward pass."""
    if isinstance(kind, TracedKind):
        return traced.gradient_bytes(kind)
    size = Sizes(index)
    columns = 3 if kind.gated else 2
    parts = [2 * size.tokens * (2 * query_width / tp + 2 * kv_columns)]
    if kind.eager and kind.mixer == "attention":
        parts = [4 * scores(size)]
    if kind.mlp == "dense":
        parts.append(2 * size.tokens * size.of("ffn") / tp * columns)
    if kind.mlp == "moe":
        parts.append(2 * routed_rows(size) * (moe_ffn / etp * columns + hidden))
    return maximum(*parts) + 2 * size.tokens * hidden


def embedding_bytes(structure: Structure) -> Expr:
    """Return what the embedding keeps per microbatch: its dropout mask."""
    if structure.ends:
        return traced.size(structure.ends[0].part.saved)
    return ends.norm_tokens * hidden if structure.dropout else 0 * ends.tokens


def head_bytes(structure: Structure) -> tuple[Expr, Expr]:
    """Return (kept by final norm, logits product and fp32 softmax; 16-bit logits beside them)."""
    if structure.ends:
        return traced.size(structure.ends[1].part.saved), traced.gradient_bytes(structure.ends[1])
    passes = symbol("head_passes")
    logits = ends.head_rows(structure) * vocab / tp
    norms = (2 + input_bytes) * ends.norm_tokens * hidden + 4 * structure.statistics * ends.norm_tokens
    return passes * (norms + 4 * logits), 2 * logits


def rank_parameters(structure: Structure) -> dict[str, Expr]:
    """Return the parameters of one rank by what it holds: first and last extras of the dense group.

    The token table and the head are split; learned positions, final norm and transform are repeated.
    """
    return {
        "first": symbol("embedding_split") / tp + symbol("embedding_repeated"),
        "last": symbol("head_split") / tp + symbol("head_repeated"),
    }


def layer_parameters(index: int) -> Expr:
    """Return one layer's parameters on a rank, without routed experts."""
    size = Sizes(index)
    return size.of("split") / tp + size.of("repeated")


def expert_parameters(index: int) -> Expr:
    """Return one layer's routed-expert parameters on a rank."""
    return Sizes(index).of("expert") / (symbol("ep") * etp)


def parameter_symbols(model: Model) -> dict[str, float]:
    """Return the values of the symbols of the parameter counts; a tied table is held by both ends when pp > 1."""
    table = 0 if model.family == "vit" else model.vocab * model.hidden
    head = model.classes * model.hidden if model.family == "vit" else model.vocab * model.hidden
    if model.network:
        table, head = 0, model.network.last.shared if model.network.tied else 0
    values = {
        "embedding_split": table,
        "embedding_repeated": model.embedding_parameters - table,
        "head_split": head,
        "head_repeated": model.head_parameters
        - (0 if model.tied_embeddings else head)
        + model.final_norms * model.norm_parameters,
    }
    for k, block in enumerate(model.blocks):
        values |= {
            f"split_{k}": block.split_parameters,
            f"repeated_{k}": block.repeated_parameters,
            f"expert_{k}": block.expert_parameters,
        }
    return {name: float(value) for name, value in values.items()}
