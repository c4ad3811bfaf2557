"""A plan from torchtitan's command-line flags, of release 0.3.0 or the main branch of 2026.

What they leave out is what both versions take by default, which a note says: `trainer.py`, `config/configs.py`.
"""

import json
from collections.abc import Sequence
from math import ceil
from typing import Any

from sim.plans.flags import Flags, read_flags
from sim.plans.named_order import named
from sim.plans.reading import ReadPlan, made, other_sizes, quotient
from sim.plans.targets import SCHEDULE_NAMES
from sim.plans.torch_limits import graphed
from sim.plans.torchtitan import MAIN, PIECES, RELEASE
from sim.schedules import Schedule
from sim.specs import InputError, Model
from sim.specs.pipelines import PIPELINES
from sim.specs.plan import RECOMPUTE

OURS = {theirs: ours for ours, theirs in SCHEDULE_NAMES.items()}
CHOICES = ("activation-checkpoint:", "activation_checkpoint:")
IN_TOKENS = ("num_tokens_per_microbatch_per_dp_rank", "num_tokens_per_train_step")
IN_SEQUENCES = ("local_batch_size", "global_batch_size")
LENGTHS = ("training.seq_len", "training.max_context_length")
DEFAULT_RECOMPUTE = "selective"
"""Trainer.Config's SelectiveAC; mode selective before."""

PARALLEL = "parallelism."
MODULES = (RELEASE.modules, MAIN.modules)
NAMES = {
    "tp": "tensor_parallel_degree", "pp": "pipeline_parallel_degree", "cp": "context_parallel_degree",
    "ep": "expert_parallel_degree", "virtual_stages": "pipeline_parallel_layers_per_stage",
    "schedule": "pipeline_parallel_schedule", "fsdp_shard": "data_parallel_shard_degree",
}  # fmt: skip
PER_STAGE = PARALLEL + NAMES["virtual_stages"]


def from_torchtitan(given: Sequence[str], model: Model | None = None, order: Schedule | None = None) -> ReadPlan:
    """Return the plan that torchtitan's flags state.

    model: of which the flags only say a name; it gives layers and sequence length where they are needed. order: read
    from the CSV file that the flags name.

    Raises:
        InputError: a flag is wrong, contradicts another, or needs the model or the order beside it.
    """
    chosen = [word.partition(":")[2] for word in given if word.startswith(CHOICES)]
    flags = read_flags([word for word in given if not word.startswith(CHOICES)], "flags")
    recompute, degrees = _recompute(flags, chosen), _degrees(flags)
    schedule = _schedule(flags, degrees["pp"], model, order)
    batches = _batches(flags, degrees, model)
    layers, told = _layers(flags, schedule, degrees["pp"], model)
    captured = not flags.given("training.disable_cuda_graphs") and graphed(degrees["pp"], degrees["ep"])
    sequence_parallel, compiled = _sequence_parallel(flags, degrees["tp"]), _compiled(flags)
    in_pieces = flags.given(f"compile.{PIECES}")
    if in_pieces and not compiled:
        raise InputError(flags.place(f"compile.{PIECES}"), True, "left out without torch.compile of the model")
    return made(
        {
            **degrees,
            **schedule,
            **batches,
            "stage_layers": layers,
            "recompute": recompute or DEFAULT_RECOMPUTE,
            "sequence_parallel": sequence_parallel,
            "tp_comm_overlap": in_pieces and sequence_parallel,
            "compiled": compiled,
            "cuda_graphs": captured,
            "framework": "torch",
        },
        {field: flags.place(PARALLEL + name) for field, name in NAMES.items()},
        flags.left,
        "" if degrees["dp"] else "data-parallel ranks: what the number of processes leaves",
        "" if recompute else f"recompute {DEFAULT_RECOMPUTE}: torchtitan's default where no checkpointing is chosen",
        told,
        *(note for name in LENGTHS for note in other_sizes(flags, model, seq=name)),
    )


def _degrees(flags: Flags) -> dict[str, Any]:
    tp, pp, cp, ep = (flags.whole(f"{PARALLEL}{NAMES[name]}", 1) for name in ("tp", "pp", "cp", "ep"))
    copies = flags.whole(f"{PARALLEL}data_parallel_replicate_degree", 1)
    name = f"{PARALLEL}data_parallel_shard_degree"
    shard = flags.whole(name, -1, -1)
    if shard == 0 or (shard < 0 and copies > 1):
        raise InputError(flags.place(name), shard, "a whole number from 1: beside copies the leftover is not known")
    reshard = flags.text(f"{PARALLEL}fsdp_reshard_after_forward", "default", ("always", "never", "default"))
    usual = 0 if shard * cp == 1 else 2 if pp > 1 else 3  # "default" keeps weights between passes in a pipeline
    zero = {"always": 3, "never": 2, "default": usual}[reshard]
    return {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "ep": ep,
        "dp": copies * shard if shard > 0 else None,
        "fsdp_shard": shard * cp if copies > 1 and zero else None,
        "zero": zero,
    }


