"""The tensors that a layer's saved bytes are made of, for replaying a step's allocations one at a time.

Bytes of one rank and microbatch by kind of layer; every sum over tensors is that of `memory`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sim.costs import memory, sharding
from sim.costs.algebra import Compiled, Expr, compile_expressions
from sim.costs.kernels import BYTES_16BIT
from sim.costs.layers import ends
from sim.costs.layers.ops import kv_columns, query_width, tp, vocab
from sim.costs.layers.structure import BlockKind, Kind, Structure
from sim.specs.blocks import GATES
from sim.specs.plan import Recompute

ORIGINS = ("norms", "mixer", "scores", "mlp", "masks")
"""What `memory.Saved` tells apart."""

SHARES = {"softmax": 2.0, "score mask": 1.0, "dropped softmax": 2.0}
"""Bytes per score of what eager attention stores (Korthikanti et al. 2022, arXiv 2205.05198, section 4.1)."""

OF_STATE = {"gates": 4.0}
"""Numbers of a recurrent layer over those of its state."""
SIDE = {"side of the minimum": 0.5}
"""Size over that of its output of what a GELU keeps beside it (`sim.costs.layers.tempo`)."""

UNKNOWN_PARTS = 12
"""Equal tensors that stand for a traced layer, of which only the sum is known."""

OUTPUTS = ("norm output", "activation")
DROPPED_FIRST = {
    "scores": ("softmax", "score mask", "dropped softmax"),
    "outputs": OUTPUTS,
    "latent": (*OUTPUTS, "query", "key", "value"),
}
"""What selective recompute drops of eager attention, of fused and of MLA's, in turn (`memory.block_bytes`)."""


@dataclass(frozen=True)
class LayerTensors:
    """Sizes in bytes of one layer's tensors, in the order in which a forward pass makes them.

    kept: from its forward to its backward; rebuilt: made by the forward too, dropped, and made again by the backward;
    gradients: what the backward adds at once.
    """

    kept: tuple[int, ...]
    rebuilt: tuple[int, ...]
    gradients: tuple[int, ...]


def forward_order(kind: Kind, tempo: bool = False) -> list[tuple[str, str]]:
    """Return (origin, name) of a layer's saved tensors in the order in which its forward pass makes them.

    Of each half of a layer the norm's input and output come first; the last of an MLP is the activation's output.
    tempo: of layers that keep fewer (`Plan.tempo`).
    """
    if not isinstance(kind, BlockKind):
        return [("traced", f"part {i}") for i in range(UNKNOWN_PARTS)]
    root = kind.root_mean_square or not tempo
    norms = [*([("norms", "norm input")] if root else []), ("norms", "norm output")]
    masks = [("masks", "mask")] if kind.dropout else []
    if kind.mixer in GATES:
        return [*(("mixer", n) for n in ("inputs", "gates", "cells")), *masks]
    out: list[tuple[str, str]] = []
    if kind.mixer != "none":
        out += [*norms, *(("mixer", n) for n in ("query", "key", "value"))]
        if kind.mixer != "mamba":
            stored = tuple(SHARES)[: 2 if tempo else 3] if kind.dropout else ("softmax",)
            out += [("scores", n) for n in (stored if kind.eager else ("row sums",))]
        out += [("mixer", "context"), *masks]
    if kind.mlp != "none":
        columns = ("gate", "up", "activation") if kind.gated else (*(SIDE if tempo else ("up",)), "activation")
        out += [*norms, *(("mlp", n) for n in columns), *masks]
    return out


