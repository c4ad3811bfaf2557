"""What of a model and a plan is really run here; the rest is refused with one clear error."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Literal

from sim.costs.run_level import RunLevelSet, level_of
from sim.plans.traffic import alike
from sim.schedules import Kind, Schedule
from sim.specs import Cluster, InputError, Model, PlacedPlan, Plan

Device = Literal["cpu", "cuda"]

HERE = "in what is executed"
MODEL: Mapping[str, object] = {
    "family": "decoder",
    "norm": "layernorm",
    "embedding_norm": False,
    "block_norms": 2,
    "parallel_block": False,
    "gated_mlp": False,
    "activation": "gelu",
    "dropout": 0.0,
    "qk_norm": False,
    "sinks": False,
    "positions": "learned",
    "type_vocab": 0,
    "window": 0,
    "experts": 0,
    "kv_lora_rank": 0,
    "mtp_layers": 0,
    "adapter_rank": 0,
    "table": None,
}
"""GPT-2's network, with or without biases and a tied head."""

PLAN: Mapping[str, tuple[object, ...]] = {
    "cp": (1,),
    "ep": (1,),
    "etp": (1,),
    "gradient_dtype": ("fp32",),
    "fsdp_shard": (None,),
    "product_kernel": ("library", "task-mapped"),
}
PRECISION = ("fp32", "bf16")
"""fp16 would need a scale of the loss, and steps that are skipped where it was too large."""
MOST_RANKS: Mapping[Device, int] = {"cpu": 8, "cuda": 8}
MOST_PARAMETERS: Mapping[Device, int] = {"cpu": 500_000_000, "cuda": 4_000_000_000}
"""Small networks: states of 16 bytes a parameter stay below 8 GB a process, or within one GPU."""


def check_model(model: Model, device: Device = "cpu") -> None:
    """Return if the small GPT is that model.

    Raises:
        InputError: it has something else in it, or is too large to be trained beside other work.
    """
    if model.parameters > MOST_PARAMETERS[device]:
        raise InputError("model", f"{model.parameters} parameters", f"at most {MOST_PARAMETERS[device]} {HERE}")
    for name, wanted in MODEL.items():
        if getattr(model, name) != wanted:
            shown = str(wanted).lower() if wanted is not None else "none"
            raise InputError(f"model.{name}", getattr(model, name), f"{shown} {HERE} (GPT-2's network)")
    if set(model.pattern) != {"T"}:
        raise InputError("model.pattern", model.pattern, f"T for every layer {HERE}")
    if model.kv_heads != model.heads:
        raise InputError("model.kv_heads", model.kv_heads, f"as many as heads = {model.heads} {HERE}")
    if model.query_width != model.hidden:
        raise InputError("model.head_dim", model.head_dim, f"hidden / heads = {model.hidden / model.heads:g} {HERE}")


def executed_level(cluster: Cluster) -> RunLevelSet:
    """Return the run level of what is executed here: the fitted one, without what frameworks do between two steps.

    Runs that it is fitted to load data, write logs and check for failures; the program here only trains.
    """
    level = level_of(cluster)
    return replace(level, parameters=replace(level.parameters, step_overhead_s=0.0))


def as_executed(plan: Plan) -> Plan:
    """Return the plan with what PyTorch itself does where frameworks differ.

    Sums of gradients and the loss; tensor-parallel collectives are waited for; every tensor-parallel rank sends the
    whole of a pipeline message; only plain data parallelism reduces gradients beside the backward pass.
    """
    alone = plan.pp == plan.tp == 1 and plan.zero == 0 and not plan.stages
    return plan.but(
        framework="torch",
        cross_entropy="autograd",
        core_modules=False,
        fused_wgrad=False,
        tp_overlap=False,
        tp_comm_overlap=False,
        cuda_graphs=False,
        layer_graphs=False,
        fused_experts=False,
        scatter_gather=plan.at(0).sequence_parallel,
        overlap_dp=plan.overlap_dp and alone,
    )


