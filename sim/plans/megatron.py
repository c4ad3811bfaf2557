"""Megatron-LM's arguments for a plan (megatron-core 0.16.1, Megatron-LM `megatron/training/arguments.py`)."""

import shlex
from collections.abc import Iterator

from sim.plans.exported import Exported
from sim.plans.orders import check_order, megatron_order
from sim.specs import InputError, Model, Plan

LOW_PRECISION = {
    "fp8": {"fp8-format": "hybrid"},
    "mxfp8": {"fp8-format": "e4m3", "fp8-recipe": "mxfp8"},
    "nvfp4": {"fp4-format": "e2m1", "fp4-recipe": "nvfp4"},
}
STRATEGY = {2: "optim_grads", 3: "optim_grads_params"}
"""Megatron-FSDP's --data-parallel-sharding-strategy by ZeRO stage."""

EXPRESSES = (
    "tp", "pp", "virtual_stages", "cp", "ep", "etp", "fsdp_shard", "rank_order", "stage_layers", "sequence_parallel",
    "global_batch", "micro_batch", "schedule", "microbatch_group_size", "recompute", "recompute_layers", "zero",
    "gradient_dtype", "overlap_dp", "precision", "fused_wgrad", "offload", "cross_entropy", "tp_comm_overlap",
    "token_dispatcher", "ep_overlap", "cuda_graphs", "layer_graphs",
    "recompute_experts",
)  # fmt: skip
"""Fields of a plan that the arguments say; dp follows from the number of processes."""

MODULES = ("core_attn", "layernorm", "moe_act", "mla_up_proj", "mlp", "moe", "shared_experts")
"""What `--recompute-modules` may name (core/transformer/transformer_config.py); the first where it names none."""

GRAPHED = "full_iteration"
"""The `--cuda-graph-scope` of all passes of a step."""

Words = Iterator[tuple[str, object]]


def megatron(made: Exported, stem: str) -> dict[str, str]:
    """Megatron-LM's arguments as shell text, one a line.

    Raises:
        InputError: the plan asks for what Megatron-LM cannot do, or its schedules run another order.
    """
    plan = made.plan
    group = plan.microbatch_group_size if plan.schedule == "interleaved" else plan.pp
    own = megatron_order(plan.pp, made.placed.microbatches, plan.virtual_stages, group)
    check_order(made.order, own, "Megatron-LM's schedules")
    words = [*_degrees(made), *_pipeline(made), *_memory(made), *_kernels(made)]
    lines = [" ".join((f"--{name}", *map(shlex.quote, _values(value)))) for name, value in words]
    return {f"{stem}.args": " \\\n".join(lines) + "\n"}


def _values(value: object) -> list[str]:
    """Return the words after a flag: none, one or several."""
    return [] if value is True else [str(each) for each in (value if isinstance(value, tuple) else (value,))]


def stack(model: Model) -> int:
    """Return `num_layers`, which for Megatron-LM's T5 is of the encoder and of the decoder each."""
    return model.encoder_layers if model.family == "encoder-decoder" else model.layers


def recomputed_modules(*, eager: bool, experts: bool, latent: bool, whole: bool = False) -> tuple[str, ...]:
    """Return the modules that a plan's selective recompute is of (`sim.costs.layers.block.recomputed`).

    whole: of all that experts do (`plan.recompute_experts`).
    """
    whole &= experts
    there = {"core_attn": eager, "layernorm": not eager, "moe_act": experts and not eager and not whole}
    there |= {"mla_up_proj": latent and not eager, "moe": whole}
    return tuple(name for name, is_there in there.items() if is_there)


def graphed_parts(*, experts: bool, mamba: bool) -> tuple[str, ...]:
    """Return the `--cuda-graph-scope` of a plan's `layer_graphs`."""
    there = {"attn": True, "mamba": mamba, "mlp": not experts, "moe_router": experts, "moe_preprocess": experts}
    return tuple(name for name, is_there in there.items() if is_there)


def _degrees(made: Exported) -> Words:
    plan, model = made.plan, made.model
    yield "num-layers", stack(model)
    if model.family == "encoder-decoder":
        yield "encoder-seq-length", model.encoder_seq
        yield "decoder-seq-length", model.seq
    else:
        yield "seq-length", model.seq
    yield "tensor-model-parallel-size", plan.tp
    yield "pipeline-model-parallel-size", plan.pp
    yield "context-parallel-size", plan.cp
    if made.model.experts:
        yield "num-experts", made.model.experts
        yield "expert-model-parallel-size", plan.ep
        yield "expert-tensor-parallel-size", plan.etp
        yield from _dispatcher(plan)
        yield "moe-grouped-gemm", True
    yield "micro-batch-size", plan.micro_batch
    yield "global-batch-size", plan.global_batch
    if plan.sequence_parallel:
        yield "sequence-parallel", True
    if plan.tp_comm_overlap and plan.tp > 1:
        yield "tp-comm-overlap", True
    if plan.rank_order == "tp-cp-pp-dp":
        yield "use-tp-pp-dp-mapping", True


