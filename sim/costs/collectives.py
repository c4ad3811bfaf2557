"""Hierarchical alpha-beta times of collectives (busbw and algbw as nccl-tests defines them).

A communicator has `n` ranks, `n_in` of them in one node and `n_out` nodes. Its ring crosses the slower of
the two tiers it really uses: the links inside a node, or its share of the node's network, which all
communicators of the node use at once (share = n_in / gpus_per_node). One communicator may span both.

A message costs its start-up, its time on the wire, and a second start-up that sets in as it grows beyond
`intra_fill_bytes`: NCCL moves from its low-latency protocols (LL, LL128) to the one with the full rate (Simple).
Of the forms that were tried (p-norm, square root, the lower of two lines) that one predicts numbers of ranks and sizes
that it was not fitted to best.
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
"""Fitted per device: share of the links' rate that a ring's all-reduce and gather/scatter reach inside a node,
the same between nodes, start-up seconds of a communicator, per further rank in a node, per doubling of nodes."""

OPTIONAL = {"intra_own": 0.0, "intra_fill_s": 0.0, "intra_fill_bytes": 1.0, "intra_efficiency_switch": 0.0}
"""Further parameters and what stands for one that a profile lacks: time of a rank's own part of a ring over that of
another's, the second start-up's seconds (of an all-reduce; a gather has half its steps) and where it sets in, share of
the links' rate at which every rank passes an all-reduce through the switch (0: the switch cannot reduce)."""

RING_RANKS = 4
"""Up to so many ranks in a node NCCL prefers the ring to the switch's reduction (nccl-tests on 8 H200 and on NVLink 5,
stas00/ml-engineering network/README.md, SHARP)."""


