"""Bytes of one rank: states, saved activations, temporaries (tensor level, exact for 16-bit and fp32 activations).

Saved activations after Korthikanti et al. 2022 (arXiv 2205.05198), section 4: 34 s b h + 5 a s^2 b per layer with
eager attention, 34 s b h + 4 a s b with flash attention (fp32 logsumexp), plus the fp32 statistics of the norms; in
fp32 66 s b h + 9 a s^2 b, as dropout masks stay one byte.
Model states after ZeRO (arXiv 1910.02054), section 3.
"""

from dataclasses import dataclass

from sim.costs.algebra import Expr, maximum, minimum, symbol
from sim.costs.collectives import Group
from sim.costs.kernels import element_bytes
from sim.costs.layers import ends, recurrent, ring, tempo, traced
from sim.costs.layers.block import separate_norms
from sim.costs.layers.mlp import etp, expert_hidden, moe_ffn, routed_rows
from sim.costs.layers.ops import (
    Sizes,
    cp,
    gathered_again,
    head_dim,
    heads,
    hidden,
    kv_columns,
    micro_batch,
    native,
    outside,
    query_width,
    sequence_parallel,
    tp,
    v_width,
    vocab,
)
from sim.costs.layers.structure import BlockKind, Kind, Structure, TracedKind
from sim.specs.adapters import ADAPTED
from sim.specs.blocks import GATES
from sim.specs.model import Model

MOMENT_BYTES = 8  # two fp32 moments (Adam)
master_bytes = symbol("master_bytes")
"""Bytes of the fp32 master copy of a weight: 4, or 0 where the weights are fp32 themselves."""
mixed = master_bytes / 4
"""1 for recipes of 16 or fewer bits with a master copy; 0 for torch's own training in fp32."""
full, selective, input_bytes = (symbol(n) for n in ("full", "selective", "input_bytes"))
repeated = symbol("recomputed_share")
"""Share of a chunk's layers that recompute."""


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


def cross_scores(size: Sizes) -> Expr:
    """Return the elements of the matrix of cross-attention on one rank."""
    return micro_batch * heads / tp * size.seq / cp * symbol("encoder_seq")


def read(tokens: Expr) -> Expr:
    """Return the rows that a product split by columns keeps of its input: all (PyTorch), or those of its own part."""
    return native * tokens + (1 - native) * outside(tokens)


def saved(kind: BlockKind, index: int, statistics: int) -> Saved:
    """Return the saved bytes of a layer; `statistics` fp32 numbers per row and norm."""
    size = Sizes(index)
    if kind.mixer in GATES:
        masks = size.tokens * hidden if kind.dropout else 0
        return Saved(mixer=recurrent.saved_bytes(kind, size), masks=masks)
    halves = _sub_layers(kind)
    rows = size.norm_tokens
    read_once = max(1, kind.norms - kind.parallel)  # side by side, the two in front read the same
    statistics_rows = kind.norms * rows + _latent_norms(kind) * size.latent_tokens
    norms = read_once * element_bytes * rows * hidden + 4 * statistics * statistics_rows - tempo.of_norms(kind, size)
    inputs = _read_again(kind) * input_bytes * read(size.tokens) * hidden  # of qkv and mlp up
    mixer, core = _mixer(kind, size, statistics)
    masks = halves * rows * hidden if kind.dropout else 0
    joined = 2 * element_bytes * size.tokens * hidden if kind.joins else 0
    mixer += element_bytes * size.tokens * symbol("adapter_rank") * len(ADAPTED[kind.adapted])
    return Saved(norms + inputs + joined, mixer, core, _mlp(kind, size), masks)


def _sub_layers(kind: BlockKind) -> int:
    return (kind.mixer != "none") + (kind.mlp != "none") + kind.cross


def _normed(kind: BlockKind) -> int:
    """Return how many results of norms the layer's first products read: side by side they may share one."""
    halves = _sub_layers(kind)
    return min(halves, kind.norms) if kind.parallel else halves


def _read_again(kind: BlockKind) -> int:
    """Return how many results of norms a product's weight gradient reads: of all, or of those with an adapter."""
    adapted = ("qkv" in ADAPTED[kind.adapted] and kind.mixer != "none") + _reads_activation(kind)
    return min(adapted, _normed(kind)) if kind.adapted else _normed(kind)


def _reads_activation(kind: BlockKind) -> int:
    """Return 1 where the weight gradient of an MLP's last product, or of its adapter, reads the activation's result."""
    return int(kind.mlp != "none" and (not kind.adapted or "mlp down" in ADAPTED[kind.adapted]))


def _latent_norms(kind: BlockKind) -> int:
    """Return how many norms of latents a layer has."""
    return (kind.mixer == "mla") + kind.latent_queries


