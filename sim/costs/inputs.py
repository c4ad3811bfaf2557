"""Values of the declared symbols for a model, a cluster and one plan or a whole table of plans."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from math import ceil, gcd
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.costs.contention import contention_values
from sim.costs.kernels import ALIGNED, narrow
from sim.costs.memory import parameter_symbols
from sim.costs.mesh import Mesh, group_values, twins
from sim.costs.other_kernels import attention_time, scan_times
from sim.costs.profile import Profile, load_profile
from sim.specs.catalog import precision, precisions
from sim.specs.cluster import Cluster
from sim.specs.device import Device
from sim.specs.fields import InputError
from sim.specs.model import Model
from sim.specs.plan import RECOMPUTE, PlacedPlan, Plan
from sim.specs.precision import Precision

MODEL_SYMBOLS = (
    "hidden", "heads", "head_dim", "vocab", "seq", "kv_heads", "experts", "experts_per_token", "moe_ffn",
    "q_lora_rank", "kv_lora_rank", "rope_head_dim", "ssm_width", "ssm_heads", "ssm_state", "scan_chunk",
    "encoder_seq",
)  # fmt: skip


TILE = 128
"""Columns of an output tile of large 16-bit products; what a matrix lacks to whole tiles is computed all the same
(NVIDIA Deep Learning Performance guide, matrix products, tile quantization)."""


@lru_cache(maxsize=64)
def model_values(model: Model) -> MappingProxyType[str, float]:
    """Return the model's dimensions by symbol name; those of its kinds of layers carry the kind's index."""
    values = {n: float(getattr(model, n)) for n in MODEL_SYMBOLS}
    first = next(iter(model.blocks))
    values |= {
        "query_width": float(max(block.qk_width for block in model.blocks)),
        "v_width": float(first.v_width),
        "query_input": float(model.q_lora_rank or model.hidden),
        "ssm_states": 2.0 * model.ssm_groups * model.ssm_state,
        "expert_hidden": float(model.moe_latent or model.hidden),
        "expert_capacity": model.capacity_factor,
        "expert_imbalance": 0.0 if model.capacity_factor else model.imbalance,
        "head_passes": 1.0 + model.mtp_layers,
        "boundary_seq": float(model.tokens_per_sample),
        "patch_width": float(model.channels * model.patch**2),
        "tiled_head": float(TILE * ceil(max(block.qk_width for block in model.blocks) / model.heads / TILE)),
        "misaligned": float(model.head_dim % ALIGNED > 0),
        "adapter_rank": float(model.adapter_rank),
        "trained": model.trained_parameters / model.parameters if model.adapter_rank else 1.0,
        "qkv_bias": float(model.qkv_bias),
        "mlp_bias": float(model.mlp_bias),
        "kv_repeatable": 0.0 if model.kv_lora_rank else 1.0,
        **{f"{end}_tensors": float(n) for end, n in zip(("embedding", "head"), model.end_tensors, strict=True)},
    }
    for k, block in enumerate(model.blocks):
        values |= {f"seq_{k}": float(block.seq), f"keys_{k}": block.keys(), f"ffn_{k}": float(block.ffn)}
        values |= {f"core_flop_{k}": block.core_flop(), f"tensors_{k}": float(block.tensors)}
        values |= {f"reach_{k}": float(block.reach)}
    return MappingProxyType(values | parameter_symbols(model))


def layer_counts(model: Model, parts: Sequence[int]) -> NDArray[np.float64]:
    """Return the layers of every kind in consecutive parts of the stack: [kind, part].

    Prediction modules sit in the last part.
    """
    letters = [block.letter for block in model.blocks]
    edges = np.concatenate([[0], np.cumsum(parts)])
    stack = np.array([[letter == other for letter in model.pattern] for other in letters], dtype=float)
    upto = np.concatenate([np.zeros((len(letters), 1)), np.cumsum(stack, axis=1)], axis=1)
    counts = np.asarray(np.diff(upto[:, edges], axis=1))
    if model.mtp_layers:
        counts[letters.index("P"), -1] = model.mtp_layers
    return counts


def cluster_values(cluster: Cluster, profile: Profile) -> dict[str, float]:
    """Return rates and fitted parameters by symbol name; a stated link latency replaces the fitted one."""
    links = cluster.links
    stated = {} if links.latency_s is None else {"intra_alpha": links.latency_s, "inter_alpha": links.latency_s}
    return (
        profile.faster(cluster.multipliers.clock, cluster.multipliers.memory_rate)
        | stated
        | wires(cluster)
        | _switch(cluster, profile)
        | {
            "intra_bytes_per_s": links.intra_bytes_per_s,
            "inter_bytes_per_s_per_node": links.inter_bytes_per_s_per_node,
            "gpus_per_node": float(cluster.gpus_per_node),
            "workspace_bytes": profile.memory.workspace_bytes,
            "in_tiles": float(not cluster.hardware.on_host),
            "on_host": float(cluster.hardware.on_host),
        }
        | profile.issue
    )


def _switch(cluster: Cluster, profile: Profile) -> dict[str, float]:
    """Return whether the switch inside a node reduces, and how fast; by default where the profile knows the rate."""
    share, asked = profile.collectives.get("intra_efficiency_switch", 0.0), cluster.links.in_switch_reduction
    if asked and not share:
        raise InputError("cluster.links.in_switch_reduction", True, f"false: profile {profile.name} knows no such rate")
    on = bool(share) if asked is None else asked
    return {"in_switch_reduction": float(on), "intra_efficiency_switch": share or 1.0}


def wires(cluster: Cluster) -> dict[str, float]:
    """Return what decides which links a communicator uses: devices of a fast domain and of a leaf, oversubscription."""
    links = cluster.links
    return {
        "domain": float(domain(cluster)),
        "leaf_gpus": float((links.rail_nodes or cluster.nodes) * cluster.gpus_per_node),
        "oversubscription": float(links.oversubscription or 1.0),
    }


def domain(cluster: Cluster) -> int:
    """Return the devices that a job really finds in one fast domain.

    A domain of 72 is used in aligned parts: the largest divisor of all devices that is not larger.
    """
    size = cluster.domain_gpus
    return int(min(cluster.gpus, max(gcd(cluster.gpus, d) for d in range(max(1, size // 2), size + 1))))


def switch_values(zero: Any, recompute: Any, sequence_parallel: Any, share: Any = 1.0) -> dict[str, Any]:
    """Return the 0/1 symbols of ZeRO stage (0-3), recompute (0 none, 1 selective, 2 full) and sequence parallel.

    share: of a chunk's layers recompute.
    """
    zero, recompute = np.asarray(zero), np.asarray(recompute)
    return {
        "zero1": 1.0 * (zero >= 1), "zero2": 1.0 * (zero >= 2), "zero3": 1.0 * (zero >= 3),
        "selective": 1.0 * (recompute == 1), "full": 1.0 * (recompute == 2),
        "sequence_parallel": np.asarray(sequence_parallel, dtype=float), "recomputed_share": share,
    }  # fmt: skip


def check_precision(plan: Plan, profile: Profile) -> None:
    """Refuse a precision that the profile's times do not serve: those of fp32 kernels say nothing about 16-bit ones.

    A profile without a `dtype` is of 16-bit kernels; from these follow all recipes with tensor units, but only of the
    library's products: that others use 8- and 4-bit units as well as 16-bit ones, nobody knows.

    Raises:
        InputError: with the precisions that it serves.
    """
    single = profile.dtype == "float32"
    able = [name for name, known in precisions.items() if (known.gemm.forward == "fp32") == single]
    if plan.precision not in able:
        measured = "fp32" if single else "16-bit"
        raise InputError(
            "plan.precision", plan.precision, f"{', '.join(able)}: profile {profile.name} is of {measured} kernels"
        )
    recipe = precision(plan.precision)
    if plan.product_kernel != "library" and recipe.operand_bytes < recipe.activation_bytes.value:
        known = f"profile {profile.name} has timed {plan.product_kernel} products in 16 bit only"
        allowed = f"library with precision {plan.precision}: {known}"
        raise InputError("plan.product_kernel", plan.product_kernel, allowed)


GRADIENT_BYTES = {"fp32": 4.0, "bf16": 2.0}


def setting_values(plan: Plan, cluster: Cluster) -> dict[str, float]:
    """Return the symbols of a plan's settings that no search varies: precision, fusion, overlap, framework.

    Raises:
        InputError: the device has no graphs of kernels, or not the plan's kernels or precision.
    """
    for name in ("cuda_graphs", "layer_graphs"):
        if getattr(plan, name) and cluster.hardware.on_host:
            raise InputError(f"plan.{name}", True, f"false on {cluster.hardware.title}: for GPUs alone")
    if plan.fused_experts and plan.precision != "mxfp8":
        raise InputError("plan.fused_experts", True, f"false with precision {plan.precision}: for mxfp8 alone")
    return {
        "overlap_dp": float(plan.overlap_dp),
        "gradient_bytes": GRADIENT_BYTES[plan.gradient_dtype],
        "compiled": float(plan.compiled),
        "issued": float(not plan.cuda_graphs),
        "layer_graphs": float(plan.layer_graphs and plan.core_modules),
        "accumulate_bytes": accumulate_bytes(plan),
        "scatter_gather": float(plan.scatter_gather),
        "tp_overlap": float(plan.tp_overlap),
        "tp_comm_overlap": float(plan.tp_comm_overlap),
        "ep_overlap": float(plan.ep_overlap),
        "dispatch_once": float(plan.token_dispatcher != "alltoall"),
        "hybrid_ep": float(plan.token_dispatcher == "hybridep"),
        "fused_experts": float(plan.fused_experts and plan.core_modules),
        "experts_again": float(plan.recompute_experts),
        "blocking_sends": float(plan.blocking_sends),
        "native": float(plan.framework == "torch"),
        "core": float(plan.core_modules),
        "ring": float(plan.framework == "torch"),
        "attention_kernel": attention_time(plan.attention_kernel, cluster),
        **scan_times(cluster),
        "recurrent_apart": float(plan.recurrent_kernel == "default"),
        "either_layout": float(plan.recurrent_kernel == "fused"),
        "composite_norm": composite_norm(plan),
        "fused_loss": float(plan.cross_entropy == "fused"),
        "autograd_loss": float(plan.cross_entropy == "autograd"),
        "tempo": float(plan.tempo),
        "one_kernel": _one_kernel(plan, load_profile(cluster.profile)),
        **order_values(plan),
        **precision_values(plan.precision, cluster),
        **offload_values(plan, cluster),
    }  # fmt: skip


def order_values(plan: Plan) -> dict[str, float]:
    """Return what costs must know of the plan's order: whether the last stage runs a microbatch's backward right after
    its forward; whether weight gradients are made apart from the rest of a backward; copies of the model on a rank;
    whether steps never flush, and whether gradients of one may be reduced beside all passes of the next."""
    order = plan.pipeline
    return {
        "turns": float(order.turns), "splits": float(order.splits), "copies": float(order.copies),
        "endless": float(order.asynchronous), "delays": float(order.updates == "group"),
    }  # fmt: skip


def _one_kernel(plan: Plan, profile: Profile) -> float:
    """Return 1 where the plan's cross-entropy is one kernel that the profile has not timed itself.

    One that it has counts as it is, unless torch's own ("eager") was timed.
    """
    timed = profile.model_of(("cross_entropy", "forward"))
    return float(plan.cross_entropy == "fused" and (timed.op != "cross_entropy" or timed.implementation == "eager"))


FUSED_RMS_NORM = 2025.75
"""Date of PyTorch 2.9, the first release with a CUDA kernel for `rms_norm` (October 2025)."""


def composite_norm(plan: Plan) -> float:
    """Return 1 where PyTorch runs an RMS norm as a row of kernels: before it had one for it, and not compiled."""
    year = plan.software_year
    return float(plan.framework == "torch" and not plan.compiled and year is not None and year < FUSED_RMS_NORM)


def offload_values(plan: Plan, cluster: Cluster, beside: bool = False) -> dict[str, float]:
    """Return the shares that host memory keeps and what copies take; nothing where nothing is offloaded.

    beside: other stages of the pipeline offload.

    Raises:
        InputError: something is offloaded, and nobody says how fast the host link is.
    """
    if not (plan.offload.used or beside):
        return {}
    shares = {f"offload_{each.name}": getattr(plan.offload, each.name) for each in fields(plan.offload)}
    return shares | copy_values(plan, cluster)


def copy_values(plan: Plan, cluster: Cluster) -> dict[str, float]:
    """Return the symbols of `costs.offload` beside the shares: the rate of copies, and the backwards of a chunk in a
    step that find no gradients summed (of two copies of the model each has one).

    Raises:
        InputError: nobody says how fast the host link is.
    """
    rate = cluster.host_bytes_per_s
    if rate is None:
        raise InputError(
            "cluster.links.host_bytes_per_s", None, f"required with plan.offload: {cluster.device} states no host link"
        )
    return {
        "host_bytes_per_s": rate,
        "first_sums": float("inf") if plan.pipeline.updates == "microbatch" else float(plan.copies),
    }


def accumulate_bytes(plan: Plan) -> float:
    """Return the bytes moved per parameter and microbatch to sum weight gradients, beyond a product's own output.

    Fused, the product reads and writes the sum instead; else a kernel reads the output and the sum and writes it.
    """
    both, output = 2 * GRADIENT_BYTES[plan.gradient_dtype], precision(plan.precision).activation_bytes.value
    return both - output if plan.fused_wgrad else both + output


def runs_on(recipe: Precision, device: Device) -> bool:
    """Return whether the device has the tensor units of a recipe; those that read block scales came with 4 bits."""
    if recipe.name == "bf16" and not device.bfloat16:
        return False
    scaled = recipe.scale_bytes_per_element.value > 0 and "fp4" not in device.rates
    return not scaled and {recipe.gemm.forward, recipe.gemm.dgrad, recipe.gemm.wgrad} <= set(device.rates)


def profiles_of(cluster: Cluster, products: str | None = None) -> list[Profile]:
    """Return the profiles of a cluster's `members`, each as `load_profile` does.

    Raises:
        InputError: as `load_profile`; one that a group names and that does not exist under the group's field.
    """
    found = []
    for n, member in enumerate(cluster.members):
        try:
            found.append(load_profile(member.profile, products))
        except InputError as error:
            if not cluster.groups or error.path != "cluster.profile":
                raise
            raise InputError(f"cluster.groups.{n}.profile", error.value, error.allowed) from None
    return found


def check_served(plan: Plan, cluster: Cluster) -> None:
    """Refuse a precision that a device of the cluster, or its profile, does not serve; raises InputError."""
    for member, profile in zip(cluster.members, profiles_of(cluster), strict=True):
        check_precision(plan, profile)
        precision_values(plan.precision, member)


def precision_values(name: str, cluster: Cluster) -> dict[str, float]:
    """Return rates over the profile's, sizes of elements and operands, and casts of a recipe on the cluster's device.

    Raises:
        InputError: the device has no such tensor units.
    """
    recipe, device = precision(name), cluster.hardware
    able = [p for p, known in precisions.items() if runs_on(known, device)]
    if name not in able and recipe.gemm.forward != "fp32":
        raise InputError("plan.precision", name, f"a precision that {device.title} has units for: {', '.join(able)}")
    element = recipe.activation_bytes.value
    low = recipe.operand_bytes < element
    rates = {f"rate_{d}": device.speedup(getattr(recipe.gemm, d)) for d in ("forward", "dgrad", "wgrad")}
    return rates | {
        "low_precision": float(low),
        "operand_bytes": recipe.operand_bytes,
        "input_bytes": recipe.operand_bytes,
        "element_bytes": element,
        "master_bytes": recipe.master_bytes.value,
        "cast_bytes": recipe.cast_bytes_per_element.value,
        "cast_rate": recipe.cast_rate.value if recipe.cast_rate else 1.0,
        "weight_copy_bytes": recipe.weight_copy_bytes.value,
    }


def rank_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what one tensor-parallel rank has of matrices that do not divide evenly, by symbol name.

    Key (or value) columns: more ranks than heads repeat them. Whether rows of the logits are `narrow`: Megatron-LM pads
    a vocabulary, so that they never are.
    """
    rows = narrow(np.ceil(values["vocab"] / values["tp"]))
    return {
        "kv_columns": np.maximum(values["kv_heads"] / values["tp"], values["kv_repeatable"]) * values["head_dim"],
        **{f"vocab_{kind}": values["native"] * is_so for kind, is_so in rows.items()},
    }