HALF = sp.Rational(1, 2)


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
        """Return the seconds of an all-reduce of `size` bytes, by the switch where it reduces and that is faster."""
        ring = 2 * self._ring("reduce")
        switch = 1 / (symbol("intra_bytes_per_s") * symbol("intra_efficiency_switch"))
        chosen = symbol("in_switch_reduction") * minimum(1, maximum(0, self.n_in - RING_RANKS))
        inside = ring - chosen * maximum(0, ring - switch)
        return self._time(size, maximum(inside, 2 * self._others() * self._network()), 1)

    def all_gather(self, size: Expr) -> Expr:
        """Return the seconds of gathering `size` bytes in all (a reduce-scatter takes the same)."""
        return self._time(size, maximum(self._ring("gather"), self._others() * self._network()), HALF)

    reduce_scatter = all_gather

    def broadcast(self, size: Expr) -> Expr:
        """Return the seconds in which `size` bytes of one rank pass through all others, in a ring.

        As long as every rank takes to send that to the next one (`shift`).
        """
        inside = minimum(1, self.n_in - 1) / (symbol("intra_bytes_per_s") * symbol("intra_efficiency_gather"))
        return self._time(size, maximum(inside, self._network()), HALF)

    shift = broadcast

    def all_to_all(self, size: Expr) -> Expr:
        """Return the seconds in which every rank sends `size` bytes, an equal part of it to each rank.

        What leaves the node shares the node's network; what stays uses the links inside it.
        """
        outside = (self.n - self.n_in) / self.n
        inside = (self.n_in - 1) / self.n
        links = symbol("intra_bytes_per_s") * symbol("intra_efficiency_gather")
        slowest = maximum(inside / links, outside * self.over * symbol("inter_slowdown") / self._part_of_network())
        return symbol("collective_slowdown") * (self._alpha() + size * slowest)

    def once_per_rank(self, size: Expr, copies: Expr) -> Expr:
        """Return the seconds in which every rank sends each row of its `size` bytes once to each of the ranks that hold
        one of the `copies` experts of the row, which are any ranks alike.

        Between nodes a row goes once to every node, where it is passed on by the links (DeepEP, arXiv 2412.19437,
        section 3.2.2; HybridEP).
        """
        to_rank, to_node = (1 - (1 - part) ** copies for part in (1 / self.n, 1 / self.n_out))
        passed = (self.n_in - 1) * self.n_out * to_rank
        links = symbol("intra_bytes_per_s") * symbol("intra_efficiency_gather")
        outside = (self.n_out - 1) * to_node * self.over * symbol("inter_slowdown")
        slowest = maximum(passed / links, outside / self._part_of_network())
        return symbol("collective_slowdown") * (self._alpha() + size * slowest)

    def _part_of_network(self) -> Expr:
        """Bytes a second of a rank's part of its node's network."""
        return symbol("inter_bytes_per_s_per_node") / symbol("gpus_per_node") * symbol("inter_efficiency")

    def _time(self, size: Expr, slowest: Expr, steps: Expr) -> Expr:
        """Return start-up and wire together; slowest: seconds a byte; steps: over those of an all-reduce."""
        fill = steps * self._several() * symbol("intra_fill_s") / (size + symbol("intra_fill_bytes"))
        return symbol("collective_slowdown") * (self._alpha() + size * (slowest + fill))

    def _several(self) -> Expr:
        return minimum(1, self.n - 1)

    def _others(self) -> Expr:
        """Share of all bytes that a rank does not hold itself."""
        return (self.n - 1) / self.n

    def _alpha(self) -> Expr:
        """Start-up time; zero for a communicator of one rank."""
        inside = self._several() * symbol("intra_alpha") + (self.n_in - 1) * symbol("intra_alpha_rank")
        return inside + symbol("inter_alpha") * sp.log(self.n_out) / sp.log(2)

    def _ring(self, kind: str) -> Expr:
        """Seconds per byte that goes round once inside the node, a rank's own part being copied beside the others."""
        parts = (self.n - 1 + symbol("intra_own")) / self.n
        rate = symbol("intra_bytes_per_s") * symbol(f"intra_efficiency_{kind}")
        return minimum(1, self.n_in - 1) * parts / rate

    def _network(self) -> Expr:
        """Seconds per byte over the communicator's share of a node's network."""
        share = symbol("inter_bytes_per_s_per_node") * self.n_in / symbol("gpus_per_node")
        outside = symbol("inter_slowdown") * self.over * minimum(1, self.n_out - 1)
        return outside / (share * symbol("inter_efficiency"))


def send(size: Expr, inter: Expr) -> Expr:
    """Return the seconds of one point-to-point message between pipeline neighbours.

    `inter` is 1 where these sit in different nodes; then a device has its part of the node's network. Of several
    messages it is the share that does, and the seconds are their mean.
    """
    start = symbol("intra_alpha")  # one launch: the doublings behind inter_alpha are a collective's
    inside = start + size / (symbol("intra_bytes_per_s") * symbol("intra_efficiency_gather"))
    rate = symbol("inter_bytes_per_s_per_node") * symbol("inter_efficiency") / symbol("gpus_per_node")
    return (1 - inter) * inside + inter * (start + symbol("inter_slowdown") * symbol("pp_over") * size / rate)


def slowest_over_mean(size: Expr, inter: Expr, hops: Expr) -> Expr:
    """Return by how many seconds the longest message of a pipeline's `hops`, of which the share `inter` go between
    nodes, is longer than the mean one: nothing where all are of one kind."""
    longer, several = send(size, 1) - send(size, 0), maximum(hops, 1)
    some, others = minimum(1, inter * several), minimum(1, (1 - inter) * several)
    return maximum(some * (1 - inter) * longer, -others * inter * longer)


def mean_over_last(size: Expr, inter: Expr, hops: Expr) -> Expr:
    """Return by how many seconds the mean message of a pipeline's `hops`, of which the share `inter` go between nodes,
    is longer than the last one, which does only where all do: nodes hold equal numbers of neighbours."""
    last = maximum(0, 1 - (1 - inter) * maximum(hops, 1))
    return (inter - last) * (send(size, 1) - send(size, 0))