def _head_norms(kind: BlockKind, queries: Expr, keys: Expr, statistics: int) -> Expr:
    """Return what norms of queries and keys keep: what they read, and statistics of every head's row, or the whole."""
    return sum(
        rows * (element_bytes * columns + 4 * statistics * (1 if kind.whole_qk_norm else columns / head_dim))
        for rows, columns in ((queries, query_width / tp), (keys, kv_columns))
    )


def _mixer(kind: BlockKind, size: Sizes, statistics: int) -> tuple[Expr, Expr]:
    """Return the bytes of projections and context, and of the scores (or the fused kernel's row sums)."""
    tokens = size.tokens
    if kind.mixer == "none":
        return 0, 0
    if kind.mixer == "mamba":
        inner, states = symbol("ssm_width"), symbol("ssm_states")
        # in-projection (gate, x, B, C, dt), convolution's output, scan's output, gated norm's output
        return element_bytes * tokens * (2 * inner + 2 * states + 2 * inner + inner + symbol("ssm_heads")) / tp, 0
    fused = 4 * micro_batch * heads / tp * size.seq / cp
    each = 2 * element_bytes + 1 - tempo.of_dropout() if kind.dropout else element_bytes
    stored, crossed = (each * f(size) if kind.eager else fused for f in (scores, cross_scores))
    if kind.mixer == "mla":
        latents = element_bytes * size.latent_tokens * 2 * (symbol("q_lora_rank") + symbol("kv_lora_rank"))
        return element_bytes * tokens * (2 * query_width + 2 * v_width) / tp + latents, stored
    one = element_bytes * tokens * (2 * query_width / tp + 2 * kv_columns)
    if kind.qk_norm:
        one += _head_norms(kind, tokens, tokens, statistics)
    if not kind.eager:
        one += ring.saved(tokens)
    if kind.cross:
        encoder = symbol("encoder_seq") * micro_batch / cp
        more = element_bytes * (tokens * 2 * query_width / tp + encoder * 2 * kv_columns)
        if kind.qk_norm:
            more += _head_norms(kind, tokens, encoder, statistics)
        return one + more, stored + crossed
    return one, stored


def _mlp(kind: BlockKind, size: Sizes) -> Expr:
    columns = 3 if kind.gated else 1 if kind.relu else 2
    columns -= 0 if kind.relu and not kind.gated else 1 - _reads_activation(kind)
    width, dense = size.tokens * size.of("ffn") / tp, 0
    if kind.mlp == "dense" or kind.shared:
        dense = element_bytes * width * columns - tempo.of_activation(kind, width)
    if kind.mlp != "moe":
        return dense
    rows = routed_rows(size)
    # Permuted inputs, both activations, expert outputs (the router's gradient needs them), probabilities.
    width = rows * moe_ffn / etp
    routed = element_bytes * width * columns
    routed += 0 if kind.adapted else (input_bytes + element_bytes) * rows * expert_hidden
    routed -= tempo.of_activation(kind, width)
    if kind.clamped:  # beside what the clamps read, what the activation does
        routed += symbol("core") * element_bytes * 2 * width
    if kind.latent:  # what both projections read
        routed += size.tokens / tp * (input_bytes * hidden + element_bytes * expert_hidden)
    return dense + routed + 4 * size.tokens / tp * symbol("experts")


def block_bytes(kind: Kind, index: int, statistics: int) -> tuple[Expr, Expr]:
    """Return (kept, rebuilt): bytes a layer keeps per microbatch in the mean of a chunk, bytes that the recompute of
    one brings back for a while."""
    if isinstance(kind, TracedKind):
        return traced.block_bytes(kind, full, repeated)
    s, size = saved(kind, index, statistics), Sizes(index)
    dropped, back = _dropped_by_modules(kind, size, s)
    torchs = _dropped_outputs(kind, size, s)
    if kind.mixer == "attention" and kind.mlp == "dense" and not kind.cross:
        others = s.all - _every_second_product(kind, size)
        torchs = others, others
    dropped, back = (
        (1 - native) * ours + native * theirs for ours, theirs in zip((dropped, back), torchs, strict=True)
    )
    kept_full = element_bytes * size.norm_tokens * hidden
    kept = s.all - repeated * (selective * dropped + full * (s.all - kept_full))
    return kept, selective * back + full * (s.all - (1 - tempo.again(kind)) * kept_full)


