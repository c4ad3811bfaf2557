"""DeepSpeed's JSON configuration for a plan (DeepSpeed 0.19.8, `runtime/config.py` and the sections' own modules)."""

import json
from typing import Any

from sim.plans.exported import Exported
from sim.plans.orders import check_order, deepspeed_order, megatron_order

EXPRESSES = (
    "tp", "pp", "dp", "ep", "global_batch", "micro_batch", "schedule", "recompute", "zero", "gradient_dtype",
    "overlap_dp", "precision", "offload",
)  # fmt: skip
"""Fields of a plan that the configuration says; overlap_dp with ZeRO only, of offload all but the gradients' share."""


def deepspeed(made: Exported, stem: str) -> dict[str, str]:
    """DeepSpeed's ds_config, as JSON.

    Raises:
        InputError: the plan asks for what DeepSpeed cannot do, or its pipeline engine runs another order.
    """
    plan, m = made.plan, made.placed.microbatches
    # Without a pipeline the engine runs each microbatch forward and backward in turn, as one rank of any 1F1B does.
    own = deepspeed_order(plan.pp, m) if plan.pp > 1 else megatron_order(1, m)
    check_order(made.order, own, "DeepSpeed's TrainSchedule")
    config: dict[str, Any] = {
        # With AutoTP DeepSpeed counts this over tensor-parallel ranks too; left out, it follows from the other two.
        **({"train_batch_size": plan.global_batch} if plan.tp == 1 else {}),
        "train_micro_batch_size_per_gpu": plan.micro_batch,
        "gradient_accumulation_steps": m,
        "zero_optimization": _zero(made),
    }
    if plan.precision != "fp32":
        config[str(plan.precision)] = {"enabled": True}
    wide = plan.gradient_dtype == "fp32"
    config["data_types"] = {"grad_accum_dtype": "fp32" if wide else str(plan.precision)}
    if plan.pp > 1:
        config["pipeline"] = {"stages": plan.pp, "activation_checkpoint_interval": int(plan.recompute == "full")}
    if plan.recompute == "full":
        config["activation_checkpointing"] = {"cpu_checkpointing": plan.offload.activations > 0}
    if plan.tp > 1:
        config["tensor_parallel"] = {"autotp_size": plan.tp}
    if plan.ep > 1:
        config["expert_parallel"] = {"enabled": True, "autoep_size": plan.ep}
    return {f"{stem}.json": json.dumps(config, indent=1) + "\n"}


def _zero(made: Exported) -> dict[str, Any]:
    plan, offload = made.plan, made.plan.offload
    section: dict[str, Any] = {"stage": plan.zero}
    if plan.zero:
        section["overlap_comm"] = plan.overlap_dp
    if offload.optimizer:
        section["offload_optimizer"] = {"device": "cpu", "pin_memory": True, "ratio": offload.optimizer}
    if offload.weights:
        section["offload_param"] = {"device": "cpu", "pin_memory": True}
    return section
