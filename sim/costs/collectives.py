"""Hierarchical alpha-beta times of collectives (busbw and algbw as nccl-tests defines them).

A communicator has `n` ranks, `n_in` of them in one node and `n_out` nodes. Its ring crosses the slower of
the two tiers it really uses: the links inside a node, or its share of the node's network, which all
communicators of the node use at once (share = n_in / gpus_per_node). One communicator may span both.
"""

from dataclasses import dataclass

import sympy as sp

from sim.costs.algebra import Expr, maximum, minimum, symbol

PARAMETERS = (
    "intra_efficiency_reduce",
    "intra_efficiency_gather",
    "inter_efficiency",
    "intra_alpha",
    "intra_alpha_rank",
    "inter_alpha",
)
"""Fitted per device: share of the links' rate that all-reduce and that gather/scatter reach inside a node,
the same between nodes, start-up seconds of a communicator, per further rank in a node, per doubling of nodes."""


@dataclass(frozen=True)
class Group:
    """A communicator: its ranks, the ranks of it in one fast domain, its domains (expressions or numbers).

    `over`: how many times the fabric is oversubscribed on its way.
    """

    n: Expr
    n_in: Expr
    n_out: Expr
    over: Expr = 1

    @classmethod
    def named(cls, name: str) -> "Group":
        """Return the communicator whose shape is given by the symbols `name`_n, _in, _out and _over."""
        return cls(*(symbol(f"{name}_{part}") for part in ("n", "in", "out", "over")))

    def all_reduce(self, size: Expr) -> Expr:
        """Return the seconds of an all-reduce of `size` bytes."""
        return symbol("collective_slowdown") * (self._alpha() + 2 * self._wire(size) * self._slowest("reduce"))

    def all_gather(self, size: Expr) -> Expr:
        """Return the seconds of gathering `size` bytes in all (a reduce-scatter takes the same)."""
        return symbol("collective_slowdown") * (self._alpha() + self._wire(size) * self._slowest("gather"))

    reduce_scatter = all_gather

    def all_to_all(self, size: Expr) -> Expr:
        """Return the seconds in which every rank sends `size` bytes, an equal part of it to each rank.

        What leaves the node shares the node's network; what stays uses the links inside it.
        """
        outside = (self.n - self.n_in) / self.n
        inside = (self.n_in - 1) / self.n
        network = symbol("inter_bytes_per_s_per_node") / symbol("gpus_per_node") * symbol("inter_efficiency")
        links = symbol("intra_bytes_per_s") * symbol("intra_efficiency_gather")
        slowest = maximum(inside / links, outside * self.over * symbol("inter_slowdown") / network)
        return symbol("collective_slowdown") * (self._alpha() + size * slowest)

    def _wire(self, size: Expr) -> Expr:
        return size * (self.n - 1) / self.n

    def _alpha(self) -> Expr:
        """Start-up time; zero for a communicator of one rank."""
        several = minimum(1, self.n - 1)
        inside = several * symbol("intra_alpha") + (self.n_in - 1) * symbol("intra_alpha_rank")
        return inside + symbol("inter_alpha") * sp.log(self.n_out) / sp.log(2)

    def _slowest(self, kind: str) -> Expr:
        """Seconds per byte of the slower tier in use."""
        inside = minimum(1, self.n_in - 1) / (symbol("intra_bytes_per_s") * symbol(f"intra_efficiency_{kind}"))
        share = symbol("inter_bytes_per_s_per_node") * self.n_in / symbol("gpus_per_node")
        outside = symbol("inter_slowdown") * self.over * minimum(1, self.n_out - 1)
        outside /= share * symbol("inter_efficiency")
        return maximum(inside, outside)


def send(size: Expr) -> Expr:
    """Return the seconds of one point-to-point message between pipeline neighbours.

    `pp_inter` is 1 where neighbours sit in different nodes; then a device has its part of the node's network.
    """
    inter = symbol("pp_inter")
    start = symbol("intra_alpha")  # one launch: the doublings behind inter_alpha are a collective's
    inside = start + size / (symbol("intra_bytes_per_s") * symbol("intra_efficiency_gather"))
    rate = symbol("inter_bytes_per_s_per_node") * symbol("inter_efficiency") / symbol("gpus_per_node")
    return (1 - inter) * inside + inter * (start + symbol("inter_slowdown") * symbol("pp_over") * size / rate)
