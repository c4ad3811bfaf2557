"""A plan from Megatron-LM's arguments: shell text, a list of words, or the arguments by name in YAML or JSON."""

import re
from collections.abc import Mapping

from sim.plans.flags import Flags
from sim.plans.megatron import GRAPHED, LOW_PRECISION, MODULES, STRATEGY, graphed_parts, recomputed_modules, stack
from sim.plans.reading import ReadPlan, made, one_of, other_sizes, quotient
from sim.specs import InputError, Model

SPLITS = (
    "num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank", "pipeline_model_parallel_layout",
)  # fmt: skip
DISPATCHER, DISPATCHERS = "moe_token_dispatcher_type", ("allgather", "alltoall", "flex")
"""The argument of how tokens get to their experts, and its values, the default first."""
GROUP_SIZE = ("microbatch_group_size_per_virtual_pipeline_stage", "microbatch_group_size_per_vp_stage")
"""The flag, and the name of the argument behind it."""
LOW = ("fp8_format", "fp8", "fp4_format", "fp4")
"""Of both types the flag, and the name of the argument behind it."""

FUSED_WGRAD, SCATTER_GATHER = "gradient_accumulation_fusion", "scatter_gather_tensors_in_pipeline"
"""Arguments that are on where nobody says no_...: their flags do."""

MAX_LAYOUT = 65_536
REPEATED = (re.compile(r"\(([^()]+)\)\*([0-9]{1,5})"), re.compile(r"(.)\*([0-9]{1,5})"))

NAMES = {
    "tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size", "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size", "etp": "expert_tensor_parallel_size", "micro_batch": "micro_batch_size",
    "global_batch": "global_batch_size", "recompute_layers": "recompute_num_layers",
    "stage_layers": "pipeline_model_parallel_layout", "virtual_stages": "num_virtual_stages_per_pipeline_rank",
    "tp_comm_overlap": "tp_comm_overlap", "ep_overlap": "overlap_moe_expert_parallel_comm",
}  # fmt: skip
"""The argument behind a field of the plan."""


SIZES = {"layers": "num_layers", "seq": "seq_length"}
SIZES_OF_T5 = {"encoder_layers": "num_layers", "encoder_seq": "encoder_seq_length", "seq": "decoder_seq_length"}
"""The argument behind a size of the network."""

EAGER = {"unfused": True, "local": True, "flash": False, "fused": False}
"""Whether an `--attention-backend` stores its scores; Megatron-LM's default, auto, does what it can."""


