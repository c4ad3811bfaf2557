"""A measured row as model, cluster and plan, with every assumption that filled a blank written down.

Blanks follow the rules of the reference tables: sequence parallelism off, dp = gpus / (tp pp cp), heads =
hidden / 128, a key-value head per head, one virtual stage, MLP width 4 hidden, vocabulary 51,200, and dimensions
by the model's name where `hidden` is blank. A row that states the ranks of an FSDP shard ran PyTorch's FSDP. What
names say beyond the columns stands in `sim/catalog/aliases.json`.
"""

import json
import re
from bisect import bisect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from math import ceil, isqrt
from typing import Any

from sim.catalog import data, meant, newer_profile, spelled
from sim.costs import inputs
from sim.costs.run_level import DIGITS
from sim.engine.assembly import check_schedule
from sim.specs.catalog import device, models, stated_model
from sim.specs.cluster import Cluster, Links
from sim.specs.fields import InputError, read
from sim.specs.model import ASSUMED_VOCAB, Model
from sim.specs.plan import Offload, PlacedPlan, Plan
from sim.specs.rules import divisors
from sim.validation.table import Measured

PCIE_BYTES_PER_S = 31.5e9
"""PCIe 4.0 x16, one direction: 16 GT/s x 16 lanes x 128/130 / 8 (PCI Express Base Specification 4.0)."""

RELEASE = re.compile(r"(?: (?=2\d\.)|-20(?=2\d-))(2\d)[.-](0[1-9]|1[0-2])(?:\.(\d{1,2}))?(?!\.?\d)")
"""A calendar version, or a month, in the name of a source: year and month, and a patch where one follows."""
THIRD, THIRDS = re.compile(r" (early|mid|late) (20[2-9]\d)\b"), {"early": 1 / 6, "mid": 1 / 2, "late": 5 / 6}

HEAD_DIM = 128
MOST_CHUNKS = 16_384
"""Model chunks that a plan lists the layers of; it refuses more by their number."""

DIMENSIONS = (
    "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq", "gated_mlp", "attention",
    "experts", "experts_per_token", "moe_ffn", "adapter_rank", "adapters_on",
)  # fmt: skip
"""Columns that are fields of `Model` of the same name; a key that only some models have is blank elsewhere."""


OF_MODEL = ("layers", "hidden", "seq", "vocab")
OF_PLAN = ("tp", "pp", "cp", "ep", "virtual_stages", "global_batch", "micro_batch", "recompute", "zero", "precision")
"""What digests of runs take; files hold these, so that nothing is added."""


@dataclass(frozen=True)
class Case:
    """A measured row with what it means; the plan is legal on the model and the cluster, and can be predicted."""

    row: Measured
    model: Model
    cluster: Cluster
    placed: PlacedPlan
    assumptions: tuple[str, ...]

    @property
    def plan(self) -> Plan:
        """The plan of the run."""
        return self.placed.plan

    @property
    def digest(self) -> str:
        """What tells the run from others, wherever it is written down: device, network, plan and measured time."""
        stated = (self.cluster.hardware.name, self.cluster.gpus, self.placed.dp, self.row.step_time_s)
        parts = [*stated, *(getattr(self.model, n) for n in OF_MODEL), *(getattr(self.plan, n) for n in OF_PLAN)]
        return sha256(json.dumps(parts).encode()).hexdigest()[:DIGITS]


@dataclass
class _Notes:
    """Collects what was assumed."""

    texts: list[str] = field(default_factory=list)

    def assume(self, stated: Any, value: Any, what: str, why: str) -> Any:
        """Return `stated`, or `value` with a note where nothing is stated."""
        if stated is not None:
            return stated
        self.texts.append(f"{what} = {str(value).lower() if isinstance(value, bool) else value} ({why})")
        return value