def _dropped_by_modules(kind: BlockKind, size: Sizes, s: Saved) -> tuple[Expr, Expr]:
    """Return what Megatron-LM's selective recompute drops, and what of it comes back for a while.

    Of eager attention the stored scores (module core_attn); else the outputs of the norms that stand alone and of the
    experts' activation, and MLA's queries, keys and values (layernorm, moe_act, mla_up_proj: megatron-core 0.16.1,
    core/transformer/transformer_layer.py, moe/experts.py and multi_latent_attention.py). The shared experts' activation
    stays, but with `experts_again` nothing of a layer's experts (moe: moe/moe_layer.py). What a norm reads is then kept
    whatever the layers save.
    """
    again = symbol("experts_again") * int(kind.mlp == "moe")
    experts = again * _mlp(kind, size)
    if kind.eager:
        return s.scores + experts, s.scores + experts
    norms, width = len(separate_norms(kind)), routed_rows(size) * moe_ffn / etp if kind.mlp == "moe" else 0
    if kind.adapted:  # what has none keeps neither
        norms, width = 0, 0
    activated = element_bytes * width
    if kind.clamped and not kind.adapted:  # the clamps are within moe_act
        activated += symbol("core") * element_bytes * 2 * width
    out = input_bytes * size.norm_tokens * hidden * norms + (1 - again) * activated + experts
    if kind.mixer == "mla":
        out += element_bytes * size.tokens * (2 * query_width + v_width) / tp
    return out - tempo.of_norms(kind, size, norms) - (1 - again) * tempo.of_activation(kind, width), out


def _dropped_outputs(kind: BlockKind, size: Sizes, s: Saved) -> tuple[Expr, Expr]:
    """Return what PyTorch's selective recompute drops of layers beyond plain ones, and what of it comes back.

    Stored scores, else the outputs of norms and activation, but for that of the norm before cross-attention. Those are
    made again from the inputs, which are then kept whatever the layers save.
    """
    if kind.stores_scores:
        return s.scores, s.scores
    out = element_bytes * size.norm_tokens * hidden * (_read_again(kind) - kind.cross)
    width = 0
    if _reads_activation(kind):
        width = size.tokens * size.of("ffn") / tp if kind.mlp == "dense" or kind.shared else 0
        width += routed_rows(size) * moe_ffn / etp if kind.mlp == "moe" else 0
    out += element_bytes * width
    return out - tempo.of_norms(kind, size) - tempo.of_activation(kind, width), out


def _every_second_product(kind: BlockKind, size: Sizes) -> Expr:
    """Return what torchtitan's selective checkpoint of operations keeps of a dense layer.

    Its input, the context with its row sums, and of q, k, v, out, (gate,) up, down every second product from the first
    on (`_apply_ac_to_transformer_block`): q, v, gate or up, and the down product of a gated MLP. Without rotated
    positions q, k and v are one product, as GPT-2 has them, and the first.
    """
    rows = size.tokens * (2 * query_width / tp + (1 if kind.rope else 2) * kv_columns + size.of("ffn") / tp)
    kept = rows + (2 if kind.gated else 1) * size.norm_tokens * hidden
    return element_bytes * kept + 4 * micro_batch * heads / tp * (size.seq / cp)


def gradient_bytes(kind: Kind, index: int) -> Expr:
    """Return the largest set of activation gradients alive at once in one layer's backward pass.

    Beyond what the layer saved: the MLP's last product has read its input for the last time when the gradients of the
    others appear, and all that the MLP saved is gone when the mixer's do. Hidden states beside them: gradient of the
    layer's output and input, with sequence parallelism gathered ones of a product's input and output too.
    """
    if isinstance(kind, TracedKind):
        return traced.gradient_bytes(kind)
    size = Sizes(index)
    if kind.mixer in GATES:
        both = 2 * element_bytes * size.tokens * hidden
        return both + recurrent.gradient_bytes(size)
    kept_on = 1 if kind.relu else tempo.tempo  # what reads its output keeps it until it is done
    columns = 2 if kind.gated else 1 + kept_on
    matrix = maximum(scores(size), cross_scores(size)) if kind.cross else scores(size)
    core = 2 * element_bytes * matrix if kind.stores_scores else 0
    fused = element_bytes * size.tokens * (2 * query_width / tp + 2 * kv_columns) + ring.temporary(size.tokens)
    mixer = core or fused
    parts = [mixer - _mlp(kind, size)]
    if kind.mlp == "dense":
        parts.append(element_bytes * size.tokens * size.of("ffn") / tp * columns)
    if kind.mlp == "moe":
        parts.append(element_bytes * routed_rows(size) * (moe_ffn / etp * columns + expert_hidden))
    whole = (1 + 2 * sequence_parallel) * size.tokens + size.norm_tokens
    # PyTorch makes 16-bit weight gradients too before it adds them to their sum; FSDP's are counted as unreduced.
    third = 1 - mixed * (1 - native * (1 - symbol("zero2")))
    return maximum(maximum(*parts) + element_bytes * whole * hidden, third * _last_product(kind, size))


