"""Values of the declared symbols for a model, a cluster and one plan or a whole table of plans."""

from typing import Any

import numpy as np

from sim.costs.memory import parameter_symbols
from sim.costs.profile import Profile
from sim.specs.cluster import Cluster
from sim.specs.model import Model
from sim.specs.plan import PlacedPlan

STATISTICS = {"layernorm": 2, "rmsnorm": 1}


def model_values(model: Model) -> dict[str, float]:
    """Return the model's dimensions by symbol name."""
    names = ("layers", "hidden", "heads", "query_width", "kv_width", "ffn", "vocab", "seq")
    return {n: float(getattr(model, n)) for n in names} | parameter_symbols(model)


def cluster_values(cluster: Cluster, profile: Profile) -> dict[str, float]:
    """Return rates and fitted parameters by symbol name; a stated link latency replaces the fitted one."""
    links = cluster.links
    stated = {} if links.latency_s is None else {"intra_alpha": links.latency_s, "inter_alpha": links.latency_s}
    return (
        profile.values
        | stated
        | {
            "intra_bytes_per_s": links.intra_bytes_per_s,
            "inter_bytes_per_s_per_node": links.inter_bytes_per_s_per_node,
            "gpus_per_node": float(cluster.gpus_per_node),
        }
    )


def group_values(tp: Any, pp: Any, dp: Any, gpus_per_node: Any) -> dict[str, Any]:
    """Return the communicator shapes when tp is the innermost axis, then dp, and pp the outermost.

    Scalars or arrays of one shape. A group that does not divide its node straddles nodes: the greatest common
    divisor is the part that every group surely has in one node.
    """
    tp, dp, node = (np.asarray(v).astype(np.int64) for v in (tp, dp, gpus_per_node))
    tp_in = np.gcd(tp, node)
    dp_in = np.where(node % tp == 0, np.gcd(dp, np.maximum(1, node // tp)), 1)
    return {
        "tp_n": tp, "tp_in": tp_in, "tp_out": -(-tp // tp_in),
        "dp_n": dp, "dp_in": dp_in, "dp_out": -(-dp // dp_in),
        "pp_inter": np.where(tp * dp * pp > gpus_per_node, 1.0, 0.0),
    }  # fmt: skip


def switch_values(zero: Any, recompute: Any, sequence_parallel: Any) -> dict[str, Any]:
    """Return the 0/1 symbols of ZeRO stage (0-3), recompute (0 none, 1 selective, 2 full) and sequence parallel."""
    zero, recompute = np.asarray(zero), np.asarray(recompute)
    return {
        "zero1": 1.0 * (zero >= 1), "zero2": 1.0 * (zero >= 2), "zero3": 1.0 * (zero >= 3),
        "selective": 1.0 * (recompute == 1), "full": 1.0 * (recompute == 2),
        "sequence_parallel": np.asarray(sequence_parallel, dtype=float),
    }  # fmt: skip


GRADIENT_BYTES = {"fp32": 4.0, "bf16": 2.0}
RECOMPUTE = ("none", "selective", "full")


def plan_values(placed: PlacedPlan, cluster: Cluster) -> dict[str, Any]:
    """Return the symbols of one placed plan."""
    plan = placed.plan
    return {
        "tp": float(plan.tp), "pp": float(plan.pp), "virtual_stages": float(plan.virtual_stages),
        "micro_batch": float(plan.micro_batch), "microbatches": float(placed.microbatches),
        "microbatch_group_size": float(plan.microbatch_group_size),
        "overlap_dp": float(plan.overlap_dp), "gradient_bytes": GRADIENT_BYTES[plan.gradient_dtype],
        **group_values(plan.tp, plan.pp, placed.dp, cluster.gpus_per_node),
        **switch_values(plan.zero, RECOMPUTE.index(plan.recompute), plan.sequence_parallel),
    }  # fmt: skip