def from_megatron(flags: Flags, gpus: int | None = None, model: Model | None = None) -> ReadPlan:
    """Return the plan that Megatron-LM's arguments state.

    gpus: processes of the job, which the arguments do not say; model: says layers and kind of attention where they
    leave them out.

    Raises:
        InputError: an argument is missing, wrong, or contradicts another.
    """
    tp, pp = flags.whole("tensor_model_parallel_size", 1), flags.whole("pipeline_model_parallel_size", 1)
    cp = flags.whole("context_parallel_size", 1)
    model_layers = flags.whole("num_layers", stack(model) if model else 0)
    chunks, split = _split(flags, pp, model_layers)
    alone = flags.given("sequence_parallel") and tp == 1
    pieces = flags.whole("recompute_num_layers", 0) if flags.text("recompute_method") == "uniform" else 0
    recompute, modules = _recompute(flags, model)
    sequence_parallel = flags.given("sequence_parallel") and tp > 1
    zero = _zero(flags, tp * pp * cp, cp, gpus)
    fields = {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "ep": flags.whole("expert_model_parallel_size", 1),
        "etp": flags.whole("expert_tensor_parallel_size", tp if flags.whole("num_experts", 0) else 1),
        "virtual_stages": chunks,
        "stage_layers": split,
        "sequence_parallel": sequence_parallel,
        "tp_comm_overlap": flags.given("tp_comm_overlap") and tp > 1,
        # Ranks that all hold the whole of a message all send it (core/pipeline_parallel/schedules.py).
        "scatter_gather": None if sequence_parallel or 1 in (tp, pp) else False,
        "rank_order": "tp-cp-pp-dp" if flags.given("use_tp_pp_dp_mapping") else "tp-cp-dp-pp",
        "global_batch": _global_batch(flags, tp * pp * cp, gpus),
        "micro_batch": flags.whole("micro_batch_size", 1),
        "microbatch_group_size": _group(flags, chunks),
        # FSDP overlaps whatever the argument says (core/distributed/fsdp/src/megatron_fsdp/megatron_fsdp.py).
        "overlap_dp": flags.given("overlap_grad_reduce") or zero["zero"] > 1,
        **zero,
        **_kernels(flags, model),
        **recompute,
        **_offload(flags, model_layers),
        **_precision(flags),
        **_dispatcher(flags),
    }
    for name in ("overlap_param_gather", "ckpt_format", SCATTER_GATHER, f"no_{SCATTER_GATHER}"):
        flags.asked.add(name)
    experts = _experts(flags)
    pair = model is not None and model.family == "encoder-decoder"
    other = [*other_sizes(flags, model, **(SIZES_OF_T5 if pair else SIZES))]
    return made(
        fields,
        {field: flags.place(name) for field, name in NAMES.items()},
        flags.left,
        "" if gpus else "data-parallel ranks: what the number of processes leaves",
        "" if "micro_batch_size" in flags else "--micro-batch-size: taken as 1, and asked for by Megatron-LM",
        "--sequence-parallel has no effect without tensor parallelism" if alone else "",
        # A checkpoint every so many layers keeps less between the passes, and more while a piece is made again.
        f"--recompute-num-layers {pieces}: taken as recompute of every layer by itself" if pieces > 1 else "",
        modules,
        _recipe(flags),
        _partly_graphed(flags, model),
        *experts,
        *other,
    )


def _split(flags: Flags, pp: int, layers: int) -> tuple[int, list[int] | None]:
    """Return the chunks a rank, and the layers of every chunk where they are not equally many."""
    given = one_of(flags, SPLITS)
    first, last = (flags.whole(f"decoder_{end}_pipeline_num_layers", 0) for end in ("first", "last"))
    embedding = int(flags.given("account_for_embedding_in_pipeline_split"))
    loss = int(flags.given("account_for_loss_in_pipeline_split"))
    beside = first or last or embedding or loss
    if given == SPLITS[2]:
        place, found = flags.place(given), layout_layers(flags.text(given), flags.place(given))
        if beside:
            raise InputError(place, flags.text(given), "left out beside other arguments of the split")
        if layers and sum(found) != layers:
            raise InputError(place, sum(found), f"layers (t) that add up to {layers}")
        chunks = quotient(flags.place(NAMES["pp"]), len(found), pp, "the layout's stages")
        return chunks, _unequal(found)
    if (first or last) and (embedding or loss):
        place = flags.place(f"decoder_{'first' if first else 'last'}_pipeline_num_layers")
        raise InputError(place, first or last, "left out beside account-for-...-in-pipeline-split")
    if (beside or given == SPLITS[0]) and not layers:
        raise InputError(flags.place("num_layers"), None, "required beside arguments that split the layers")
    chunks = flags.whole(SPLITS[1], 1)
    if given == SPLITS[0]:
        if first or last:
            allowed = f"left out beside decoder-first- and -last-pipeline-num-layers, which take {SPLITS[1]}"
            raise InputError(flags.place(given), flags.text(given), allowed)
        on_rank = quotient(flags.place(NAMES["pp"]), layers + embedding + loss, pp, "layers")
        chunks = quotient(flags.place(given), on_rank, flags.whole(given), "layers of a pipeline rank")
    if first or last:
        return chunks, _unequal(_ends(flags, first, last, pp, chunks, layers))
    if embedding or loss:
        each = quotient(flags.place(NAMES["pp"]), layers + embedding + loss, pp * chunks, "layers, embedding and loss")
        found = [each] * (pp * chunks)
        found[0] -= embedding
        found[-1] -= loss
        return chunks, _unequal(found)
    return chunks, None


