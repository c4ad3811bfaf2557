"""What each framework can run, as limits that hold for one plan or for arrays of plans alike.

`emit` refuses a plan by the first limit that it breaks, and the tuner leaves out what breaks any. Only what the
source of a release says is listed, each with its place; what only says how its own kernels run (`fused_wgrad`,
`tp_overlap`, `framework`, `cross_entropy`, ...) limits nothing (`sim.plans.notes` tells of it), layers and kernels that
it has not do. A search takes from `RUN_BY_TORCH`, `SENDS_BLOCK` and `OVERLAPS` what its target decides. No target runs
stages with tensor- or data-parallel degrees of their own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.plans.limit import Asked, Limit, among
from sim.plans.megatron_limits import ASSERTED
from sim.plans.torch_limits import OFFLOADED_TOGETHER, ONE_COPY, TORCHTITAN, TORCHTITAN_MAIN, WHOLE_BACKWARD
from sim.specs import InputError, Model, PlacedPlan, Plan, StagePlan
from sim.specs.job import Target

SCHEDULE_NAMES = {
    "gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B", "looped-bfs": "LoopedBFS",
    "interleaved-zb": "InterleavedZeroBubble", "zbv": "ZBVZeroBubble", "dualpipev": "DualPipeV",
}  # fmt: skip
"""Schedules that torch builds by name (`torch.distributed.pipelining.schedules.get_schedule_class`)."""


def _schedules(names: tuple[str, ...], reason: str) -> Limit:
    return Limit(
        "schedule",
        reason,
        lambda a: among(a.pp > 1) & ~np.isin(a.schedule, ("none", *names)),
        lambda a: ", ".join(names),
    )


def _one_rank(reason: str) -> Limit:
    return Limit(
        "schedule",
        reason,
        lambda a: (np.asarray(a.pp) == 1) & ~np.isin(a.schedule, ("none", "1f1b")),
        lambda a: "none with pp 1: every microbatch's forward is followed by its backward",
    )


def _order(orders: tuple[str, ...], reason: str) -> Limit:
    return Limit("rank_order", reason, lambda a: among(a.rank_order not in orders), lambda a: " or ".join(orders))


def _not_offloaded_by_deepspeed(a: Asked) -> Any:
    zero, optimizer, activations = np.asarray(a.zero), a.share("optimizer"), a.share("activations")
    lowest = 0 if optimizer == 0 else 1 if optimizer == 1 else 3
    return (
        (zero < lowest)
        | (among(a.share("weights") > 0) & ((zero < 3) | (a.share("weights") < 1)))
        | (a.share("gradients") > 0 and optimizer == 0)
        | (among(activations > 0) & ((activations < 1) | (np.asarray(a.recompute) != "full")))
    )


DEGREES = Limit(
    "stages",
    "stages with tensor- or data-parallel degrees of their own",
    lambda a: among(a.degrees),
    lambda a: "stages of equal tp, dp and micro_batch",
)
ALIKE = Limit(
    "stages",
    "stages treated differently",
    lambda a: among(a.techniques),
    lambda a: "stages that differ in their layers alone",
)
ALL_LAYERS = Limit(
    "recompute_layers",
    "recompute in some layers of a stage",
    lambda a: among(a.some_layers),
    lambda a: "left out: all layers recompute or none",
)


def _own_kernels(name: str) -> tuple[Limit, ...]:
    return (
        Limit(
            "product_kernel",
            f"{name} takes the library's matrix products",
            lambda a: among(a.product_kernel != "library"),
            lambda a: f"library ({name} has no other matrix products)",
        ),
        Limit(
            "tempo",
            f"{name} has none of Tempo's layers",
            lambda a: among(a.tempo),
            lambda a: f"false ({name} has none of Tempo's layers)",
        ),
    )


def _no_recurrent(name: str) -> Limit:
    return Limit(
        "model",
        f"{name} has no recurrent layers",
        lambda a: among(a.recurrent),
        lambda a: f"a network without LSTM and GRU layers ({name} has none)",
    )


TORCH = (DEGREES, ONE_COPY, WHOLE_BACKWARD, OFFLOADED_TOGETHER)
"""DDP (zero 0), with ZeroRedundancyOptimizer (1; tensor-parallel parameters through
`torch.distributed.tensor.parallel.ddp`: tried on torch 2.13), FSDP2 without and with `reshard_after_forward` (2, 3),
DTensor's tensor, sequence and context parallelism, a DeviceMesh in any order, `torch.utils.checkpoint` on any layers,
PipelineStage around any layers."""

RELEASE = (
    *TORCHTITAN,
    # models/: transformers alone.
    _no_recurrent("torchtitan"),
    *_own_kernels("torchtitan"),
    _order(("tp-cp-dp-pp",), "torchtitan's device mesh has tp inside, then cp, dp and pp"),
    _one_rank("torchtitan accumulates gradients without a pipeline"),
    ALIKE,
    # distributed/activation_checkpoint.py wraps every block.
    ALL_LAYERS,
)
"""torchtitan 0.3.0."""

MEGATRON = (
    # core/models/: transformers and Mamba.
    _no_recurrent("Megatron-LM"),
    *_own_kernels("Megatron-LM"),
    ALIKE,
    # core/ssm/mamba_block.py, _select_layers_for_pipeline_parallel: num_layers over the ranks, no virtual stages.
    Limit(
        "schedule",
        "Megatron-LM's Mamba has no virtual stages",
        lambda a: among(a.mamba) & (np.asarray(a.schedule) == "interleaved"),
        lambda a: "none or 1f1b: Megatron-LM's Mamba has no virtual stages",
    ),
    Limit(
        "stage_layers",
        "Megatron-LM's Mamba has as many layers on every stage",
        lambda a: among(a.mamba and a.uneven),
        lambda a: "the same for every stage (Megatron-LM's Mamba)",
    ),
    # core/pipeline_parallel/schedules.py, get_forward_backward_func: no pipelining, with and without interleaving.
    _schedules(("1f1b", "interleaved"), "Megatron-LM's schedules are 1F1B and interleaved 1F1B"),
    _one_rank("Megatron-LM accumulates gradients without a pipeline"),
    # forward_backward_pipelining_with_interleaving, there.
    Limit(
        "microbatch_group_size",
        "Megatron-LM's groups are no larger than the batch",
        lambda a: (np.asarray(a.schedule) == "interleaved") & (np.asarray(a.group) > a.microbatches),
        lambda a: f"at most the {a.microbatches} microbatches (Megatron-LM)",
    ),
    # core/transformer/transformer_config.py: "recompute_num_layers must be None" with selective.
    Limit(
        "recompute_layers",
        "Megatron-LM's selective recompute is of all layers",
        lambda a: among(a.some_layers) & (np.asarray(a.recompute) == "selective"),
        lambda a: "left out with recompute selective (Megatron-LM)",
    ),
    # core/distributed/distributed_data_parallel_config.py: use_distributed_optimizer (1), Megatron-FSDP's
    # optim_grads (2) and optim_grads_params (3); nothing in its source says that a pipeline drives FSDP.
    Limit(
        "zero",
        "Megatron-LM shards gradients and weights by FSDP, without a pipeline",
        lambda a: among(a.pp > 1) & (np.asarray(a.zero) > 1),
        lambda a: "0 or 1 with pp > 1 (2 and 3 are Megatron-FSDP's, without a pipeline)",
    ),
    # core/parallel_state.py, initialize_model_parallel: "Now we support tp-dp-pp and tp-pp-dp orders".
    _order(("tp-cp-dp-pp", "tp-cp-pp-dp"), "Megatron-LM's orders are tp-dp-pp and tp-pp-dp"),
    # core/transformer/moe/moe_layer.py: MoELayer.forward refuses to train otherwise, whether experts are spread or not.
    Limit(
        "sequence_parallel",
        "Megatron-LM's experts with tp > 1 need sequence parallelism",
        lambda a: among(a.tp > 1) & among(a.experts) & ~among(a.sequence_parallel),
        lambda a: "true with tp > 1 and experts (Megatron-LM)",
    ),
    # core/optimizer/optimizer_config.py: optimizer_offload_fraction; core/transformer/transformer_config.py: layers'
    # activations and weights (cpu_offloading_num_layers) without a pipeline and without recompute.
    Limit(
        "offload",
        "Megatron-LM offloads layers without a pipeline and recompute",
        lambda a: (
            (a.share("gradients") > 0)
            | (among(a.share("activations") + a.share("weights") > 0))
            & (among(a.pp > 1) | (np.asarray(a.recompute) != "none"))
        ),
        lambda a: "a share of the optimizer; of activations and weights with pp 1 and recompute none (Megatron-LM)",
    ),
    *ASSERTED,
)
"""megatron-core 0.16.1. Any layers per stage, none among them, by `pipeline_model_parallel_layout`
(core/transformer/pipeline_parallel_layer_layout.py, `validate_layer_layout`); full recompute by
`recompute_method` block with `recompute_num_layers` a stage."""

DEEPSPEED = (
    # runtime/engine.py wraps any module of the user's; none of it is an LSTM of other kernels.
    Limit(
        "recurrent_kernel",
        "DeepSpeed takes torch's recurrent layers",
        lambda a: among(a.recurrent and a.recurrent_kernel != "cudnn"),
        lambda a: "cudnn (DeepSpeed has no recurrent layers but torch's)",
    ),
    # runtime/pipe/engine.py sends a tensor or a tuple of tensors: an LSTM's tuple holds another one.
    Limit(
        "pp",
        "DeepSpeed's pipeline passes on tensors, not states of recurrent layers",
        lambda a: among(a.recurrent) & (np.asarray(a.pp) > 1),
        lambda a: "1: DeepSpeed's pipeline passes on tensors, not the states that recurrent layers return",
    ),
    *_own_kernels("DeepSpeed"),
    ALIKE,
    # runtime/pipe/module.py: activation_checkpoint_interval groups all layers.
    ALL_LAYERS,
    # runtime/pipe/engine.py: "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism".
    Limit(
        "zero",
        "DeepSpeed's pipeline takes ZeRO-0 and 1",
        lambda a: among(a.pp > 1) & (np.asarray(a.zero) > 1),
        lambda a: "0 or 1 with pp > 1 (DeepSpeed's pipeline engine)",
    ),
    # runtime/pipe/schedule.py: TrainSchedule; its DualPipeVSchedule belongs to a module class of the user's program
    # (runtime/pipe/dualpipev.py), no configuration names it, and it runs W with I.
    _schedules(("1f1b",), "DeepSpeed's configuration names no schedule but 1F1B"),
    _one_rank("DeepSpeed accumulates gradients without a pipeline"),
    # runtime/config.py, runtime/precision_config.py: fp16, bf16, or neither.
    Limit(
        "precision",
        "DeepSpeed's configuration has no 8- and 4-bit training",
        lambda a: ~np.isin(a.precision, ("fp32", "fp16", "bf16")),
        lambda a: "fp32, fp16 or bf16 (DeepSpeed)",
    ),
    # runtime/engine.py, _do_optimizer_sanity_check: "unsupported mix" of model and gradient type without ZeRO.
    Limit(
        "gradient_dtype",
        "DeepSpeed sums gradients in the weights' type without ZeRO",
        lambda a: (np.asarray(a.zero) == 0) & (np.asarray(a.precision) != "fp32") & (a.gradient_dtype == "fp32"),
        lambda a: "bf16 with zero 0 and 16-bit weights (DeepSpeed)",
    ),
    Limit(
        "recompute",
        "DeepSpeed checkpoints whole layers",
        lambda a: np.asarray(a.recompute) == "selective",
        lambda a: "none or full (DeepSpeed's activation checkpoints are of whole layers)",
    ),
    # runtime/pipe/module.py, _partition_layers: uniform, parameters or type:, no list.
    Limit(
        "stage_layers",
        "DeepSpeed's stages are split evenly",
        lambda a: among(a.uneven),
        lambda a: "the same for every stage (DeepSpeed's partition_method)",
    ),
    # Ulysses exchanges heads by all-to-all (deepspeed/sequence/layer.py): another plan than a ring of keys and values.
    Limit(
        "cp",
        "DeepSpeed has no ring of keys and values",
        lambda a: np.asarray(a.cp) > 1,
        lambda a: "1 (DeepSpeed's sequence parallelism is Ulysses)",
    ),
    # module_inject/auto_tp.py, layers.py: all-reduces, whole sequences between layers.
    Limit(
        "sequence_parallel",
        "DeepSpeed's AutoTP has no sequence parallelism",
        lambda a: among(a.tp > 1) & among(a.sequence_parallel),
        lambda a: "false (DeepSpeed's AutoTP)",
    ),
    # runtime/pipe/topology.py: PipeModelDataParallelTopology(axes=['pipe', 'data', 'model']).
    _order(("tp-cp-dp-pp", "tp-dp-cp-pp"), "DeepSpeed's topology has tp inside, then dp and pp"),
    # runtime/engine.py, _configure_tensor_parallel_states: AutoTP makes the data-parallel groups, of all ranks;
    # runtime/pipe/engine.py: "assert self.dp_world_size == self.grid.data_parallel_size".
    Limit(
        "tp",
        "DeepSpeed's AutoTP knows no pipeline",
        lambda a: among(a.tp > 1) & (np.asarray(a.pp) > 1),
        lambda a: "1 with pp > 1 (DeepSpeed's AutoTP)",
    ),
    # module_inject/auto_ep_folding.py, validate_folding_global: etp is "reserved", folding "requires
    # expert_parallel.autoep_size > 1", and its offload "is not validated yet". Experts may spread over ranks of tp.
    Limit(
        "etp",
        "DeepSpeed splits no expert",
        lambda a: among(a.etp > 1),
        lambda a: "1 (DeepSpeed's expert_tensor_parallel_size is reserved)",
    ),
    Limit(
        "ep",
        "DeepSpeed's experts with tp > 1 are spread",
        lambda a: among(a.experts) & (np.asarray(a.tp) > 1) & (np.asarray(a.ep) == 1),
        lambda a: "2 or more with tp > 1 (DeepSpeed's AutoEP)",
    ),
    # module_inject/auto_ep_presets/: layers are found as model.layers.N.mlp; runtime/pipe/module.py names them N.
    Limit(
        "ep",
        "DeepSpeed's AutoEP finds no layers in a pipeline",
        lambda a: among(a.pp > 1) & (np.asarray(a.ep) > 1),
        lambda a: "1 with pp > 1 (DeepSpeed's AutoEP finds no layers in a PipelineModule)",
    ),
    Limit(
        "offload",
        "DeepSpeed's experts with tp > 1 offload no states",
        lambda a: among(a.experts and any(a.states)) & (np.asarray(a.tp) > 1),
        lambda a: "activations alone with experts and tp > 1 (DeepSpeed)",
    ),
    # runtime/config.py: "MiCS ZeRO-3 sharding has been removed"; hpZ shards a second copy of the weights.
    Limit(
        "fsdp_shard",
        "DeepSpeed shards over all data-parallel ranks",
        lambda a: among(a.partial) & (a.shard != np.asarray(a.dp) * a.cp),
        lambda a: "left out (DeepSpeed's MiCS is no more)",
    ),
    # runtime/zero/offload_config.py: optimizer "Valid with stage 1, 2, and 3", ratio "Only valid with ZeRO Stage 3",
    # parameters "Valid only with stage 3"; runtime/activation_checkpointing: cpu_checkpointing of all checkpoints.
    Limit(
        "offload",
        "DeepSpeed offloads by ZeRO stage",
        _not_offloaded_by_deepspeed,
        lambda a: (
            "the whole optimizer from zero 1, a share of it and all weights with zero 3, gradients with the "
            "optimizer, all activations with recompute full (DeepSpeed)"
        ),
    ),
)
"""DeepSpeed 0.19.8, its paths below `deepspeed/`."""

RUN_BY_TORCH: tuple[Target, ...] = ("torchtitan", "torchtitan-0.3")
"""Targets whose memory law, loss and products are PyTorch's own."""