def _last_product(kind: BlockKind, size: Sizes) -> Expr:
    """Return the gradients of the last product's output, input and weight, which torch has made all three before it
    lets go of the input and adds the third to the sum (products that add to the sum themselves have no third). Frozen
    weights have none.
    """
    weight = int(not kind.adapted)
    tokens, width = size.tokens, size.of("ffn") / tp
    dense = (tokens * (hidden + width) + weight * hidden * width) if kind.mlp == "dense" else 0
    if kind.mlp == "moe":
        rows, width = routed_rows(size), moe_ffn / etp
        dense = rows * (expert_hidden + width) + weight * symbol("experts") / symbol("ep") * expert_hidden * width
    return element_bytes * (dense or tokens * hidden + (tokens + weight * hidden) * v_width / tp)


def embedding_bytes(structure: Structure) -> Expr:
    """Return what the embedding keeps per microbatch: dropout masks, what its norm reads, or the images."""
    if structure.ends:
        return traced.size(structure.ends[0].part.saved)
    rows = outside(ends.both(structure))
    mask = rows * hidden if structure.dropout else 0 * rows
    normed = (element_bytes * hidden + 4 * structure.statistics) * rows if structure.embedding_norm else 0
    images = element_bytes * ends.patches * symbol("patch_width") if structure.head == "classes" else 0
    return mask + normed + images


def head_bytes(structure: Structure) -> tuple[Expr, Expr]:
    """Return (kept by final norm, logits product and softmax; the most that the head's backward adds to it).

    BERT's transform keeps its input and its GELU's besides, an encoder-decoder the encoder's final norm, whose output
    all cross-attention reads.

    Megatron-LM's cross-entropy ("in-place") turns the fp32 softmax into the gradient, with the 16-bit gradient beside
    it; a fused one keeps the logits as they are and makes a gradient of their size; PyTorch's ("autograd") makes two
    fp32 gradients (`nll_loss`, `log_softmax`) beside its fp32 output, and split over ranks a third
    (`torch.distributed.tensor.parallel.loss`: the exponentials and their sum with it). Then what it kept is gone and
    the 16-bit gradient meets that of the head's weight (autograd returns it, or TransformerEngine's and Megatron-LM's
    empty stand-in for it) and of the hidden states, with sequence parallelism the gathered input too.
    """
    if structure.ends:
        return traced.size(structure.ends[1].part.saved), traced.gradient_bytes(structure.ends[1])
    passes = symbol("head_passes")
    rows = ends.head_rows(structure)
    logits = rows * vocab / tp
    norms = input_bytes * read(ends.tokens) * hidden
    if structure.final_norm:
        norms += (element_bytes * hidden + 4 * structure.statistics) * outside(ends.both(structure))
    if structure.encodes:
        norms += input_bytes * read(ends.encoder_tokens) * hidden
    if structure.head == "masked":
        norms += 2 * element_bytes * ends.norm_tokens * hidden
    weight = (1 - native * symbol("zero2") * minimum(1, Group.named("shard").n - 1)) * symbol("head_split") / tp
    product = element_bytes * (weight + (1 + gathered_again) * rows * hidden)
    fused, autograd = symbol("fused_loss"), symbol("autograd_loss")
    kept = (4 - (4 - element_bytes) * fused) * logits
    cast = 4 - element_bytes  # 2: the gradient in 16 bit; 0: fp32 logits need none
    gradients = fused * element_bytes + autograd * (8 + 4 * minimum(1, tp - 1)) + (1 - fused - autograd) * cast
    return passes * (norms + kept), maximum(gradients * logits, product + element_bytes * logits - kept)


def rank_parameters() -> dict[str, Expr]:
    """Return the parameters of one rank by what it holds: first and last extras of the dense group.

    The token table and the head are split; learned positions, final norm and transform are repeated.
    """
    return {
        "first": symbol("embedding_split") / tp + symbol("embedding_repeated"),
        "last": symbol("head_split") / tp + symbol("head_repeated"),
    }


def layer_parameters(index: int) -> Expr:
    """Return one layer's parameters on a rank, without routed experts; where there are more ranks than key-value heads,
    several hold the same one."""
    size = Sizes(index)
    again = size.of("key_value_rows") * (kv_columns - symbol("kv_heads") * symbol("head_dim") / tp)
    return size.of("split") / tp + again + size.of("repeated")


def expert_parameters(index: int) -> Expr:
    """Return one layer's routed-expert parameters on a rank."""
    return Sizes(index).of("expert") / (symbol("ep") * etp)


def product_parameters(index: int) -> Expr:
    """Return the weights of one layer on a rank, of routed experts those of a single one."""
    return layer_parameters(index) + Sizes(index).of("expert") / (maximum(symbol("experts"), 1) * etp)


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
            f"key_value_rows_{k}": block.key_value_rows,
            f"repeated_{k}": block.repeated_parameters,
            f"expert_{k}": block.expert_parameters,
        }
    return {name: float(value) for name, value in values.items()}