def executable(model: Model, cluster: Cluster, plan: Plan, device: Device) -> PlacedPlan:
    """Return the placed plan if this machine's `device` can execute it as the simulator means it.

    Raises:
        InputError: with the first thing that it cannot.
    """
    check_model(model, device)
    if cluster.hardware.on_host != (device == "cpu"):
        kind = "a core of a host processor" if device == "cpu" else "a GPU"
        raise InputError("cluster.device", cluster.device, f"{kind} {HERE} on {device}")
    placed = plan.on(model, cluster)
    if not alike(plan):
        raise InputError("plan.stages", "different degrees", f"the same tp, dp and micro_batch on all {HERE}")
    for name, allowed in {**PLAN, "precision": PRECISION}.items():
        if getattr(plan, name) not in allowed:
            text = " or ".join("left out" if a in (None, ()) else str(a).lower() for a in allowed)
            raise InputError(f"plan.{name}", getattr(plan, name), f"{text} {HERE} on {device}")
    if placed.gpus > MOST_RANKS[device]:
        raise InputError("plan", f"{placed.gpus} ranks", f"at most {MOST_RANKS[device]} on {device} {HERE}")
    for own in dict.fromkeys(placed.at(stage) for stage in range(plan.pp)):
        _check_products(own, device)
        _check_tempo(own.plan)
        _check_compiled(own.plan, device)
        _check_offload(model, own.plan)
        _check_split(model, own.plan)
        _check_shards(model, own)
        _check_schedule(model, own)
    return placed


def _check_products(placed: PlacedPlan, device: Device) -> None:
    """Task-mapped products: whole ones of whole layers, whose two gradients are made in one backward."""
    plan = placed.plan
    if plan.product_kernel == "library":
        return
    if device != "cpu":
        raise InputError("plan.product_kernel", plan.product_kernel, f"library {HERE} on {device}")
    given = f"with product_kernel {plan.product_kernel} {HERE}"
    _check_only({"tp": (1,), "pp": (1,), "zero": (0, 1), "recompute": ("none", "full")}, plan, given)
    if plan.precision != "fp32":
        raise InputError("plan.precision", plan.precision, f"fp32 {given}")


def _check_tempo(plan: Plan) -> None:
    """Tempo's layers: whole ones, whose gradients of input and weights are made in one backward."""
    if plan.tempo:
        _check_only({"tp": (1,), "pp": (1,), "zero": (0, 1)}, plan, f"with tempo true {HERE}")


def _check_compiled(plan: Plan, device: Device) -> None:
    """Compiled layers, each for itself as torchtitan compiles them: whole ones of plain torch, with a compiler here."""
    if not plan.compiled:
        return
    only = {"tp": (1,), "pp": (1,), "zero": (0, 1), "recompute": ("none",), "tempo": (False,)}
    _check_only({**only, "product_kernel": ("library",)}, plan, f"with compiled true {HERE}")
    if plan.offload.activations:
        raise InputError("plan.offload.activations", plan.offload.activations, f"0 with compiled true {HERE}")
    if lacking := lacking_compiler(device):
        raise InputError("plan.compiled", True, f"false: {lacking}")


def lacking_compiler(device: Device) -> str:
    """Return what torch.compile lacks on this machine; empty for nothing."""
    compiler = os.environ.get("CXX", "g++")
    if device == "cpu" and shutil.which(compiler) is None:
        return f"torch.compile needs a C++ compiler; no {compiler} here"
    if device == "cuda" and find_spec("triton") is None:
        return "torch.compile needs triton, which is not installed"
    return ""


def _check_only(only: Mapping[str, tuple[object, ...]], plan: Plan, given: str) -> None:
    for name, allowed in only.items():
        if getattr(plan, name) not in allowed:
            raise InputError(f"plan.{name}", getattr(plan, name), f"{' or '.join(map(str, allowed))} {given}")