def expressions(structure: Structure) -> dict[str, Expr]:
    """Return for every kind k of layer bytes by origin, kept_k, rebuilt_k, gradient_k, weights_k (gathered 16-bit
    weights of a layer), and unreduced_k and reduced_k (its weights' gradients until they are in shards, and the copy
    that they are reduced from); for all kinds the columns of queries and of keys on a rank, and the fp32 logits."""
    logits = 0 * tp if structure.ends else 4 * ends.head_rows(structure) * vocab / tp
    out: dict[str, Expr] = {"query_columns": query_width / tp, "key_columns": kv_columns, "logits": logits}
    for k, kind in enumerate(structure.kinds):
        kept, rebuilt = memory.block_bytes(kind, k, structure.statistics)
        weights = BYTES_16BIT * (memory.layer_parameters(k) + memory.expert_parameters(k))
        out |= {f"kept_{k}": kept, f"rebuilt_{k}": rebuilt, f"weights_{k}": weights}
        own, copy = sharding.unreduced(k)
        out |= {f"gradient_{k}": memory.gradient_bytes(kind, k), f"unreduced_{k}": own, f"reduced_{k}": copy}
        if isinstance(kind, BlockKind):
            held = memory.saved(kind, k, structure.statistics)
            out |= {f"{origin}_{k}": getattr(held, origin) for origin in ORIGINS}
        else:
            out[f"traced_{k}"] = kept + rebuilt
    return out


@lru_cache
def tensor_model(structure: Structure) -> Compiled:
    """Return `expressions` as one compiled function (cached)."""
    return compile_expressions(expressions(structure))


def layer_tensors(
    structure: Structure, k: int, sizes: Mapping[str, Any], recompute: Recompute, tempo: bool = False
) -> LayerTensors:
    """Return the tensors of a layer of kind `k`; `sizes` are the values of `expressions`, tempo as `Plan.tempo`."""
    kind = structure.kinds[k]
    order = forward_order(kind, tempo)
    columns = {"query": "query_columns", "context": "query_columns", "key": "key_columns", "value": "key_columns"}
    own = SHARES | OF_STATE | SIDE
    shares = [float(sizes[columns[n]]) if n in columns else own.get(n, 1.0) for _, n in order]
    total = {o: sum(s for s, (other, _) in zip(shares, order, strict=True) if other == o) for o, _ in order}
    tensors = [float(sizes[f"{o}_{k}"]) * s / total[o] for s, (o, _) in zip(shares, order, strict=True)]
    if recompute == "full":
        kept, rebuilt = [float(sizes[f"kept_{k}"])], _less(tensors, list(range(len(order))), sizes[f"kept_{k}"])[0]
    else:
        mixer, stored = (kind.mixer, kind.stores_scores) if isinstance(kind, BlockKind) else ("", False)
        first = DROPPED_FIRST["scores" if stored else "latent" if mixer == "mla" else "outputs"]
        turn = {name: i for i, name in enumerate(first)}
        chosen = sorted(range(len(order)), key=lambda i: turn.get(order[i][1], len(first)))
        kept, rebuilt = _less(tensors, chosen, sizes[f"rebuilt_{k}"])
    gradient = float(sizes[f"gradient_{k}"])
    pieces = max(1, min(4, round(gradient / max(1.0, *tensors))))
    return LayerTensors(_whole(kept), _whole(rebuilt), _whole([gradient / pieces] * pieces))


def pieces(size: float, most: float) -> tuple[int, ...]:
    """Return `size` bytes as tensors of `most` bytes (0: no limit) and what is left; the smallest comes first."""
    number = int(size // most) if most > 0 else 0
    return _whole([size - number * most] + [most] * number)


def _less(tensors: list[float], chosen: list[int], size: Any) -> tuple[list[float], list[float]]:
    """Return (what is left, what is taken) when `size` bytes are taken from the tensors in the `chosen` order."""
    left, taken, wanted = list(tensors), [0.0] * len(tensors), float(size)
    for i in chosen:
        taken[i] = min(left[i], max(0.0, wanted))
        left[i], wanted = left[i] - taken[i], wanted - taken[i]
    return left, taken


def _whole(sizes: list[float]) -> tuple[int, ...]:
    return tuple(round(size) for size in sizes if size >= 1)