def _sequence_parallel(flags: Flags, tp: int) -> bool:
    name = f"{PARALLEL}enable_sequence_parallel"
    on = flags.given(name) if name in flags else True
    return on and not flags.given(f"{PARALLEL}no_enable_sequence_parallel") and tp > 1


def _recompute(flags: Flags, chosen: list[str]) -> str:
    """Return the kind of recompute that is chosen, or "" where none is named."""
    mode = flags.text("activation_checkpoint.mode")
    told = {*chosen, mode} - {""}
    if len(told) > 1:
        raise InputError("activation-checkpoint", sorted(told), "one of its classes")
    found = next(iter(told), "")
    if found and found not in RECOMPUTE:
        raise InputError("activation-checkpoint", found, "one of " + ", ".join(RECOMPUTE))
    return found


def _compiled(flags: Flags) -> bool:
    """Return whether torch.compile takes the network, and not the loss alone."""
    on, off = flags.given("compile.enable"), flags.given("compile.no_enable")
    return on and not off and "model" in flags.text("compile.components", "model,loss")


def _batches(flags: Flags, degrees: dict[str, Any], model: Model | None) -> dict[str, Any]:
    tokens, sequences = ([n for n in names if f"training.{n}" in flags] for names in (IN_TOKENS, IN_SEQUENCES))
    if tokens and sequences:
        place = flags.place(f"training.{sequences[0]}")
        raise InputError(place, flags.values[f"training.{sequences[0]}"], "left out beside batches in tokens")
    micro, whole = _in_tokens(flags, degrees["pp"], model) if tokens else _in_sequences(flags, degrees["pp"])
    return {"micro_batch": micro[0], "global_batch": whole or _per_step(degrees["dp"], micro)}


def _per_step(dp: int | None, micro: tuple[int, int]) -> int:
    if dp is None:
        raise InputError("--training", None, "required: the batch of a step, as no data-parallel ranks are given")
    return micro[0] * micro[1] * dp


Batch = tuple[tuple[int, int], int]
"""Sequences of a microbatch, microbatches of one accumulation step, and sequences of a step (0: not told)."""


def _in_tokens(flags: Flags, pp: int, model: Model | None) -> Batch:
    place = flags.place(f"training.{IN_TOKENS[0]}")
    each = flags.whole(f"training.{IN_TOKENS[0]}", 16_384)
    seq = flags.whole("training.max_context_length", model.seq if model else 0)
    flags.whole("training.seq_len", seq)
    if not seq:
        raise InputError(flags.place("training.max_context_length"), None, "required, or give the model")
    whole = flags.whole(f"training.{IN_TOKENS[1]}", -1, -1)
    pieces = flags.whole(f"{PARALLEL}num_pp_microbatches", 1)
    micro = quotient(place, each, seq, "tokens of a microbatch")
    total = quotient(flags.place(f"training.{IN_TOKENS[1]}"), whole, seq, "tokens of a step") if whole > 0 else 0
    return (micro, pieces if pp > 1 else 1), total


def _in_sequences(flags: Flags, pp: int) -> Batch:
    local = flags.whole("training.local_batch_size", 8)
    whole = flags.whole("training.global_batch_size", -1, -1)
    flags.whole("training.seq_len", 2048)
    name = f"{PARALLEL}pipeline_parallel_microbatch_size"
    size = flags.whole(name, 1)
    micro = size if pp > 1 else local
    return (micro, quotient(flags.place(name), local, micro, "training.local_batch_size")), max(whole, 0)


def _schedule(flags: Flags, pp: int, model: Model | None, order: Schedule | None) -> dict[str, Any]:
    """Return schedule, chunks a rank and the group of an interleaved order."""
    name = f"{PARALLEL}pipeline_parallel_schedule"
    theirs = flags.text(name, "1F1B", tuple(OURS))
    per_stage = flags.whole(PER_STAGE, 0)
    csv, parts = flags.text(f"{PARALLEL}pipeline_parallel_schedule_csv"), _parts(flags)
    if order and (pp == 1 or not csv):
        raise InputError("order", order.name, f"left out: no pipeline with {flags.place(f'{name}_csv')}")
    if pp == 1:
        return {"schedule": "none"}
    if csv:
        if order is None:
            raise InputError(flags.place(f"{name}_csv"), csv, "the file itself beside the flags (its order)")
        if order.ranks != pp:
            raise InputError(flags.place(f"{name}_csv"), f"{order.ranks} ranks", f"one row a pipeline rank: {pp}")
        return named(order, flags.place(f"{name}_csv"))
    ours = OURS[theirs]
    chunks = PIPELINES[ours].chunks
    if parts:
        chunks = quotient(_listed(flags)[0], len(parts), pp, "model parts")
    elif per_stage and PIPELINES[ours].any_chunks:
        if model is None:
            raise InputError(flags.place(PER_STAGE), per_stage, "the model beside the flags")
        stages = ceil((model.layers + sum(_less(flags))) / per_stage)
        chunks = quotient(flags.place(PARALLEL + NAMES["pp"]), stages, pp, "stages")
    return {"schedule": ours, "virtual_stages": chunks, **_group(flags, ours, pp)}