def translate(row: Measured, profile: str | None = None) -> Case:
    """Return the case of a row; `profile` replaces the profile of the row's device.

    Raises:
        InputError: the row says too little, model, cluster or plan cannot express it, or the devices or their profile
            cannot serve it.
    """
    facts = _facts(row)
    notes = _Notes([str(fact["source"]) for fact in facts])
    if LORA in row.notes and row.adapter_rank is None and "adapter_rank" not in _merged(facts, "model"):
        notes.texts.append(f"{LORA}: predicted as if all weights were trained, as nothing says what its adapters are")
    blank = {key: value for key, value in _merged(facts, "blank").items() if getattr(row, key) is None}
    told = replace(row, **blank | _merged(facts, "row"))
    cluster = _cluster(told, profile, notes)
    model = _model(told, _merged(facts, "model"), notes)
    plan = _plan(told, model, cluster, _merged(facts, "plan"), notes)
    placed = plan.on(model, cluster)
    # A predictor takes many rows at once: what it would refuse one of them for is refused here, with that row.
    inputs.check_served(plan, cluster)
    check_schedule(placed)
    return Case(row, model, cluster, placed, (*notes.texts, *model.assumptions, *cluster.assumptions))


LORA = "LoRA"
"""What the notes of a run say that trains adapters alone (arXiv 2106.09685)."""


@cache
def _aliases() -> dict[str, Any]:
    read: dict[str, Any] = data("aliases.json")
    return read


def _base(row: Measured) -> str | None:
    """Return the catalog name of a published name, a remark in brackets left aside.

    Case and punctuation do not matter where the row has no dimensions of its own, or is as wide as the model and no
    family's software speaks for the name: what columns cannot say (latent attention, an encoder) is the name's to say.
    """
    known: dict[str, str] = _aliases()["models"]["names"]
    bare = row.model.split(" (", maxsplit=1)[0]
    if row.layers is not None:
        bare = bare.removesuffix(f" cut to {row.layers} layers")
    found = known.get(row.model) or known.get(bare) or bare
    if found in models:
        return found
    alike = _spellings().get(spelled(bare))
    if row.hidden is None or alike is None:
        return alike
    ran = any("plan" in fact and row.model.startswith(fact.get("starts", "\0")) for fact in _agreed(row))
    return alike if not ran and stated_model(alike)["hidden"] == row.hidden else None


@cache
def _spellings() -> dict[str, str]:
    known: dict[str, str] = _aliases()["models"]["names"]
    return {spelled(name): found for name, found in {**known, **{name: name for name in models}}.items()}


def _facts(row: Measured) -> list[Mapping[str, Any]]:
    """Return what a name and a source say; a family's habits ("starts") count where no catalog entry states them."""
    name = row.model
    free = _base(row) is None
    return [
        fact
        for fact in _agreed(row)
        if ((free and name.startswith(fact["starts"])) if "starts" in fact else fact.get("has", "") in name)
        and fact.get("lacks", "\0") not in name
    ]


def _agreed(row: Measured) -> list[Mapping[str, Any]]:
    """Return the terms whose `from` begins the row's source, of no older software than `since` (a decimal year), and
    whose `where` agrees with its columns (a value each, or a list of them) and whose `says` stands in its notes."""
    return [
        fact
        for fact in _aliases()["terms"]
        if row.source.startswith(fact.get("from", ""))
        and (released(row.source) or 0) >= fact.get("since", 0)
        and all(getattr(row, key) in each for key, each in _listed(fact.get("where", {})))
        and fact.get("says", "") in row.notes
    ]