SENDS_BLOCK: tuple[Target, ...] = ("deepspeed",)
"""Targets whose pipelines stand still while they send (deepspeed/runtime/pipe/p2p.py)."""


def deepspeed_overlaps(plan: Asked | Plan) -> NDArray[np.bool_]:
    """Return whether `overlap_comm` makes DeepSpeed reduce gradients beside the backward pass.

    Without ZeRO (`runtime/engine.py`, `allreduce_gradients`), in a pipeline ("Pipeline parallelism does not support
    overlapped communication") and in its BF16_Optimizer (`_do_optimizer_sanity_check`) they wait for its end.
    """
    zero, pp = np.asarray(plan.zero), np.asarray(plan.pp)
    summed_apart = plan.gradient_dtype == "fp32" and not plan.offload.optimizer
    bf16_optimizer = (np.asarray(plan.precision) == "bf16") & summed_apart
    return np.asarray((zero > 1) | (zero == 1) & (pp == 1) & ~bf16_optimizer)


OVERLAPS: Mapping[Target, Callable[[Asked | Plan], NDArray[np.bool_]]] = {"deepspeed": deepspeed_overlaps}
"""Whether gradients are reduced beside the backward pass where a plan has `overlap_dp`; elsewhere they always are."""

LIMITS: Mapping[Target, tuple[Limit, ...]] = {
    "torch": TORCH, "torchtitan": (*RELEASE, *TORCHTITAN_MAIN), "torchtitan-0.3": RELEASE, "megatron": MEGATRON,
    "deepspeed": DEEPSPEED, "any": (),
}  # fmt: skip


