"""A plan for torchtitan: a Python configuration, command-line flags that say the same, and the schedule's CSV.

As release 0.3.0 takes it: batches in sequences (`local_batch_size`), a switch for torch.compile, and flags
(`config/configs.py`, TrainingConfig, ParallelismConfig, CompileConfig). As the main branch does since 2026, here by
commit 63b182b525d1: batches in tokens (`num_tokens_per_microbatch_per_dp_rank`), an object for torch.compile, and no
flags (`config/loader.py`, `config/parallelism.py`, `config/configs.py`). Stages of any lengths are a list of their
modules' names, a list of lists that no flag takes: the plan is then the Python configuration alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from sim.plans.exported import Exported
from sim.plans.limit import shorter_ends
from sim.plans.orders import same_order
from sim.plans.targets import SCHEDULE_NAMES
from sim.plans.torch_csv import schedule_csv
from sim.schedules import Schedule, Shape, build
from sim.specs import Plan
from sim.specs.pipelines import PIPELINES

EXPRESSES = (
    "tp", "pp", "virtual_stages", "dp", "cp", "ep", "fsdp_shard", "global_batch", "micro_batch", "schedule",
    "microbatch_group_size", "recompute", "zero", "compiled", "cuda_graphs", "stage_layers",
    "tp_comm_overlap",
)  # fmt: skip
"""Fields of a plan that the files say, together with the schedule's CSV where they name one."""

EXPRESSES_MAIN = tuple(name for name in EXPRESSES if name not in ("cp", "tp_comm_overlap"))

Settings = Mapping[str, object]
"""Values by "section.key"; True: a switch that is on."""

CHECKPOINTING = "activation_checkpoint"
"""A choice among classes: `activation-checkpoint:full` at the shell (tyro's subcommands), an object in Python."""

PIECES = "enable_async_tensor_parallel"
"""Of the section "compile": torchtitan sets Inductor's `_micro_pipeline_tp` by it (`distributed/compile.py`)."""

CLASSES = {"full": "FullAC.Config()", "selective": "SelectiveAC.Config()", "none": "None"}
IMPORTS = {
    "FullAC": "torchtitan.distributed.activation_checkpoint",
    "SelectiveAC": "torchtitan.distributed.activation_checkpoint",
    "CompileConfig": "torchtitan.config",
}


def torchtitan(made: Exported, stem: str) -> dict[str, str]:
    """torchtitan's Python configuration (main branch: batches in tokens), and a schedule CSV where needed."""
    return _files(made, stem, MAIN)


def torchtitan_release(made: Exported, stem: str) -> dict[str, str]:
    """torchtitan's flags as of release 0.3.0 (batches in sequences), a Python configuration, and a schedule CSV."""
    return _files(made, stem, RELEASE)


@dataclass(frozen=True)
class Version:
    """How a version of torchtitan says what others say otherwise.

    batches: the batch sizes; modules: where the names of every stage's modules stand; flags: whether it takes flags,
    and a switch for torch.compile, which else is an object.
    """

    batches: Callable[[Exported], Settings]
    modules: str
    flags: bool


def _files(made: Exported, stem: str, version: Version) -> dict[str, str]:
    csv = {} if is_named(made) else {f"{stem}.csv": schedule_csv(made.order)}
    settings = {**degrees(made), **version.batches(made), **pipeline(made, next(iter(csv), ""), version.modules)}
    # What is set in may compile, and some of torchtitan's own configurations do: off is said too.
    on, pieces = made.plan.compiled, version.flags and in_pieces(made.plan)
    more = f", {PIECES}=True" if pieces else ""
    compiling = f"CompileConfig(enable={on}{more})" if version.flags else "CompileConfig()" if on else "None"
    objects = {CHECKPOINTING: CLASSES[made.plan.recompute], "compile": compiling}
    config = {f"{stem}.py": configuration(settings, objects)}
    if version.modules in settings or not version.flags:
        return config | csv
    flags = "".join(f"--{name}\n" if v is True else f"--{name}={v}\n" for name, v in settings.items())
    flags += "--compile.enable\n" if on else "--compile.no-enable\n"
    flags += f"--compile.{PIECES}\n" if pieces else ""
    flags += f"{CHECKPOINTING.replace('_', '-')}:{made.plan.recompute}\n"
    return {f"{stem}.flags": flags} | config | csv


def in_pieces(plan: Plan) -> bool:
    """Return whether release 0.3.0 runs tensor parallelism's collectives in pieces with the products, which is
    Inductor's doing: its CompileConfig refuses it without torch.compile."""
    return plan.tp_comm_overlap and plan.compiled and plan.tp > 1


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
    if not plan.cuda_graphs:  # on by default
        found["training.disable_cuda_graphs"] = True
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


def pipeline(made: Exported, csv: str, modules_at: str) -> Settings:
    """Return the schedule, by name or by the CSV file, and the stages; nothing without a pipeline.

    Embedding and output count as no layers; the ends may have fewer than the others.
    """
    if made.plan.pp == 1:
        return {}
    ends = shorter_ends(made.layers)
    name: dict[str, object] = {"parallelism.pipeline_parallel_schedule": schedule_name(made)}
    name |= {"parallelism.pipeline_parallel_schedule_csv": csv} if csv else {}
    if ends is None:
        return name | {modules_at: modules(made.layers)}
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
    parts[-1] += ["norm", "lm_head"]
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


def configuration(settings: Settings, objects: Mapping[str, str]) -> str:
    """Return a Python module for torchtitan: `applied` sets what the plan says in a Trainer.Config and returns it.

    objects: expressions by name, of classes that `IMPORTS` knows.
    """
    names = [expression.partition("(")[0].partition(".")[0] for expression in objects.values()]
    needed = "".join(f"from {IMPORTS[name]} import {name}\n" for name in names if name in IMPORTS)
    gap = "\n\n" if needed else "\n"
    lines = [f"    config.{name} = {value!r}" for name, value in settings.items()]
    lines += [f"    config.{name} = {expression}" for name, expression in objects.items()]
    return (
        '"""A parallel plan by trainsim: call applied(...) in a function of your config_registry."""\n\n'
        f"{needed}{gap}def applied(config):\n"
        '    """Set the plan in a Trainer.Config and return it."""\n' + "\n".join([*lines, "    return config"]) + "\n"
    )


RELEASE = Version(in_sequences, "parallelism.module_fqns_per_model_part", flags=True)
MAIN = Version(in_tokens, "parallelism.pipeline_parallel_module_fqns_per_model_part", flags=False)
