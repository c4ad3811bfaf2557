"""What a user should know of an exported plan that is no reason to refuse it."""

from collections.abc import Iterator, Mapping
from typing import Any

from sim.costs.layers.block import repeats_some
from sim.engine.step import Step
from sim.plans.targets import RUN_BY_TORCH, deepspeed_overlaps
from sim.plans.torchtitan import in_pieces
from sim.specs import Model, Plan
from sim.specs.job import Target

BLOCKS = {
    "norm": "rmsnorm", "positions": "rope", "gated_mlp": True, "attention": "flash", "whole_qk_norm": False,
    "parallel_block": False,
}  # fmt: skip
"""What torchtitan's language models share (0.3.0: `models/common/decoder.py`, `rope.py`, `feed_forward.py`; its
attention stores no scores and normalises queries and keys head by head, `attention.py` and `config_utils.py`)."""

OF_MEGATRON: Mapping[str, Any] = {
    "framework": "megatron", "tp_overlap": True, "scatter_gather": False, "blocking_sends": False, "compiled": False,
    "core_modules": True, "attention_kernel": "flash", "optimizer_barrier": True, "fused_experts": False,
}  # fmt: skip
"""What Megatron-LM runs of settings that none of its arguments say."""

OF_TORCHTITAN: Mapping[str, Any] = {
    "fused_wgrad": False, "tp_overlap": False, "tp_comm_overlap": False, "blocking_sends": False, "core_modules": False,
    "cross_entropy": "autograd", "attention_kernel": "flash", "ep_overlap": False, "fused_experts": False,
    "recompute_experts": False, "layer_graphs": False,
}  # fmt: skip
"""What torchtitan runs of settings that its configuration does not say as a plan does, nor limits."""

OF_PROGRAMS = (
    "framework", "core_modules", "compiled", "cuda_graphs", "layer_graphs", "fused_wgrad", "tp_overlap",
    "tp_comm_overlap", "cross_entropy", "attention_kernel", "optimizer_barrier", "token_dispatcher", "ep_overlap",
    "fused_experts", "recompute_experts",
)  # fmt: skip
"""Settings that DeepSpeed leaves to the program whose modules it wraps."""

VOCABULARY_PARTS = 128
"""Megatron-LM's `make_vocab_size_divisible_by` (`megatron/training/tokenizer`: `_vocab_size_with_padding`)."""


def notes(step: Step, target: Target) -> Iterator[str]:
    """Yield where what was simulated differs from what `target` runs."""
    if step.model.adapter_rank:
        adapters = f"model.adapter_rank {step.model.adapter_rank} on {step.model.adapters_on}"
        yield f"predicted with {adapters}: {target} has no setting for it, the program adds them and freezes the rest"
    if target in RUN_BY_TORCH:
        if step.plan.framework != "torch":
            yield f"predicted with framework {step.plan.framework}: plan.framework torch has torchtitan's memory law"
        # What follows from the framework is told with it.
        plan = step.placed.at(0).plan.but(framework="torch")
        said = {"tp_comm_overlap": True} if target == "torchtitan-0.3" and in_pieces(plan) else {}
        yield from _differing(step.model, plan, {**OF_TORCHTITAN, **said}, "torchtitan")
        if plan.token_dispatcher != "alltoall" and plan.ep > 1:  # torchtitan/models/common/config_utils.py
            sender = f"plan.token_dispatcher {plan.token_dispatcher}"
            yield f"predicted with {sender}: in torchtitan the network says so, by moe_comm_backend"
        if step.model.table:
            yield _traced(step.model, "torchtitan")
        elif strange := _strange(step.model):
            yield f"torchtitan has no network with {', '.join(strange)}: {step.model.name} must be added to it"
    if target == "deepspeed":
        yield from _of_deepspeed(step)
    if target == "megatron":
        yield from _of_megatron(step.model, step.placed.at(0).plan)


