"""Models, servers and plans of Megatron-LM's PTD-P (arXiv 2104.04473), on run-level parameters that never saw it."""

from typing import Any

from sim.costs.run_level import RunLevelSet, run_level
from sim.engine.step import Engine, Step, simulate
from sim.specs import Cluster, Links, Model, Plan
from sim.validation.throughput import achieved

ERA: dict[str, Any] = {
    "overlap_dp": False, "core_modules": False, "precision": "fp16", "recompute": "full", "sequence_parallel": False,
}  # fmt: skip
"""What its Megatron-LM did, and was without."""


def level() -> RunLevelSet:
    """Return the run-level parameters that are fitted without the paper's runs."""
    return run_level("PTD-P (arXiv 2104.04473)")


def gpt(name: str, layers: int, hidden: int, heads: int) -> Model:
    """Return a GPT of the paper: 2,048 tokens, 51,200 words, attention that is not fused."""
    return Model(
        name=name, layers=layers, hidden=hidden, heads=heads, vocab=51200, seq=2048, dropout=0.1, attention="eager"
    )


def servers(nodes: int, node_bytes_per_s: float = 200e9) -> Cluster:
    """Return servers of eight A100; node_bytes_per_s: of the network, for one server."""
    return Cluster.of("a100-sxm-80gb", nodes=nodes, links=Links(inter_bytes_per_s_per_node=node_bytes_per_s))


def step(model: Model, cluster: Cluster, engine: Engine = "path", **plan: Any) -> Step:
    """Return a step as its Megatron-LM ran it, but for what `plan` says.

    Raises:
        InputError: the plan is not possible.
    """
    return simulate(model, cluster, Plan(**ERA | plan), engine, level())


def rate(model: Model, cluster: Cluster, **plan: Any) -> float:
    """Return the TFLOP/s per GPU of a step by the paper's equation 3; raises InputError as `step` does."""
    return achieved(step(model, cluster, **plan)) / 1e12


def gathered_gain(whole: Step, parts: Step, waited_for: bool = False) -> float:
    """Return by how many percent sending in parts is faster; waited_for: if both ends stood still for each message."""
    took = [_blocking(one) if waited_for else one for one in (whole, parts)]
    return 100 * (took[0].step_time_s / took[1].step_time_s - 1)


def _blocking(one: Step) -> Step:
    return simulate(one.model, one.cluster, one.plan.but(blocking_sends=True), level=one.level)
