"""torchtitan command-line flags for a plan (torchtitan `--parallelism.*`, `--training.*`)."""

from collections.abc import Iterator

from sim.engine.step import Step
from sim.specs import InputError, Plan

SCHEDULE_NAMES = {
    "gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B", "looped-bfs": "LoopedBFS",
    "interleaved-zb": "InterleavedZeroBubble", "zbv": "ZBVZeroBubble", "dualpipev": "DualPipeV",
}  # fmt: skip
"""Schedules that torch builds by name (`torch.distributed.pipelining.schedules.get_schedule_class`)."""


def torchtitan(step: Step) -> str:
    """Return the flags as one line each.

    Raises:
        InputError: the plan asks for what torchtitan's flags cannot say; the schedule CSV says any order.
    """
    plan, placed = step.plan, step.placed
    if step.model.table and not step.model.table.seq:
        raise InputError("model", step.model.name, "a network that reads tokens (torchtitan counts batches in tokens)")
    for field, value, allowed in _refusals(step):
        raise InputError(f"plan.{field}", value, allowed)
    flags = {
        "parallelism.data_parallel_replicate_degree": placed.dp if plan.zero == 0 else placed.dp // _shard(step),
        "parallelism.data_parallel_shard_degree": 1 if plan.zero == 0 else _shard(step),
        "parallelism.fsdp_reshard_after_forward": "always" if plan.zero == 3 else "never",
        "parallelism.tensor_parallel_degree": plan.tp,
        "parallelism.pipeline_parallel_degree": plan.pp,
        "training.num_tokens_per_microbatch_per_dp_rank": plan.micro_batch * step.model.seq,
        "training.global_batch_size": plan.global_batch,
        "training.seq_len": step.model.seq,
        "activation_checkpoint.mode": plan.recompute,
    }
    if plan.cp > 1:
        flags["parallelism.context_parallel_degree"] = plan.cp
    if step.model.experts:
        flags["parallelism.expert_parallel_degree"] = plan.ep
        flags["parallelism.expert_tensor_parallel_degree"] = plan.etp
    if plan.compiled:
        flags["compile.enable"] = "true"
    if plan.pp > 1:
        flags |= {
            "parallelism.pipeline_parallel_schedule": SCHEDULE_NAMES[plan.schedule],
            "parallelism.num_pp_microbatches": placed.microbatches,
            "parallelism.pipeline_parallel_layers_per_stage": step.model.layers // placed.stages,
        }
    return "".join(f"--{name}={value}\n" for name, value in flags.items())


def _shard(step: Step) -> int:
    """Return the data-parallel ranks of one FSDP copy; torchtitan adds the context-parallel ranks itself."""
    return step.placed.shard // step.plan.cp


def _refusals(step: Step) -> Iterator[tuple[str, object, str]]:
    """Yield (field, value, allowed) of what the flags cannot express."""
    plan, microbatches = step.plan, step.placed.microbatches
    yield from _unequal(plan)
    if plan.zero == 1:
        yield "zero", 1, "0, 2 or 3 (torchtitan shards by FSDP: gradients with the optimizer)"
    if plan.zero and step.placed.shard % plan.cp:
        yield "fsdp_shard", plan.fsdp_shard, f"a multiple of cp = {plan.cp} (torchtitan shards over both)"
    if plan.precision != "bf16":
        yield "precision", plan.precision, "bf16 (torchtitan's low precision is a converter of its own)"
    if plan.offload.used:
        yield "offload", plan.offload, "left out (torchtitan offloads all that FSDP shards, or nothing)"
    if plan.rank_order != "tp-cp-dp-pp":
        yield "rank_order", plan.rank_order, "tp-cp-dp-pp (torchtitan's device mesh)"
    if plan.etp not in (1, plan.tp):
        yield "etp", plan.etp, f"1 or tp = {plan.tp} (torchtitan)"
    if plan.pp > 1 and plan.schedule not in SCHEDULE_NAMES:
        yield "schedule", plan.schedule, f"{', '.join(SCHEDULE_NAMES)}, or emit torch-csv"
    if plan.pp > 1 and not plan.optimizer_barrier:
        yield "optimizer_barrier", False, "true (torchtitan clips by the global norm before any rank updates)"
    if plan.tp > 1 and not plan.sequence_parallel:
        yield "sequence_parallel", False, "true with tp > 1 (torchtitan always uses it)"
    if plan.schedule == "1f1b" and microbatches < plan.pp:
        yield "micro_batch", plan.micro_batch, f"at least pp = {plan.pp} microbatches (torch's 1F1B)"
    # torch's interleaved order has a grouping of its own, which must be the plan's.
    own = microbatches // max(1, microbatches // plan.pp)
    if plan.schedule == "interleaved" and plan.microbatch_group_size != own:
        yield "microbatch_group_size", plan.microbatch_group_size, f"{own} (torch's grouping), or emit torch-csv"


def _unequal(plan: Plan) -> Iterator[tuple[str, object, str]]:
    """Yield what treats stages or layers unequally."""
    if plan.stages:
        yield "stages", plan.stages, "left out (torchtitan treats all stages alike)"
    if plan.recompute_layers:
        yield (
            "recompute_layers",
            plan.recompute_layers,
            "left out (torchtitan recomputes in every n-th layer or in all)",
        )
    if plan.stage_layers and len(set(plan.stage_layers)) > 1:
        yield "stage_layers", plan.stage_layers, "the same for every stage (torchtitan's layers_per_stage)"
