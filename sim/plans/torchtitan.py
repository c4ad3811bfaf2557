"""torchtitan command-line flags for a plan (torchtitan `--parallelism.*`, `--training.*`)."""

from sim.engine.step import Step
from sim.specs import InputError

SCHEDULE_NAMES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B"}


def torchtitan(step: Step) -> str:
    """Return the flags as one line each.

    Raises:
        InputError: the plan asks for what torchtitan's flags cannot say.
    """
    plan, placed, layers = step.plan, step.placed, step.model.layers
    if plan.zero == 1:
        raise InputError("plan.zero", 1, "0, 2 or 3 (torchtitan shards by FSDP: parameters with the optimizer)")
    if plan.tp > 1 and not plan.sequence_parallel:
        raise InputError("plan.sequence_parallel", False, "true with tp > 1 (torchtitan always uses it)")
    if plan.schedule == "interleaved" and placed.microbatches % plan.pp:
        raise InputError("plan.micro_batch", plan.micro_batch, "microbatches in multiples of pp (torch interleaved)")
    flags = {
        "parallelism.data_parallel_replicate_degree": placed.dp if plan.zero == 0 else 1,
        "parallelism.data_parallel_shard_degree": 1 if plan.zero == 0 else placed.dp,
        "parallelism.fsdp_reshard_after_forward": "always" if plan.zero == 3 else "never",
        "parallelism.tensor_parallel_degree": plan.tp,
        "parallelism.pipeline_parallel_degree": plan.pp,
        "training.local_batch_size": placed.microbatches * plan.micro_batch,
        "training.global_batch_size": plan.global_batch,
        "training.seq_len": step.model.seq,
        "activation_checkpoint.mode": plan.recompute,
    }
    if plan.pp > 1:
        flags |= {
            "parallelism.pipeline_parallel_schedule": SCHEDULE_NAMES[plan.schedule],
            "parallelism.pipeline_parallel_microbatch_size": plan.micro_batch,
            "parallelism.pipeline_parallel_layers_per_stage": layers // placed.stages,
        }
    return "".join(f"--{name}={value}\n" for name, value in flags.items())