def _ends(flags: Flags, first: int, last: int, pp: int, chunks: int, layers: int) -> list[int]:
    """Return the layers of every chunk where the first and the last rank have their own."""
    middle = pp - bool(first) - bool(last)
    rest = layers - first - last
    if rest < 0 or middle < 0 or bool(rest) != bool(middle):
        raise InputError(flags.place("num_layers"), layers, "layers for every pipeline rank beside the first and last")
    inner = (
        quotient(flags.place(NAMES["pp"]), rest, middle, "layers between the first and the last rank") if middle else 0
    )
    ranks = [first] * bool(first) + [inner] * middle + [last] * bool(last)
    on = [quotient(flags.place(SPLITS[1]), n, chunks, "layers of a pipeline rank") for n in ranks]
    return on * chunks


def _unequal(found: list[int]) -> list[int] | None:
    return found if len(set(found)) > 1 else None


def layout_layers(text: str, place: str) -> list[int]:
    """Return the layers of every chunk of a `pipeline_model_parallel_layout`, such as `Et*3|(tt|)*29,m|L`.

    Raises:
        InputError: another letter, or a layout too long.
    """
    flat = text.replace(",", "")
    for pattern in REPEATED:
        if len(flat) + sum(len(m[1]) * int(m[2]) for m in pattern.finditer(flat)) > MAX_LAYOUT:
            raise InputError(place, text, f"at most {MAX_LAYOUT} letters")
        flat = pattern.sub(lambda m: m[1] * int(m[2]), flat)
    if strange := set(flat) - set("EtmL|"):
        raise InputError(place, text, f"E, t, m, L, |, and (...)*n; not {min(strange)!r}")
    return [part.count("t") for part in flat.split("|")]


def _group(flags: Flags, chunks: int) -> int | None:
    found = {name: flags.whole(name) for name in GROUP_SIZE if name in flags}
    if len(set(found.values())) > 1:
        raise InputError(
            flags.place(GROUP_SIZE[1]), found[GROUP_SIZE[1]], f"as {flags.place(GROUP_SIZE[0])}, or left out"
        )
    return next(iter(found.values()), None) if chunks > 1 else None


def _zero(flags: Flags, inner: int, cp: int, gpus: int | None) -> Mapping[str, int]:
    """Return the ZeRO stage, and over how many ranks it shards where those are not all."""
    optimizer = flags.given("use_distributed_optimizer")
    fsdp = one_of(flags, ("use_megatron_fsdp", "use_custom_fsdp", "use_torch_fsdp2"))
    strategies = {"no_shard": 0, "optim": 1} | {name: stage for stage, name in STRATEGY.items()}
    strategy = flags.text("data_parallel_sharding_strategy", "no_shard", tuple(strategies))
    for name in ("use_megatron_fsdp", "use_custom_fsdp", "use_torch_fsdp2"):
        flags.given(name)
    zero = 3 if fsdp == "use_torch_fsdp2" else strategies[strategy] if fsdp else int(optimizer)
    instances = flags.whole("num_distributed_optimizer_instances", 1)
    place = flags.place("num_distributed_optimizer_instances")
    if instances == 1 or not zero:
        return {"zero": zero}
    if not gpus:
        raise InputError(place, instances, "1 where the number of GPUs is not given beside the arguments")
    ranks = quotient("gpus", gpus, inner, "GPUs") * cp
    return {"zero": zero, "fsdp_shard": quotient(place, ranks, instances, "data-parallel ranks")}


def _global_batch(flags: Flags, inner: int, gpus: int | None) -> int:
    """Return the samples of a step; by default one micro-batch of every data-parallel rank."""
    if "global_batch_size" in flags:
        return flags.whole("global_batch_size")
    if not gpus:
        allowed = "required where the number of GPUs is not given beside the arguments: samples of one step"
        raise InputError(flags.place("global_batch_size"), None, allowed)
    return flags.whole("micro_batch_size", 1) * quotient("gpus", gpus, inner, "GPUs")


