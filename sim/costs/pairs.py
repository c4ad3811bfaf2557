"""What the halves of a fused forward and backward hide of each other's collectives, in closed form.

A fused pair (DualPipe, arXiv 2412.19437, section 3.2.1) computes layer after layer, those of its first half before
those of its second. What a layer sends (tensor, context and expert parallelism, messages that block) starts when the
layer is computed and what came before it is sent, and runs beside the compute of later layers. The event engine lets
the same run (`sim.engine.lower`).
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from sim.costs.algebra import (
    Compiled,
    Expr,
    Interpreted,
    Values,
    compile_expressions,
    derivative,
    maximum,
    minimum,
    symbol,
)
from sim.costs.layers.ops import COMMUNICATION
from sim.costs.overlap import slowdowns


class Half(NamedTuple):
    """A pass of a pair: its seconds of compute, of collectives that it waits for, and of those of ZeRO that run beside
    it on the same links (shared); its layers."""

    compute: Expr
    inner: Expr
    layers: Expr
    shared: Expr = 0


HALVES = ("first", "second")
SLOWED = ("pair_compute_slowed", "pair_inner_slowed")
"""How much slower compute of a pair is beside collectives, and these beside compute."""


def pair_outputs() -> dict[str, Expr]:
    """Return what pairs need beyond the times and layers of their passes, by `SLOWED`."""
    return dict(zip(SLOWED, slowdowns(), strict=True))


def hidden_in(first: Half, second: Half, compute_slowed: Expr, inner_slowed: Expr) -> Expr:
    """Return by how many seconds a pair is shorter than its halves one after the other.

    Compute and collectives are two machines that serve layer after layer. The last is served when one machine has
    worked without a gap up to some layer, and the other from it on; what either sum leaves out is hidden, and the layer
    that hides least is the first or the last of a half. Side by side both machines are slower: while they hide x
    seconds of what one does alone they run for x (1 + slowdown), of which each does 1 / (1 + slowdown).

    Grows with each of the seconds, and is less than nothing where streams slow each other so much that a pair takes
    longer side by side.
    """
    compute, inner = 1 + compute_slowed, 1 + inner_slowed
    # Compute that hides others on these links hides none of the pair's.
    free, free_after = (compute * maximum(0, half.compute - half.shared * inner / compute) for half in (first, second))
    sent, sent_after = inner * first.inner, inner * second.inner
    # All but what the first layer of a half computes, and all but what its last one sends.
    most, most_after = (1 - 1 / maximum(half.layers, 1) for half in (first, second))
    beside = minimum(
        most * free + free_after,
        most * sent + free_after,
        sent + most_after * free_after,
        sent + most_after * sent_after,
    )
    return beside * (1 / compute + 1 / inner - 1)


_ENDS = ("embedding_", "head_")
_INNER = {phase: tuple(f"{phase}_{x}" for x in COMMUNICATION) for phase in ("forward", "input")}
_COMPUTED = {
    "forward": ("forward_compute", "forward_host"),
    "input": ("input_compute", "weight_compute", "recompute", "backward_host"),
}
"""Costs of the halves of a fused pair: the collectives that a forward or a backward waits for; what it computes."""


def computed(e: Mapping[str, Expr]) -> dict[str, Expr]:
    """Return costs without the collectives that passes wait for."""
    return dict(e) | {f"{end}{name}": 0 for end in ("", *_ENDS) for names in _INNER.values() for name in names}


def most_hidden(e: Mapping[str, Expr], place: str) -> Expr:
    """Return at least what a fused pair hides on a rank with these ends, as if either half had all that they add."""

    def over(names: Sequence[str]) -> Expr:
        ends = () if place == "middle" else _ENDS
        more = (maximum(0, sum(e.get(f"{end}{name}", 0) for name in names)) for end in ends)
        return sum(e[name] for name in names) + sum(more)

    halves = (Half(over(_COMPUTED[phase]), over(_INNER[phase]), e["layers"]) for phase in _INNER)
    return hidden_in(*halves, *(e[name] for name in SLOWED))


def _expressions() -> dict[str, Expr]:
    halves = (Half(*(symbol(f"pair_{half}_{part}") for part in Half._fields)) for half in HALVES)
    return {"hidden": hidden_in(*halves, *map(symbol, SLOWED))}


@lru_cache
def _model() -> Compiled:
    return compile_expressions(_expressions())


@lru_cache
def _rates() -> Interpreted:
    return Interpreted(derivative(_expressions(), {name: symbol(f"rate_of_{name}") for name in _model().symbols}))


def hidden(values: Values) -> Any:
    """Return `hidden_in` of pairs; values: `pair_<half>_<part>` of `HALVES` and the fields of `Half`, and `SLOWED`."""
    return _model()(values)["hidden"]


def hidden_rates(values: Values, rates: Mapping[str, Any]) -> Any:
    """Return how fast `hidden` grows as its values grow at `rates`, by the same names."""
    return _rates()({**values, **{f"rate_of_{name}": rate for name, rate in rates.items()}})["hidden"]
