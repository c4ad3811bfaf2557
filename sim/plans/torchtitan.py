"""torchtitan's command-line flags for a plan, a Python configuration that says the same, and the schedule's CSV.

Batches are stated in tokens as torchtitan's main branch does since 2026 (`num_tokens_per_microbatch_per_dp_rank`), or
in sequences as its last release, 0.3.0, does (`local_batch_size`): `config/configs.py`, TrainingConfig and
ParallelismConfig. Stages of any lengths are a list of their modules' names (`module_fqns_per_model_part`, a list of
lists that no flag takes): the plan is then the Python configuration alone.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise

from sim.plans.exported import Exported
from sim.plans.limit import shorter_ends
from sim.plans.orders import same_order
from sim.plans.targets import SCHEDULE_NAMES
from sim.plans.torch_csv import schedule_csv
from sim.schedules import Schedule, Shape, build
from sim.specs.pipelines import PIPELINES

EXPRESSES = (
    "tp", "pp", "virtual_stages", "dp", "cp", "ep", "fsdp_shard", "global_batch", "micro_batch", "schedule",
    "microbatch_group_size", "recompute", "zero", "compiled", "stage_layers",
)  # fmt: skip
"""Fields of a plan that the flags say, together with the schedule's CSV where they name one."""

MODULES = "parallelism.module_fqns_per_model_part"

Settings = Mapping[str, object]
"""Values by "section.key"; True: a switch that is on."""

CHECKPOINTING = "activation_checkpoint"
"""A choice among classes: `activation-checkpoint:full` at the shell (tyro's subcommands), an object in Python."""

CLASSES = {"full": "FullAC.Config()", "selective": "SelectiveAC.Config()", "none": "None"}


def torchtitan(made: Exported, stem: str) -> dict[str, str]:
    """torchtitan's flags (main branch: batches in tokens), a Python configuration, and a schedule CSV where needed."""
    return _files(made, stem, in_tokens)


def torchtitan_release(made: Exported, stem: str) -> dict[str, str]:
    """torchtitan's flags as of release 0.3.0 (batches in sequences), a Python configuration, and a schedule CSV."""
    return _files(made, stem, in_sequences)


def _files(made: Exported, stem: str, batches: Callable[[Exported], Settings]) -> dict[str, str]:
    csv = {} if is_named(made) else {f"{stem}.csv": schedule_csv(made.order)}
    settings = {**degrees(made), **batches(made), **pipeline(made, next(iter(csv), ""))}
    config = {f"{stem}.py": configuration(settings, made.plan.recompute)}
    if MODULES in settings:
        return config | csv
    flags = "".join(f"--{name}\n" if v is True else f"--{name}={v}\n" for name, v in settings.items())
    flags += f"{CHECKPOINTING.replace('_', '-')}:{made.plan.recompute}\n"
    return {f"{stem}.flags": flags} | config | csv


def degrees(made: Exported) -> Settings:
    """Return the degrees; FSDP shards over dp_shard x cp ranks by itself."""
    plan, shard = made.plan, made.placed.shard // made.plan.cp if made.plan.zero else 1
    found: dict[str, object] = {
        "parallelism.data_parallel_replicate_degree": made.placed.dp // shard,
        "parallelism.data_parallel_shard_degree": shard,
        "parallelism.tensor_parallel_degree": plan.tp,
        "parallelism.pipeline_parallel_degree": plan.pp,
    }
    if plan.zero:
        found["parallelism.fsdp_reshard_after_forward"] = "always" if plan.zero == 3 else "never"
    if plan.cp > 1:
        found["parallelism.context_parallel_degree"] = plan.cp
    if made.model.experts:
        found["parallelism.expert_parallel_degree"] = plan.ep
    if plan.compiled:
        found["compile.enable"] = True
    return found


