"""The two ends of a model: embedding (tokens or image patches) and output head (next token, masked token, class)."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from sim.costs import kernels, volume
from sim.costs.algebra import Expr, symbol
from sim.costs.kernels import element_bytes
from sim.costs.layers import traced
from sim.costs.layers.adapters import frozen
from sim.costs.layers.ops import (
    Op,
    cp,
    gathered_again,
    gemm,
    hidden,
    in_fp32,
    micro_batch,
    moved,
    norm,
    outside,
    seq,
    sequence_parallel,
    tp,
    tp_group,
    vocab,
)
from sim.costs.layers.structure import Structure

tokens = seq * micro_batch / cp
norm_tokens = outside(tokens)
encoder_tokens = symbol("encoder_seq") * micro_batch / cp
patches = (seq - 1) * micro_batch / cp
"""Rows of an image without the one of its class."""
NARROW = {kind: symbol(f"vocab_{kind}") for kind in kernels.NARROW_ROWS}
"""Whether rows of the logits are (`kernels.narrow`)."""
LOOKED_UP, SUMMED = (("embedding", direction) for direction in ("forward", "backward"))


def both(structure: Structure) -> Expr:
    """Return the tokens that pass both ends: of an encoder-decoder the encoder's too."""
    return tokens + encoder_tokens if structure.encodes else tokens


def boundary_bytes(structure: Structure) -> Expr:
    """Return the bytes that one microbatch passes between pipeline stages, before tensor-parallel ranks split it."""
    if structure.boundary:
        return traced.size(structure.boundary)
    return element_bytes * symbol("boundary_seq") * micro_batch / cp * hidden


def head_rows(structure: Structure) -> Expr:
    """Return the rows the output projection works on: every token, or one a sample."""
    return micro_batch / cp if structure.head == "classes" else tokens


def embedding(structure: Structure) -> list[Op]:
    """Return the operations of the vocabulary-parallel embedding, or of the projection of image patches."""
    if structure.ends:
        return traced.operations(structure.ends[0], end=True)
    if structure.head == "classes":
        # Images have no gradient.
        made = gemm("patches", patches, hidden / tp, symbol("patch_width"), plain=True)
        return [op for op in made if op.phase != "backward_input"]
    whole = both(structure)
    elements = whole * hidden
    whole_bytes = element_bytes * elements
    mask = outside(whole) * hidden * volume.dropout(element_bytes) if structure.dropout else 0
    sizes = [volume.embedding(direction, element_bytes) * elements + mask for direction in kernels.BOTH]
    forward = (1 - sequence_parallel) * tp_group.all_reduce(whole_bytes)
    gather = sequence_parallel * tp_group.all_gather(whole_bytes)
    normed = norm("embedding norm", outside(whole), structure.statistics == 1) if structure.embedding_norm else ()
    ops = [
        moved("embedding", "forward", sizes[0], *LOOKED_UP, rows=whole),
        moved("embedding wgrad", "backward_weight", sizes[1], *SUMMED, rows=whole),
        _summed("embedding wgrad sum", symbol("embedding_split"), element_bytes),
        *normed,
        Op("embedding reduce", "forward", "tp", forward + gather, 0, whole_bytes),
        Op("embedding gradient gather", "backward_input", "tp", gather, 0, whole_bytes),
    ]
    return [op for op in ops if op.phase == "forward"] if structure.frozen else ops


def _summed(name: str, parameters: Expr, zeroed: Expr) -> Op:
    """Return the sum of a whole table's gradient, `zeroed` bytes of an element written before."""
    return in_fp32(name, "backward_weight", (zeroed + symbol("accumulate_bytes")) * parameters / tp)


def head(structure: Structure) -> list[Op]:
    """Return the operations of final norm, vocabulary-parallel logits and cross-entropy (fp32 softmax)."""
    if structure.ends:
        return traced.operations(structure.ends[1], end=True)
    rows = head_rows(structure)
    logits = rows * vocab / tp
    whole_bytes = element_bytes * tokens * hidden
    gather, again = (switch * tp_group.all_gather(whole_bytes) for switch in (sequence_parallel, gathered_again))
    backward = (1 - sequence_parallel) * tp_group.all_reduce(whole_bytes) + gather
    # What a host processor issues beside the ends' own kernels; a device that runs beside its host hides it.
    issue = symbol("on_host") * symbol("ends_issue_s")
    statistics = 3 * tp_group.all_reduce(4 * rows)  # row maximum, target logit, sum of exponentials
    with kernels.repeating(symbol("head_passes")):
        ops = [
            *(norm("final norm", outside(both(structure)), structure.statistics == 1) if structure.final_norm else ()),
            *(_transform() if structure.head == "masked" else ()),
            *gemm("logits", rows, vocab / tp, hidden, plain=True, narrow=NARROW),
            *(_loss(direction, logits) for direction in kernels.BOTH),
            _summed("logits wgrad sum", symbol("head_split"), 0),
            Op("ends issue", "forward", "compute", issue / 3, launches=0),
            Op("ends issue dgrad", "backward_input", "compute", issue * 2 / 3),
            Op("logits gather", "forward", "tp", gather + statistics, 0, whole_bytes),
            Op("logits input gather", "backward_input", "tp", again, 0, whole_bytes, "logits dgrad"),
            Op("logits gradient reduce", "backward_input", "tp", backward, 0, whole_bytes, "logits wgrad"),
        ]
    return list(_repeated(frozen(ops) if structure.frozen else ops))


def _transform() -> Iterator[Op]:
    """Yield BERT's product and GELU between the last layer and the final norm."""
    size = norm_tokens * hidden
    yield from gemm("transform", norm_tokens, hidden, hidden, plain=True)
    for direction, name, phase in (("forward", "", "forward"), ("backward", " dgrad", "backward_input")):
        moves = volume.activation(direction, element_bytes, False) * size
        yield moved(f"transform activation{name}", phase, moves, "gelu", direction)


def _loss(direction: str, logits: Expr) -> Op:
    """Return the cross-entropy of `logits`: in fp32, or where `one_kernel` is 1 as a kernel on 16-bit ones."""
    name, phase = ("cross-entropy", "forward") if direction == "forward" else ("cross-entropy dgrad", "backward_input")
    one = symbol("one_kernel")
    several = moved(
        name, phase, volume.cross_entropy(direction, element_bytes) * logits, "cross_entropy", direction, vocab / tp
    )
    single = moved(name, phase, volume.fused_cross_entropy(element_bytes) * logits)
    time = (1 - one) * several.seconds + one * single.seconds
    return replace(several, seconds=time, bytes=(1 - one) * several.bytes + one * single.bytes)


def _repeated(ops: Iterable[Op]) -> Iterator[Op]:
    """Yield the head once for the next token and once more for every prediction module."""
    passes = symbol("head_passes")
    for op in ops:
        yield Op(op.name, op.phase, op.kind, passes * op.seconds, passes * op.flop, passes * op.bytes, op.overlap)