def _dispatcher(plan: Plan) -> Words:
    """Yield who sends tokens to experts; by default every rank gathers all of them."""
    if plan.token_dispatcher == "alltoall":
        yield "moe-token-dispatcher-type", "alltoall"
    else:
        yield "moe-token-dispatcher-type", "flex"
        yield "moe-flex-dispatcher-backend", plan.token_dispatcher
    if plan.ep_overlap and plan.ep > 1:
        yield "overlap-moe-expert-parallel-comm", True


def _pipeline(made: Exported) -> Words:
    plan = made.plan
    if made.uneven:
        yield "pipeline-model-parallel-layout", layout(made.model, made.layers)
    elif plan.virtual_stages > 1:
        yield "num-virtual-stages-per-pipeline-rank", plan.virtual_stages
    if plan.virtual_stages > 1:
        yield "microbatch-group-size-per-virtual-pipeline-stage", plan.microbatch_group_size


def layout(model: Model, layers: tuple[int, ...]) -> str:
    """Return `pipeline_model_parallel_layout`: E embedding, t layers, m prediction modules, L loss, | of chunks."""
    parts = [f"t*{n}" if n > 1 else "t" * n for n in layers]
    return f"E{'|'.join(parts)}{'m' * model.mtp_layers}L"


def _memory(made: Exported) -> Words:
    plan, offload = made.plan, made.plan.offload
    if plan.zero:
        yield "use-distributed-optimizer", True
    if plan.zero > 1:
        yield "use-megatron-fsdp", True
        yield "data-parallel-sharding-strategy", STRATEGY[plan.zero]
        yield "ckpt-format", "fsdp_dtensor"  # the only one that Megatron-FSDP takes
    if plan.zero and made.copies > 1:
        yield "num-distributed-optimizer-instances", made.copies
    if plan.overlap_dp:
        yield "overlap-grad-reduce", True
        if plan.zero:
            yield "overlap-param-gather", True
    if plan.recompute != "none":
        yield "recompute-granularity", plan.recompute
    if plan.recompute == "selective":
        model, eager = made.model, made.model.attention == "eager"
        latent, whole = bool(model.kv_lora_rank), plan.recompute_experts
        modules = recomputed_modules(eager=eager, experts=model.experts > 0, latent=latent, whole=whole)
        yield "recompute-modules", modules
    if plan.recompute == "full":
        yield "recompute-method", "block" if plan.recompute_layers else "uniform"
        yield "recompute-num-layers", plan.recompute_layers or 1
    if offload.optimizer:
        yield "optimizer-cpu-offload", True
        yield "optimizer-offload-fraction", offload.optimizer
        yield "use-precision-aware-optimizer", True  # asserted beside it
    if offload.weights or offload.activations:
        yield "cpu-offloading-num-layers", _offloaded_layers(made)


def _offloaded_layers(made: Exported) -> int:
    """Return how many layers' activations go to host memory (`cpu_offloading_num_layers`: below all of them)."""
    offload, layers = made.plan.offload, stack(made.model)
    count = round(offload.activations * layers)
    if offload.weights or offload.activations != count / layers or count == layers:
        allowed = f"activations of k / {layers} with k < {layers}, and no weights (Megatron-LM offloads whole layers)"
        raise InputError("plan.offload", {"activations": offload.activations, "weights": offload.weights}, allowed)
    return count


def _kernels(made: Exported) -> Words:
    plan = made.plan
    if plan.precision != "fp32":
        yield "fp16" if plan.precision == "fp16" else "bf16", True
        yield from LOW_PRECISION.get(str(plan.precision), {}).items()
        sums = "grad-reduce-in-bf16" if plan.gradient_dtype == "bf16" else "accumulate-allreduce-grads-in-fp32"
        yield sums, True
    if made.model.attention == "eager":
        yield "attention-backend", "unfused"
    if plan.cross_entropy == "fused":
        yield "cross-entropy-loss-fusion", True
        yield "cross-entropy-fusion-impl", "te"  # the other keeps fp32 logits, as without fusion
    if plan.cuda_graphs:
        yield "cuda-graph-impl", "local"
        yield "cuda-graph-scope", GRAPHED
    elif plan.layer_graphs:
        yield "cuda-graph-impl", "transformer_engine"
        yield "cuda-graph-scope", graphed_parts(experts=made.model.experts > 0, mamba="M" in made.model.pattern)
    if not plan.fused_wgrad:
        yield "no-gradient-accumulation-fusion", True