def _of_deepspeed(step: Step) -> Iterator[str]:
    """Yield what its engine does whatever the plan says, and what its configuration leaves to the program."""
    plan = step.placed.at(0).plan
    if plan.overlap_dp and step.placed.dp > 1 and not deepspeed_overlaps(plan):
        yield "predicted with overlap_dp true: this plan's gradients DeepSpeed reduces after the backward pass"
    # runtime/zero/stage_1_and_2.py, `allreduce_bucket`; runtime/engine.py, `buffered_allreduce_fallback`.
    if plan.zero in (1, 2) and step.placed.dp > 1:
        yield f"predicted with gradients reduced into ZeRO-{plan.zero}'s shards: DeepSpeed all-reduces them by default"
    if plan.offload.gradients not in (0, plan.offload.optimizer):
        share = f"{plan.offload.gradients:g}"
        yield f"predicted with offload.gradients {share}: DeepSpeed has no such share, gradients follow the optimizer's"
    usual = plan.but(**dict.fromkeys(OF_PROGRAMS))
    stated = [name for name in OF_PROGRAMS if getattr(plan, name) != getattr(usual, name)]
    if kernels := ", ".join(f"plan.{name} {_said(getattr(plan, name))}" for name in stated):
        yield f"predicted with {kernels}: DeepSpeed's configuration does not say so, the program decides"
    if plan.ep > 1 and (step.model.mlp_bias or not step.model.gated_mlp):  # deepspeed/moe/ep_experts.py, GroupedExperts
        yield f"DeepSpeed's AutoEP has gated experts without biases: those of {step.model.name} must be added to it"
    if plan.recompute == "full" and (plan.pp == 1 or plan.offload.activations):
        calls = "configure" if plan.pp > 1 else "configure, and checkpoint for every layer"
        yield f"DeepSpeed's engine reads activation_checkpointing nowhere: the program calls its checkpointing.{calls}"
    if plan.pp > 1:
        if not plan.blocking_sends:
            yield "predicted with blocking_sends false: DeepSpeed's pipeline stands still while it sends (p2p.py)"
        split = f"PipelineModule(..., num_stages={plan.pp}, partition_method='type:<class of a layer>')"
        yield f"DeepSpeed reads pipeline.stages nowhere: the program gives {split}"


def _traced(model: Model, target: str) -> str:
    return f"{target} builds networks of its own: {model.name}, which was traced, must be added to it"


def _strange(model: Model) -> list[str]:
    held = {name: getattr(model, name) for name, usual in BLOCKS.items() if getattr(model, name) != usual}
    return [f"model.{name} {_said(value)}" for name, value in held.items()]


def _differing(model: Model, plan: Plan, own: Mapping[str, Any], target: str) -> Iterator[str]:
    """Yield which settings of a plan are others than a target's `own`, of those that move anything."""
    unmoved = {"tp_overlap", "tp_comm_overlap"} if plan.tp == 1 else set()
    unmoved |= {"ep_overlap"} if plan.ep == 1 else set()
    unmoved |= set() if model.experts else {"fused_experts", "recompute_experts"}
    unmoved |= {"scatter_gather"} if plan.pp == 1 or plan.tp == 1 or plan.sequence_parallel else set()
    unmoved |= {"blocking_sends"} if plan.pp == 1 else set()
    unmoved |= {"attention_kernel"} if model.attention == "eager" or plan.attention_kernel != "flash-1" else set()
    for name, value in own.items():
        if getattr(plan, name) != value and name not in unmoved:
            yield f"predicted with plan.{name} {_said(getattr(plan, name))}: {target} has {_said(value)}"


def _of_megatron(model: Model, plan: Plan) -> Iterator[str]:
    if model.table:
        yield _traced(model, "Megatron-LM")
    yield from _differing(model, plan, OF_MEGATRON, "Megatron-LM")
    if plan.cross_entropy == "autograd":
        yield "predicted with plan.cross_entropy autograd: Megatron-LM has in-place and fused"
    if model.activation == "relu" and not model.gated_mlp:
        yield "Megatron-LM has no argument for model.activation relu: activation_func must be set in the program"
    # core/transformer/attention.py, SelfAttention; transformer_layer.py, TransformerLayerSubmodules.
    absent = {"whole_qk_norm": model.qk_norm and model.whole_qk_norm, "block_norms": model.block_norms > 2}
    for name in (name for name, held in absent.items() if held):
        yield f"Megatron-LM has no layers with model.{name} {_said(getattr(model, name))}: they must be added to it"
    if model.parallel_block:  # core/transformer/transformer_layer.py, `forward`
        yield "predicted with model.parallel_block true: Megatron-LM's layers run the MLP after attention"
    if plan.recompute == "selective" and not repeats_some(model, "megatron"):
        yield f"selective recompute drops nothing of {model.name}: its norms are part of products' kernels"
    share = VOCABULARY_PARTS * plan.tp
    if not model.table and model.family != "vit" and model.vocab % share:
        padded = -(-model.vocab // share) * share
        yield f"predicted with model.vocab {model.vocab}: Megatron-LM pads it to {padded}, a multiple of {share}"
    if plan.zero == 3 and "M" in model.pattern:  # core/distributed/fsdp/mcore_fsdp_adapter.py, fsdp_unit_modules
        yield "Megatron-FSDP frees the gathered weights of TransformerLayer alone: the program must name MambaLayer too"
    # megatron/training/arguments.py asserts either.
    if plan.zero > 1:
        yield "CUDA_DEVICE_MAX_CONNECTIONS must not be 1 with Megatron-FSDP"
    elif plan.tp > 1 or plan.cp > 1:
        yield "CUDA_DEVICE_MAX_CONNECTIONS must be 1 with tp > 1 or cp > 1 on devices before Blackwell"


def _said(value: Any) -> str:
    return str(value).lower()