def _listed(columns: Mapping[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    yield from ((key, value if isinstance(value, list) else [value]) for key, value in columns.items())


def _merged(facts: list[Mapping[str, Any]], part: str) -> dict[str, Any]:
    return {key: value for fact in facts for key, value in fact.get(part, {}).items()}


def _cluster(row: Measured, profile: str | None, notes: _Notes) -> Cluster:
    name = meant("devices", row.device)
    usual = device(name)
    inner = row.tp * row.pp * (row.cp or 1)
    server = min(usual.gpus_per_node, row.gpus or inner * (row.dp or usual.gpus_per_node))
    node = notes.assume(row.gpus_per_node, server, "gpus_per_node", "the device's usual server")
    replicas, why = max(1, node // inner), "one server, or what tp, pp and cp take"
    if row.dp:
        replicas, why = row.dp, "tp x pp x cp x dp"
    gpus = notes.assume(row.gpus, inner * replicas, "gpus", why)
    if gpus > node and gpus % node:
        servers, node = node, divisors(gpus)[bisect(divisors(gpus), node) - 1]
        if 2 * node < servers:
            raise InputError("gpus", gpus, f"a multiple of gpus_per_node = {servers}")
        notes.assume(None, node, "gpus_per_node", f"{gpus} devices on servers of {servers}, equally many on each")
    links: dict[str, Any] = {}
    if row.inter_node_gbytes_per_s is not None:
        links["inter_bytes_per_s_per_node"] = row.inter_node_gbytes_per_s * 1e9
    if row.intra_node == "pcie" and usual.intra_bytes_per_s.value > PCIE_BYTES_PER_S:
        links["intra_bytes_per_s"] = notes.assume(None, PCIE_BYTES_PER_S, "intra_bytes_per_s", "PCIe 4.0 x16")
    if row.intra_node == "nvlink" and usual.intra_node == "pcie":
        notes.texts.append(f"intra_node = nvlink is not counted: the links of {row.device} are PCIe's")
    own = {"profile": held} if (held := profile or _newer(row, name, notes)) else {}
    return Cluster.of(
        name, max(1, gpus // node), gpus_per_node=min(node, gpus), links=read(Links, links, "links"), **own
    )


NEWER_SINCE = 2024.5
"""From this date of its software a run is predicted by the device's profile of newer libraries, where it has one: the
oldest dated runs that this one's kernels meet better than the older profile's are of NeMo 24.07."""


def _newer(row: Measured, device: str, notes: _Notes) -> str | None:
    """Return the profile of newer libraries for a run whose source says that it had them; None: it does not."""
    year, newer = released(row.source), newer_profile(device)
    if newer is None or year is None or year < NEWER_SINCE:
        return None
    notes.texts.append(f"cluster.profile = {newer} (software of {year:.2f})")
    return newer


def _model(row: Measured, facts: dict[str, Any], notes: _Notes) -> Model:
    stated = {name: getattr(row, name) for name in DIMENSIONS if getattr(row, name) is not None}
    name = _base(row)
    if name is None and (row.hidden is None or row.layers is None):
        allowed = "a model whose layers and hidden are stated, or a name of the catalog"
        raise InputError("model", row.model, allowed)
    base = stated_model(name) if name else {}
    if row.hidden is None:
        notes.texts.append(f"dimensions of {name} (catalog)")
        gated = base.get("gated_mlp", False)
        if stated.pop("gated_mlp", gated) != gated:  # tables fill such a column where a name stands for the model
            notes.texts.append(f"gated_mlp = {str(gated).lower()} (catalog's {name}; the row has the other)")
    elif row.hidden != base.get("hidden"):
        if name:
            notes.texts.append(f"{name} of the catalog has another width: only its {', '.join(HABITS)} are taken")
        base = {key: value for key, value in base.items() if key in HABITS} | _usual(row, row.hidden, notes)
    if base.get("family") == "encoder-decoder" and row.layers not in (None, base.get("layers")):
        stated |= _stacks(row, int(row.layers or 0), base.get("encoder_layers"), notes)
    if base.get("family") == "vit" and row.seq is not None:
        side = max(1, isqrt(row.seq - 1)) * base.get("patch", Model.patch)
        base["image_size"] = notes.assume(None, side, "image_size", f"square, of seq = {row.seq} with the class")
    return Model(**(base | stated | facts))


def _stacks(row: Measured, layers: int, encoder: int | None, notes: _Notes) -> dict[str, int]:
    """Return the layers of an encoder-decoder: of both stacks, but those of one where they are what the model of that
    name has in its encoder, as a config.json counts them."""
    if layers == encoder and not row.model.endswith(f"cut to {layers} layers"):
        return {"layers": notes.assume(None, 2 * layers, "layers", f"{layers} are one stack's")}
    half = notes.assume(None, layers // 2, "encoder_layers", f"half of the {layers} layers, which are of both stacks")
    return {"encoder_layers": half}


HABITS = ("norm", "dropout", "bias", "positions", "tied_embeddings", "gated_mlp", "attention", "family")
"""What still holds of a catalog model where a row states another width."""


def _usual(row: Measured, hidden: int, notes: _Notes) -> dict[str, Any]:
    """Return what a network without a catalog entry takes where the row is silent."""
    usual = {
        "name": row.model[:100],
        "heads": notes.assume(row.heads, nearest_heads(hidden, row.tp), "heads", "hidden / 128, split by tp"),
        "ffn": notes.assume(row.ffn, 4 * hidden, "ffn", "4 hidden"),
        "vocab": notes.assume(row.vocab, ASSUMED_VOCAB, "vocab", "GPT-2's, padded"),
    }
    if row.gated_mlp:
        usual["norm"] = notes.assume(None, "rmsnorm", "norm", "usual with a gated MLP")
    return usual


def nearest_heads(hidden: int, tp: int) -> int:
    """Return the most heads up to hidden / 128 that divide `hidden` and that `tp` divides, else the fewest above.

    Heads of 128 columns or a little wider: what published recipes take where hidden is no multiple of 128 tp.
    """
    wanted = max(1, hidden // HEAD_DIM)
    fitting = [n for n in divisors(hidden) if n % tp == 0]
    return max((n for n in fitting if n <= wanted), default=min(fitting, default=wanted))


def _plan(row: Measured, model: Model, cluster: Cluster, facts: dict[str, Any], notes: _Notes) -> Plan:
    if row.global_batch is None:
        raise InputError("global_batch", None, "a number of sequences")
    schedule = row.schedule or ("none" if row.pp == 1 else None)
    chunks = row.vpp or 1
    if schedule == "interleaved" and chunks == 1:
        chunks = notes.assume(None, 2, "vpp", "the fewest chunks that an interleaved schedule takes")
    if schedule is None:
        usual = "interleaved" if chunks > 1 else "1f1b"
        schedule = notes.assume(None, usual, "schedule", "pipeline by number of chunks")
    shard = row.fsdp_shard or 0
    zero = notes.assume(row.zero_stage, 3 if shard else 1, "zero", "full shard with FSDP, else sharded optimizer")
    given: dict[str, Any] = {
        "tp": row.tp,
        "pp": row.pp,
        "virtual_stages": chunks,
        "dp": row.dp,
        "global_batch": row.global_batch,
        "micro_batch": notes.assume(row.micro_batch, 1, "micro_batch", "not stated"),
        "schedule": schedule,
        "recompute": notes.assume(row.recompute, "none", "recompute", "not stated"),
        "zero": zero,
        "precision": row.precision,
        "sequence_parallel": bool(row.sequence_parallel) and row.tp > 1,
    }
    given |= {name: getattr(row, name) for name in ("cp", "ep", "etp") if (getattr(row, name) or 1) > 1}
    for name in ("ep", "etp") if model.experts else ():
        notes.assume(getattr(row, name), 1, name, "not stated")
    given |= {"compiled": True} if row.compiled else {}
    given |= _software(row, notes)
    given |= _framework(row, zero, notes)
    given |= _shard(shard * (row.cp or 1), cluster.gpus // (row.tp * row.pp), notes)
    if row.pp * chunks <= MOST_CHUNKS and model.layers % (row.pp * chunks):
        given["stage_layers"] = uneven(model.layers, row.pp * chunks)
        notes.texts.append(f"stage_layers = {given['stage_layers']} (spread unevenly, fewer at the ends)")
    facts = {key: tuple(value) if isinstance(value, list) else value for key, value in facts.items()}
    if "offload" in facts:
        facts["offload"] = read(Offload, facts["offload"], "offload")
    # What a source usually runs gives way to what the row states.
    spread = bool(model.experts) and given.get("ep", 1) > 1
    cannot = {
        "tp_comm_overlap": not given["sequence_parallel"],
        "gradient_dtype": row.precision == "fp32",
        "token_dispatcher": not spread,
        "fused_experts": row.precision != "mxfp8",
        "ep_overlap": not spread or (row.pp > 1 and chunks == 1),
    }
    return Plan(**(given | {key: value for key, value in facts.items() if not cannot.get(key)}))


def _software(row: Measured, notes: _Notes) -> dict[str, float]:
    year = released(row.source)
    if year is None:
        return {}
    notes.texts.append(f"software_year = {year:.2f} (date in the name of the source)")
    return {"software_year": year}


def released(source: str) -> float | None:
    """Return the decimal year of the calendar version (YY.MM, YY.MM.patch) that `source` names after a space, of the
    month (YYYY-MM) after a hyphen, or of the middle of the "early", "mid" or "late" third of a year, if any.

    A patch counts as a hundredth of a month.
    """
    found = RELEASE.search(source)
    if found is None:
        part = THIRD.search(source)
        return int(part[2]) + THIRDS[part[1]] if part else None
    year, month, patch = (int(part or 0) for part in found.groups())
    return 2000 + year + (month - 1 + patch / 100) / 12


def _framework(row: Measured, zero: int, notes: _Notes) -> dict[str, Any]:
    """Return what follows from the software that a row's techniques point to; the columns do not name it.

    Megatron-LM has reduced gradients beside the backward pass since 2023, when attention was fused already, and had
    Megatron-Core's layers by the end of that year. fp16 with a sharded optimizer is DeepSpeed's engine (Megatron-LM's
    own came with bf16), which waits for every pipeline message and runs Megatron-LM's layers from before their
    reductions were asynchronous. Tensor-parallel ranks send a part of a message each, as in all of DeepSpeed since
    0.5.4 (October 2021; before, those of the forward pass alone: `runtime/pipe/engine.py`). Its ZeRO-1 all-reduces
    16-bit gradients (`zero/stage_1_and_2.py`, `allreduce_bucket`), which moves as many bytes as what is counted, fp32
    ones reduced into shards. Fully sharded parameters are PyTorch's FSDP. Neither of these two adds weight gradients to
    the sum in the product. Megatron-LM sums and reduces gradients in the parameters' type; only bf16 makes that fp32
    (its `arguments.py`, `accumulate_allreduce_grads_in_fp32`).
    """
    if row.fsdp_shard:
        return {"framework": "torch", "fused_wgrad": False}
    half, eager = row.precision == "fp16", row.attention == "eager"
    narrow = {"gradient_dtype": "bf16"} if half and zero <= (0 if eager else 1) else {}
    if narrow:
        notes.texts.append("gradients of 16 bit (Megatron-LM's default with fp16)")
    if not eager:
        return narrow
    if half and zero == 1:
        counted = "gradients that it all-reduces in 16 bit count as reduced into shards in fp32"
        notes.texts.append(f"framework = DeepSpeed (fp16 with a sharded optimizer); {counted}")
        off = dict.fromkeys(("fused_wgrad", "overlap_dp", "tp_overlap", "core_modules"), False)
        return off | {"blocking_sends": True}
    notes.texts.append("overlap_dp = core_modules = false (Megatron-LM before 2023, when attention was not fused)")
    return narrow | {"overlap_dp": False, "core_modules": False}


def _shard(shard: int, ranks: int, notes: _Notes) -> dict[str, int]:
    """Return the HSDP argument where fewer than all `ranks` of a stage hold one copy."""
    if shard > ranks:
        notes.texts.append(f"fsdp_shard = {ranks} (all ranks of a stage; {shard} with context parallelism are stated)")
    return {"fsdp_shard": shard} if 0 < shard < ranks else {}


def uneven(layers: int, chunks: int) -> tuple[int, ...]:
    """Return layers per chunk: as even as can be, what is missing taken from the last, the first, and so inward.

    Embedding and output layer make the ends heavier: Megatron-LM's split that accounts for both, torchtitan's
    and zero-bubble's all come out so.
    """
    most = ceil(layers / chunks)
    missing = most * chunks - layers
    from_end = (missing + 1) // 2
    less = {*range(missing - from_end), *range(chunks - from_end, chunks)}
    return tuple(most - (n in less) for n in range(chunks))