def plan_values(model: Model, placed: PlacedPlan, cluster: Cluster) -> dict[str, Any]:
    """Return the symbols of one placed plan; layer counts are arrays over chunks and over ranks."""
    plan = placed.plan
    counts = layer_counts(model, plan.split(model))
    of_rank = np.zeros((len(counts), plan.pp))
    for chunk, rank in enumerate(plan.rank_of):
        of_rank[:, rank] += counts[:, chunk % counts.shape[1]]
    sizes = {"tp": plan.tp, "cp": plan.cp, "dp": placed.dp, "pp": plan.pp}
    mesh = Mesh(plan.rank_order, sizes, plan.ep, plan.etp, plan.fsdp_shard or 0)
    groups = twins(group_values(mesh, wires(cluster)), plan.copies)
    values = {
        **{k: float(v) for k, v in sizes.items() if k != "dp"},
        "ep": float(plan.ep), "etp": float(plan.etp), "virtual_stages": float(plan.virtual_stages),
        "micro_batch": float(plan.micro_batch), "microbatches": float(placed.microbatches),
        "microbatch_group_size": float(plan.microbatch_group_size),
        **{f"layers_{k}": row for k, row in enumerate(counts)},
        **{f"rank_layers_{k}": row for k, row in enumerate(of_rank)},
        "blocks_beside_head": min(1.0, float(counts[:, -1].sum())),
        **setting_values(plan, cluster),
        **groups,
        **contention_values(load_profile(cluster.profile).contention, groups["shard_in"], groups["shard_out"]),
        **switch_values(plan.zero, RECOMPUTE.index(plan.recompute), plan.sequence_parallel, _share(plan, counts)),
    }  # fmt: skip
    return values | rank_values(model_values(model) | values)


def _share(plan: Plan, counts: NDArray[np.float64]) -> Any:
    """Return which share of every chunk's layers recomputes."""
    if not plan.recompute_layers:
        return 1.0
    share = np.minimum(1.0, plan.recompute_layers / np.maximum(1.0, counts.sum(axis=0)))
    if plan.virtual_stages == 1:
        return share
    if np.ptp(share):
        allowed = "left out where a rank's chunks are of different lengths"
        raise InputError("plan.recompute_layers", plan.recompute_layers, allowed)
    return float(share[0])  # what is counted per rank has no room for a share of every chunk
