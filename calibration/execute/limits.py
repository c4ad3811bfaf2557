"""What of a model and a plan is really run here; the rest is refused with one clear error."""

from collections.abc import Mapping
from typing import Literal

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
    "dropout": 0.0,
    "qk_norm": False,
    "sinks": False,
    "positions": "learned",
    "type_vocab": 0,
    "window": 0,
    "experts": 0,
    "kv_lora_rank": 0,
    "mtp_layers": 0,
    "table": None,
}
"""GPT-2's network, with or without biases and a tied head."""

ONES = ("tp", "pp", "cp", "ep", "etp", "virtual_stages")
PLAN: Mapping[str, tuple[object, ...]] = {
    "zero": (0, 1),
    "recompute": ("none",),
    "gradient_dtype": ("fp32",),
    "schedule": ("none",),
    "compiled": (False,),
}
PRECISION: Mapping[Device, tuple[str, ...]] = {"cpu": ("fp32",), "cuda": ("fp32", "bf16")}
MOST_RANKS: Mapping[Device, int] = {"cpu": 2, "cuda": 1}
MOST_PARAMETERS = 500_000_000
"""A small network: states of 16 bytes a parameter stay below 8 GB a process."""


def check_model(model: Model) -> None:
    """Return if the small GPT is that model.

    Raises:
        InputError: it has something else in it, or is too large to be trained beside other work.
    """
    for name, wanted in MODEL.items():
        if getattr(model, name) != wanted:
            shown = str(wanted).lower() if wanted is not None else "none"
            raise InputError(f"model.{name}", getattr(model, name), f"{shown} {HERE} (GPT-2's network)")
    if set(model.pattern) != {"T"}:
        raise InputError("model.pattern", model.pattern, f"T for every layer {HERE}")
    if model.kv_heads != model.heads or model.query_width != model.hidden:
        raise InputError("model.heads", model.heads, f"as many key-value heads, together as wide as hidden, {HERE}")
    if model.parameters > MOST_PARAMETERS:
        raise InputError("model", f"{model.parameters} parameters", f"at most {MOST_PARAMETERS} {HERE}")


def as_executed(plan: Plan) -> Plan:
    """Return the plan with what PyTorch itself does where frameworks differ: sums of gradients and the loss."""
    return plan.but(framework="torch", cross_entropy="autograd", fused_wgrad=False)


def executable(model: Model, cluster: Cluster, plan: Plan, device: Device) -> PlacedPlan:
    """Return the placed plan if this machine's `device` can execute it as the simulator means it.

    Raises:
        InputError: with the first thing that it cannot.
    """
    check_model(model)
    if cluster.hardware.on_host != (device == "cpu"):
        kind = "a core of a host processor" if device == "cpu" else "a GPU"
        raise InputError("cluster.device", cluster.device, f"{kind} {HERE} on {device}")
    placed = plan.on(model, cluster)
    for name in ONES:
        if getattr(plan, name) != 1:
            raise InputError(f"plan.{name}", getattr(plan, name), f"1 {HERE}")
    most = MOST_RANKS[device]
    if placed.dp > most:
        raise InputError("plan.dp", placed.dp, f"{f'1 to {most}' if most > 1 else '1'} on {device} {HERE}")
    for name, allowed in {**PLAN, "precision": PRECISION[device]}.items():
        if getattr(plan, name) not in allowed:
            text = " or ".join(str(a).lower() for a in allowed)
            raise InputError(f"plan.{name}", getattr(plan, name), f"{text} {HERE} on {device}")
    if plan.offload.used:
        raise InputError("plan.offload", "some", f"none {HERE}")
    if plan.zero and plan.overlap_dp and placed.dp > 1:
        raise InputError("plan.overlap_dp", True, f"false with zero 1 {HERE}")
    return placed