def _layers(flags: Flags, schedule: dict[str, Any], pp: int, model: Model | None) -> tuple[tuple[int, ...] | None, str]:
    """Return the layers of every stage where they are not equally many, and a note where no flag says them."""
    parts, per_stage, less = _parts(flags), flags.whole(PER_STAGE, 0), _less(flags)
    if pp == 1 or parts:
        return parts or None, ""
    if model is None:
        return None, "" if per_stage else "layers of the stages: taken as equal, without the model beside the flags"
    stages = pp * schedule.get("virtual_stages", 1)
    if per_stage and ceil((model.layers + sum(less)) / per_stage) != stages:
        raise InputError(flags.place(PER_STAGE), per_stage, f"so many that there are {stages} stages")
    found = _split(model.layers, stages, less, flags.place(PARALLEL + NAMES["pp"]))
    told = f"layers of the stages: {', '.join(map(str, found))}, as torchtitan splits {model.layers} by default"
    equal = len(set(found)) == 1
    return None if equal else found, "" if per_stage or equal else told


def _less(flags: Flags) -> tuple[int, int]:
    """Return as how many layers embedding and head count."""
    first, last = (
        flags.whole(f"{PARALLEL}pipeline_parallel_{end}_stage_less_layers", 1, 0) for end in ("first", "last")
    )
    return first, last


def _listed(flags: Flags) -> tuple[str, str]:
    """Return where the modules of every stage are listed, as errors name it, and the list."""
    held = {name: flags.text(name) for name in MODULES}
    name = next((name for name, text in held.items() if text), MODULES[0])
    return flags.place(name), held[name]


def _parts(flags: Flags) -> tuple[int, ...]:
    """Return the layers of every stage where the modules of each are listed, all layers in their order."""
    place, text = _listed(flags)
    if not text:
        return ()
    try:
        parts = json.loads(text)
    except (ValueError, RecursionError):
        parts = None
    lists = isinstance(parts, list) and all(isinstance(part, list) for part in parts)
    if not lists or not all(isinstance(name, str) for part in parts for name in part):
        raise InputError(place, text[:80], "a list of lists of names of modules")
    layers = [[name for name in part if name.startswith("layers.")] for part in parts]
    found = [name for part in layers for name in part]
    if not found or found != [f"layers.{n}" for n in range(len(found))]:
        raise InputError(place, found[:4], "layers.0, layers.1, ... in their order, each once")
    return tuple(map(len, layers))


def _split(layers: int, stages: int, less: Sequence[int], place: str) -> tuple[int, ...]:
    """Return the layers of every stage as `_generate_llm_fqn_per_model_part` (distributed/pipeline_parallel.py) has it.

    Embedding and head count as `less` layers of the first and the last stage; what is left over goes to the first.

    Raises:
        InputError: the first or the last stage would have more of them than it has room for.
    """
    each, more = divmod(layers + sum(less), stages)
    if max(less) > each or each == 0:
        raise InputError(place, stages, f"stages of {max(*less, 1)} layers or more: torchtitan splits {layers} evenly")
    found = [each + (n < more) for n in range(stages)]
    found[0] -= less[0]
    found[-1] -= less[1]
    return tuple(found)


def _group(flags: Flags, schedule: str, pp: int) -> dict[str, int]:
    """Return torch's grouping of an interleaved order, which takes all microbatches of a rank into account."""
    if schedule != "interleaved":
        return {}
    pieces = flags.whole(f"{PARALLEL}num_pp_microbatches", 0)
    if not pieces:
        size = flags.whole(f"{PARALLEL}pipeline_parallel_microbatch_size", 1)
        local = flags.whole("training.local_batch_size", 8)
        pieces = quotient(flags.place(f"{PARALLEL}pipeline_parallel_microbatch_size"), local, size, "local_batch_size")
    return {"microbatch_group_size": pieces // max(1, pieces // pp)}