def in_tokens(made: Exported) -> Settings:
    """Return the batch sizes in tokens."""
    plan, seq = made.plan, made.model.seq
    found: dict[str, object] = {
        "training.num_tokens_per_microbatch_per_dp_rank": plan.micro_batch * seq,
        "training.num_tokens_per_train_step": plan.global_batch * seq,
        "training.max_context_length": seq,
    }
    return found | ({"parallelism.num_pp_microbatches": made.placed.microbatches} if plan.pp > 1 else {})


def in_sequences(made: Exported) -> Settings:
    """Return the batch sizes in sequences; a pipeline cuts its local batch into microbatches."""
    plan = made.plan
    local = plan.micro_batch * (made.placed.microbatches if plan.pp > 1 else 1)
    found: dict[str, object] = {
        "training.local_batch_size": local,
        "training.global_batch_size": plan.global_batch,
        "training.seq_len": made.model.seq,
    }
    return found | ({"parallelism.pipeline_parallel_microbatch_size": plan.micro_batch} if plan.pp > 1 else {})


def pipeline(made: Exported, csv: str) -> Settings:
    """Return the schedule, by name or by the CSV file, and the stages; nothing without a pipeline.

    Embedding and output count as no layers; the ends may have fewer than the others.
    """
    if made.plan.pp == 1:
        return {}
    ends = shorter_ends(made.layers)
    name: dict[str, object] = {"parallelism.pipeline_parallel_schedule": schedule_name(made)}
    name |= {"parallelism.pipeline_parallel_schedule_csv": csv} if csv else {}
    if ends is None:
        return name | {MODULES: modules(made.layers)}
    most, first, last = ends
    return name | {
        "parallelism.pipeline_parallel_layers_per_stage": most,
        "parallelism.pipeline_parallel_first_stage_less_layers": first,
        "parallelism.pipeline_parallel_last_stage_less_layers": last,
    }


def modules(layers: Sequence[int]) -> list[list[str]]:
    """Return the names of every stage's modules, as `_generate_llm_fqn_per_model_part` gives them."""
    edges = list(pairwise([0, *accumulate(layers)]))
    parts = [[f"layers.{n}" for n in range(*edge)] for edge in edges]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "output"]
    return parts


def schedule_name(made: Exported) -> str:
    """Return torch's name of the schedule, or of one with the same placement where a CSV says the order."""
    if is_named(made):
        return SCHEDULE_NAMES[made.order.name]
    if PIPELINES[made.order.name].placement == "v":
        return "ZBVZeroBubble"
    return "Interleaved1F1B" if made.plan.virtual_stages > 1 else "1F1B"


def is_named(made: Exported) -> bool:
    """Return whether torch generates the plan's order by the schedule's name (or there is no pipeline)."""
    return made.plan.pp == 1 or torch_has(made.order, made.plan.virtual_stages)


def torch_has(order: Schedule, chunks: int) -> bool:
    """Return whether torch's generator of that name gives the order; its 1F1B asks for a microbatch a rank."""
    if order.name not in SCHEDULE_NAMES or (order.name == "1f1b" and order.microbatches < order.ranks):
        return False
    own = build(order.name, Shape(order.ranks, order.microbatches, chunks, variant="torch"))
    return same_order(own, order)


def configuration(settings: Settings, recompute: str) -> str:
    """Return a Python module for torchtitan: `applied` sets what the plan says in a Trainer.Config and returns it."""
    lines = [f"    config.{name} = {value!r}" for name, value in settings.items()]
    known = CLASSES[recompute].split(".")[0]
    needed = f"from torchtitan.distributed.activation_checkpoint import {known}\n\n\n" if recompute != "none" else "\n"
    return (
        '"""A parallel plan by trainsim: call applied(...) in a function of your config_registry."""\n\n'
        f"{needed}def applied(config):\n"
        '    """Set the plan in a Trainer.Config and return it."""\n'
        + "\n".join([*lines, f"    config.{CHECKPOINTING} = {CLASSES[recompute]}", "    return config"])
        + "\n"
    )