def _check_split(model: Model, plan: Plan) -> None:
    for name, size in (("vocab", model.vocab), ("ffn", model.ffn), ("heads", model.heads)):
        if size % plan.tp:
            raise InputError(f"model.{name}", size, f"a multiple of plan.tp = {plan.tp} {HERE}")
    if plan.sequence_parallel and model.seq % plan.tp:
        raise InputError("model.seq", model.seq, f"a multiple of plan.tp = {plan.tp} with sequence_parallel")
    if plan.tp > 1 and model.head_bias:
        raise InputError("model.head_bias", True, f"false with tp > 1 {HERE}")
    if 0 in plan.split(model):
        raise InputError("plan.stage_layers", plan.split(model), f"one layer or more on every stage {HERE}")


def _check_offload(model: Model, plan: Plan) -> None:
    """Weights and gradients stay: only what waits for its backward or its update leaves."""
    for name in ("weights", "gradients"):
        if share := getattr(plan.offload, name):
            raise InputError(f"plan.offload.{name}", share, f"0 {HERE}: passes read them where they are")
    if plan.offload.optimizer and plan.zero > 1:
        raise InputError("plan.offload.optimizer", plan.offload.optimizer, f"0 with zero > 1 {HERE} (FSDP2's own Adam)")
    share = plan.offload.activations
    if share and plan.recompute == "selective":
        raise InputError(
            "plan.offload.activations", share, "0 with selective recompute: what it keeps passes no hook of autograd"
        )
    if any(abs(share * layers - round(share * layers)) > 1e-6 for layers in plan.split(model)):
        raise InputError("plan.offload.activations", share, f"a share of whole layers of every stage {HERE}")
    if plan.offload.used and plan.pipeline.asynchronous:
        raise InputError("plan.offload", "some", f"none with schedule {plan.schedule} {HERE}")


def _check_shards(model: Model, placed: PlacedPlan) -> None:
    plan, n = placed.plan, placed.dp
    if plan.zero < 2:
        return
    if n == 1:
        raise InputError("plan.zero", plan.zero, f"0 or 1 on one data-parallel rank {HERE}")
    if plan.tp * plan.pp > 1:
        raise InputError("plan.zero", plan.zero, f"0 or 1 with tp or pp > 1 {HERE}")
    for name in ("vocab", "hidden", "max_positions"):
        if getattr(model, name) % n:
            raise InputError(
                f"model.{name}", getattr(model, name), f"a multiple of the ranks, {n}: FSDP fills up shards"
            )


def _check_schedule(model: Model, placed: PlacedPlan) -> None:
    plan = placed.plan
    if plan.copies > 1:
        raise InputError("plan.schedule", plan.schedule, "one copy of the model (PyTorch's runtime has one direction)")
    if not plan.pipeline.asynchronous:
        return
    for name, value in (("tp", plan.tp), ("dp", placed.dp)):
        if value > 1:
            raise InputError(f"plan.{name}", value, f"1 with schedule {plan.schedule} {HERE}")
    if plan.precision != "fp32":
        raise InputError("plan.precision", plan.precision, f"fp32 with schedule {plan.schedule}: versions are masters")
    if model.tied_embeddings:
        allowed = f"false with schedule {plan.schedule}: first and last stage update at different times"
        raise InputError("model.tied_embeddings", True, allowed)


def check_order(order: Schedule, plan: Plan) -> None:
    """Return if PyTorch's runtime runs an order of the plan's pipeline as it is meant.

    Raises:
        InputError: it takes the losses of another order of microbatches, or a backward is split that cannot be.
    """
    last = order.stages - 1
    forwards = [a.microbatch for rank in order.actions for a in rank if (a.stage, a.kind) == (last, Kind.F)]
    if forwards != sorted(forwards):
        allowed = f"F of stage {last} in the order of microbatches (PyTorch's runtime numbers losses by it)"
        raise InputError("order", f"{last}F{forwards[0]} first", allowed)
    splits = any(a.kind is Kind.I for rank in order.actions for a in rank)
    if splits and plan.recompute != "none":
        raise InputError("plan.recompute", plan.recompute, "none where I and W are apart: each would recompute")
    if splits and plan.offload.activations:
        raise InputError(
            "plan.offload.activations", plan.offload.activations, "0 where I and W are apart: each would fetch"
        )
