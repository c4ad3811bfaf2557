"""torchtitan command-line flags for a plan (torchtitan `--parallelism.*`, `--training.*`)."""

from sim.engine.step import Step
from sim.plans.limit import shorter_ends
from sim.plans.targets import SCHEDULE_NAMES, refusals
from sim.specs import PlacedPlan


def torchtitan(step: Step) -> str:
    """Return the flags as one line each.

    Raises:
        InputError: the plan asks for what torchtitan's flags cannot say; the schedule CSV says any order.
    """
    for error in refusals(step.model, step.placed, "torchtitan"):
        raise error
    placed = step.placed.at(0)  # stages are alike but for their layers
    plan = placed.plan
    flags = {
        "parallelism.data_parallel_replicate_degree": placed.dp if plan.zero == 0 else placed.dp // _shard(placed),
        "parallelism.data_parallel_shard_degree": 1 if plan.zero == 0 else _shard(placed),
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
        most, first, last = shorter_ends(plan.split(step.model)) or (0, 0, 0)
        flags |= {
            "parallelism.pipeline_parallel_schedule": SCHEDULE_NAMES[plan.schedule],
            "parallelism.num_pp_microbatches": placed.microbatches,
            "parallelism.pipeline_parallel_layers_per_stage": most,
            "parallelism.pipeline_parallel_first_stage_less_layers": first,  # torchtitan's own defaults are 1
            "parallelism.pipeline_parallel_last_stage_less_layers": last,
        }
    return "".join(f"--{name}={value}\n" for name, value in flags.items())


def _shard(placed: PlacedPlan) -> int:
    """Return the data-parallel ranks of one FSDP copy; torchtitan adds the context-parallel ranks itself."""
    return placed.shard // placed.plan.cp