def _kernels(flags: Flags, model: Model | None) -> Mapping[str, object]:
    """Return what runs as one kernel, and whether graphs replay kernels; of cross-entropies TransformerEngine's is
    "fused", while Megatron-LM's own keeps fp32 logits, fused or not."""
    on = flags.given(FUSED_WGRAD) or FUSED_WGRAD not in flags
    kind = flags.text("cross_entropy_fusion_impl", "native", ("native", "te"))
    return {
        "fused_wgrad": on and not flags.given(f"no_{FUSED_WGRAD}"),
        "cross_entropy": "fused" if flags.given("cross_entropy_loss_fusion") and kind == "te" else None,
        "cuda_graphs": _graphs(flags) == {GRAPHED},
        "layer_graphs": _of_layers(flags, model),
    }


def _of_layers(flags: Flags, model: Model | None) -> bool:
    """Return whether CUDA graphs are of all layers, but for what experts add to them."""
    scope, experts = _graphs(flags), flags.whole("num_experts", model.experts if model else 0, 0) > 0
    parts = graphed_parts(experts=experts, mamba=model is not None and "M" in model.pattern)
    return (scope == {"full"} and not experts) or scope >= set(parts)


def _partly_graphed(flags: Flags, model: Model | None) -> str:
    """Return a note where CUDA graphs are of parts of the layers."""
    scope = _graphs(flags)
    partly = scope not in (set(), {GRAPHED}) and not _of_layers(flags, model)
    said = " ".join(sorted(scope))
    return f"--cuda-graph-scope {said}: predicted with kernels launched one by one" if partly else ""


def _graphs(flags: Flags) -> set[str]:
    """Return the scope of CUDA graphs, empty without any; after 0.16 that of all passes is an implementation itself."""
    old = [flags.given(name) for name in ("enable_cuda_graph", "external_cuda_graph")]
    usual = "local" if any(old) else "none"
    kind = flags.text("cuda_graph_impl", usual, ("none", "local", "transformer_engine", GRAPHED))
    scope = flags.text("cuda_graph_scope", "full").split()
    return set() if kind == "none" else {GRAPHED} if kind == GRAPHED else set(scope)


def _dispatcher(flags: Flags) -> Mapping[str, object]:
    """Return how tokens get to their experts, and whether another microbatch's passes run beside it."""
    kind, experts = flags.text(DISPATCHER, DISPATCHERS[0], DISPATCHERS), flags.whole("num_experts", 0, 0) > 0
    backend = flags.text("moe_flex_dispatcher_backend", "deepep", ("deepep", "hybridep"))
    flags.given("moe_enable_deepep")  # the argument of before 0.15
    beside = flags.given("overlap_moe_expert_parallel_comm")
    return {
        "token_dispatcher": backend if kind == "flex" and experts else "alltoall",
        "ep_overlap": beside and experts and flags.whole("expert_model_parallel_size", 1) > 1,
    }


def _experts(flags: Flags) -> list[str]:
    """Return what is simulated otherwise than the arguments say of experts."""
    grouped = flags.given("moe_grouped_gemm")
    if not flags.whole("num_experts", 0, 0):
        return []
    notes = []
    if flags.text(DISPATCHER, DISPATCHERS[0]) == DISPATCHERS[0]:
        notes.append("--moe-token-dispatcher-type allgather, Megatron-LM's default: predicted with alltoall")
    if not grouped:
        notes.append("no --moe-grouped-gemm: predicted with grouped products of the experts")
    return notes


def _recompute(flags: Flags, model: Model | None) -> tuple[Mapping[str, object], str]:
    """Return what recomputes, and what of it a plan says otherwise."""
    short = flags.given("recompute_activations")
    kind = flags.text("recompute_granularity", "selective" if short else "", ("full", "selective"))
    method = flags.text("recompute_method", "", ("uniform", "block"))
    count = flags.whole("recompute_num_layers", 0)
    if short and kind == "full":
        raise InputError(flags.place("recompute_granularity"), kind, "left out beside --recompute-activations")
    if kind == "full" and not (method and count):
        missing = "recompute_num_layers" if method else "recompute_method"
        raise InputError(flags.place(missing), None, "required with recompute-granularity full")
    if kind != "full" and (method or count):
        given = "recompute_method" if method else "recompute_num_layers"
        raise InputError(flags.place(given), method or count, "left out without recompute-granularity full")
    found, note = _modules(flags, model)
    if kind == "selective":
        experts = flags.whole("num_experts", model.experts if model else 0, 0) > 0
        whole = found and experts and "moe" in flags.text("recompute_modules").split()
        return {"recompute": "selective" if found else "none", "recompute_experts": whole}, note
    return {"recompute": kind or "none", "recompute_layers": count if method == "block" else None}, ""