def refusals(model: Model, placed: PlacedPlan, target: Target) -> Iterator[InputError]:
    """Yield an error per limit of `target` that the plan or a stage of it breaks, in the order of the table."""
    plan = placed.plan
    every = [Asked.of(model, placed), *(Asked.of(model, placed.at(s)) for s in range(len(plan.stages)))]
    for limit in LIMITS[target]:
        broken = [k for k, each in enumerate(every) if np.any(limit.broken(each))]
        if not broken:
            continue
        # What the plan itself leaves out and a stage says is told of that stage.
        stages = broken[1:] if broken[0] == 0 and getattr(plan, limit.knob, model) is None else []
        at = (stages or broken)[0]
        own = plan.stages[at - 1] if at else plan
        field = f"plan.stages[{at - 1}].{limit.knob}" if at and hasattr(own, limit.knob) else f"plan.{limit.knob}"
        value = getattr(own, limit.knob) if hasattr(own, limit.knob) else getattr(plan, limit.knob, model.name)
        if limit.knob == "stages":
            value = f"stages that differ in {', '.join(_differing(plan.stages))}"
        yield InputError("model" if limit.knob == "model" else field, value, limit.allowed(every[at]))


UNSEARCHED = ("model", "product_kernel", "recurrent_kernel", "tempo")
"""What limits may name that no search changes; tempo where it is no knob."""


def unsearched_refusals(model: Model, plan: Plan, target: Target) -> Iterator[InputError]:
    """Yield an error per limit of `target` that the network or the kernels of `plan` break, whatever a search does."""
    asked = Asked.least(model, plan)
    for limit in LIMITS[target]:
        if limit.knob in UNSEARCHED and np.any(limit.broken(asked)):
            network = limit.knob == "model"
            path, value = ("model", model.name) if network else (f"plan.{limit.knob}", getattr(plan, limit.knob))
            yield InputError(path, value, limit.allowed(asked))


def _differing(stages: Sequence[StagePlan]) -> list[str]:
    """Return the settings in which stages differ."""
    return [f.name for f in fields(StagePlan) if len({getattr(one, f.name) for one in stages}) > 1]