def _modules(flags: Flags, model: Model | None) -> tuple[bool, str]:
    """Return whether selective recompute is, if only in part, a plan's; and a note where it is not all of it."""
    place, given = flags.place("recompute_modules"), flags.text("recompute_modules").split()
    if unknown := [name for name in given if name not in MODULES]:
        raise InputError(place, unknown[0], f"some of {', '.join(MODULES)}")
    asked = set(given or MODULES[:1])
    backend = EAGER.get(flags.text("attention_backend"))
    eager = model.attention == "eager" if model else MODULES[0] in asked if backend is None else backend
    experts = flags.whole("num_experts", model.experts if model else 0, 0) > 0
    latent = bool(model.kv_lora_rank) if model else flags.given("multi_latent_attention")
    if "moe" in asked:  # which repeats their activation too
        asked -= {"moe_act"}
    own = recomputed_modules(eager=eager, experts=experts, latent=latent, whole="moe" in asked)
    named, attention = " ".join(name for name in MODULES if name in asked), "eager" if eager else "fused"
    if asked != set(own):
        taken = f"selective, with {attention} attention that of {' '.join(own)}" if asked & set(own) else "none"
        return bool(asked & set(own)), f"--recompute-modules {named}: taken as recompute {taken}"
    return True, f"--recompute-modules {named}: of {attention} attention" if model is None and backend is None else ""


def _offload(flags: Flags, layers: int) -> Mapping[str, object]:
    moved = flags.whole("cpu_offloading_num_layers", 0, 0)
    fraction = flags.share("optimizer_offload_fraction", 1.0)
    if moved and not layers:
        raise InputError(flags.place("num_layers"), None, "required beside cpu-offloading-num-layers")
    if moved > layers:
        raise InputError(flags.place("cpu_offloading_num_layers"), moved, f"at most the {layers} layers")
    if flags.given("optimizer_cpu_offload"):
        flags.given("use_precision_aware_optimizer")
    optimizer = fraction if flags.given("optimizer_cpu_offload") else 0.0
    return {"offload": {"optimizer": optimizer, "activations": moved / layers if moved else 0.0}}


def _recipe(flags: Flags) -> str:
    """Return a note where 8 bits are scaled otherwise than a plan's fp8, which is Megatron-LM's default."""
    recipe = flags.text("fp8_recipe", "delayed")
    other = recipe in ("tensorwise", "blockwise") and any(name in flags for name in LOW[:2])
    return f"{flags.place('fp8_recipe')} {recipe}: taken as precision fp8, with delayed scaling" if other else ""


def _precision(flags: Flags) -> Mapping[str, object]:
    half = one_of(flags, ("bf16", "fp16"))
    low = one_of(flags, LOW)
    recipes = {name: flags.text(name) for name in LOW}
    recipes["fp8_recipe"] = flags.text("fp8_recipe", "delayed", ("delayed", "tensorwise", "blockwise", "mxfp8"))
    flags.text("fp4_recipe", "nvfp4", ("nvfp4",))
    flags.given("bf16")
    flags.given("fp16")
    in_fp32 = flags.given("accumulate_allreduce_grads_in_fp32")
    sums = one_of(flags, ("grad_reduce_in_bf16", "accumulate_allreduce_grads_in_fp32"))
    flags.given("grad_reduce_in_bf16")
    if low and half != "bf16":
        raise InputError(flags.place(low), recipes[low], "beside --bf16")
    if not half:
        return {"precision": "fp32", "gradient_dtype": "fp32"}
    precision = half
    if low:
        mx = recipes["fp8_recipe"] == LOW_PRECISION["mxfp8"]["fp8-recipe"]
        precision = "nvfp4" if low.startswith("fp4") else "mxfp8" if mx else "fp8"
    narrow = sums == "grad_reduce_in_bf16" or (half == "fp16" and not in_fp32)
    return {"precision": precision, "gradient_dtype": "bf16" if narrow else "fp32"}
