"""What a plan must keep to be runnable, as rules that hold for one plan or for arrays of plans alike.

A single plan is refused with the rule's text; the tuner evaluates the same predicates on whole columns and counts
what each rule excludes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.specs.fields import InputError
from sim.specs.model import Model
from sim.specs.pipelines import LOOPED, V_SHAPED
from sim.specs.spread import Spread
from sim.units import many

if TYPE_CHECKING:
    from sim.specs.plan import Plan


@dataclass(frozen=True)
class Rule:
    """One condition: the knob to change, a short reason, the predicate and the text of what is allowed.

    switched: the predicate looks at zero, selective or sequence_parallel; suggestion: as of an `InputError`.
    """

    knob: str
    reason: str
    broken: Callable[[Model, Spread], Any]
    allowed: Callable[[Model, Spread], str]
    switched: bool = False
    suggestion: Callable[[Model, Spread], str] = lambda model, spread: ""

    def error(self, plan: "Plan", path: str, model: Model, spread: Spread) -> InputError:
        """Return what is wrong with a plan, below `path`, that breaks the rule."""
        allowed, suggestion = self.allowed(model, spread), self.suggestion(model, spread)
        return InputError(f"{path}.{self.knob}", getattr(plan, self.knob), allowed, suggestion=suggestion)


def divisors(n: int) -> list[int]:
    """Return the divisors of n in ascending order."""
    small = [d for d in range(1, isqrt(n) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def nearest(value: int, options: list[int]) -> str:
    """Return the options nearest to `value` on either side, as text; there is one."""
    below = [o for o in options if o < value][-1:]
    above = [o for o in options if o > value][:1]
    return " or ".join(map(str, below + above))


def shards(model: Model, ranks: Any, tp: Any, spread: Any) -> Any:
    """Return whether ZeRO has anything to shard: some of `ranks` (dp x cp) hold the same weights, or some of the tp x
    `ranks` of a stage the same experts, of which they hold `spread` (ep x etp) different parts."""
    return (np.asarray(ranks) > 1) | ((model.experts > 0) & (np.asarray(tp) * ranks > spread))


def _divisor(knob: str, reason: str, attribute: str, broken: Callable[[Model, Spread], Any]) -> Rule:
    """Return the rule that a knob divides a number of the model (`heads`, shown as `model.heads`)."""

    def size(model: Model) -> int:
        return int(getattr(model, attribute.removeprefix("model.")))

    return Rule(
        knob,
        reason,
        broken,
        lambda m, s: f"a divisor of {attribute} = {size(m)}",
        suggestion=lambda m, s: f"; nearest {nearest(getattr(s, knob), divisors(size(m)))}",
    )


def _splits(name: str, attribute: str) -> Rule:
    reason = f"tp does not divide the {name}"
    return _divisor("tp", reason, f"model.{attribute}", lambda m, s: getattr(m, attribute) % s.tp != 0)


def _encodes(model: Model) -> bool:
    return model.family == "encoder-decoder"


def _per_rank(name: str, tokens: int, s: Spread) -> str:
    return f"{name} = {tokens}" if s.cp == 1 else f"{name} / cp = {tokens // s.cp}"


def _layers_knob(knob: str, reason: str, broken: Callable[[Model, Spread], Any]) -> Rule:
    def suggestion(model: Model, s: Spread) -> str:
        other = s.virtual_stages if knob == "pp" else s.pp
        value = s.pp if knob == "pp" else s.virtual_stages
        good = [d for d in divisors(model.layers) if model.layers % (d * other) == 0]
        if knob == "pp":
            good = [d for d in good if s.gpus % (s.tp * s.cp * d) == 0]
        beside = f"{'virtual_stages' if knob == 'pp' else 'pp'} {other}"
        near = f"nearest {nearest(value, good)}" if good else f"no {knob} does beside {beside}"
        return f" (or give stage_layers); {near}"

    return Rule(
        knob,
        reason,
        broken,
        lambda m, s: f"pp x virtual_stages must divide layers = {m.layers}",
        suggestion=suggestion,
    )


def _near_mesh(model: Model, s: Spread) -> str:
    inner = s.tp * s.cp
    good = [d for d in divisors(s.gpus) if s.gpus % (inner * d) == 0 and model.layers % (d * s.virtual_stages) == 0]
    if good:
        return f"; nearest pp {nearest(s.pp, good)}"
    other = [d for d in divisors(s.gpus) if s.gpus % (d * s.cp * s.pp) == 0]
    return "; no pp does" + (f": nearest tp {nearest(s.tp, other)}" if other else ", nor any tp beside this one")


def _paired(s: Spread) -> Any:
    """Return whether a forward of one microbatch follows every backward of another, or may run beside it."""
    return s.interleaved | ((np.asarray(s.pp) == 1) & np.isin(s.schedule, ("none", "1f1b")))


def _near_ring(model: Model, s: Spread) -> str:
    good = [d for d in divisors(s.gpus) if s.gpus % (s.tp * d) == 0]
    return f"; nearest cp {nearest(s.cp, good)}" if good else f"; no cp does beside tp {s.tp}"


def _no_mesh(model: Model, s: Spread) -> Any:
    """tp x cp x pp does not divide the devices, and pp is to blame."""
    return (s.gpus % (s.tp * s.cp * s.pp) != 0) & ((s.cp == 1) | (s.gpus % (s.tp * s.cp) == 0))


def _kv_split(model: Model, s: Spread) -> Any:
    """More ranks than key-value heads repeat them; MLA has none of its own."""
    fits = (model.kv_heads % s.tp == 0) | (s.tp % model.kv_heads == 0)
    return np.logical_not(fits) & (model.kv_lora_rank == 0)


def _uneven(model: Model, s: Spread) -> Any:
    parts = s.stage_layers
    return bool(parts) and (len(parts) != s.pp * s.virtual_stages or sum(parts) != model.layers or min(parts) < 0)


def _short_group(s: Spread) -> Any:
    beyond = s.microbatches % s.group
    return s.interleaved & (beyond > 0) & (beyond < s.pp)


def _whole_layers(knob: str) -> Rule:
    return Rule(
        knob,
        f"{knob} would split the layers of a traced network",
        lambda m, s: (m.table is not None) & (getattr(s, knob) > 1),
        lambda m, s: "1: a traced network is not split inside its layers",
    )


def _unsplit_steps(knob: str) -> Rule:
    return Rule(
        knob,
        f"{knob} would split recurrent layers",
        lambda m, s: m.whole_layers & (getattr(s, knob) > 1),
        lambda m, s: "1: recurrent layers are not split, a time step waits for all of the one before it",
    )


NO_TEMPO = "false: this model has no LayerNorm, no GELU, and no stored scores with dropout"


def takes_tempo(model: Model) -> bool:
    """Return whether the model has a layer that Tempo replaces: LayerNorm, GELU, or stored scores with dropout."""
    dropped = model.attention == "eager" and model.dropout > 0
    usual = model.table is None and not model.recurrent
    gelu = not model.gated_mlp and model.activation == "gelu"
    return usual and (model.norm == "layernorm" or gelu or dropped)


MAX_MICROBATCH_STAGES = 500_000
"""A million actions: far above any plan in use (64 ranks x 4,096 microbatches are half of it), a minute of waiting."""

RULES: tuple[Rule, ...] = (
    *map(_whole_layers, ("tp", "cp", "ep", "etp")),
    Rule(
        "recompute",
        "selective recompute of a traced network",
        lambda m, s: (m.table is not None) & s.selective,
        lambda m, s: "none or full: which kernels of a traced network to repeat is not known",
        switched=True,
    ),
    *map(_unsplit_steps, ("tp", "cp")),
    Rule(
        "recompute",
        "selective recompute of recurrent layers",
        lambda m, s: m.whole_layers & s.selective,
        lambda m, s: "none or full: recurrent layers have no norm or activation to repeat alone",
        switched=True,
    ),
    Rule(
        "pp",
        "layers of a traced network share parameters",
        lambda m, s: (m.network is not None and m.network.shares) & (s.pp > 1),
        lambda m, s: "1: layers of this network share parameters, which a pipeline would hold in copies",
    ),
    Rule(
        "tempo",
        "no layer that Tempo replaces",
        lambda m, s: np.logical_and(s.tempo, not takes_tempo(m)),
        lambda m, s: NO_TEMPO,
    ),
    _splits("attention heads", "heads"),
    Rule(
        "tp",
        "tp does not divide the key-value heads",
        _kv_split,
        lambda m, s: f"a divisor or a multiple of model.kv_heads = {m.kv_heads}",
    ),
    _splits("MLP width", "ffn"),
    _splits("shared experts' width", "shared_ffn"),
    _divisor(
        "tp",
        "tp does not divide the state-space heads",
        "model.ssm_heads",
        lambda m, s: ("M" in m.pattern) & (m.ssm_heads % s.tp != 0),
    ),
    Rule(
        "cp",
        "tp x cp does not divide the state-space heads",
        lambda m, s: ("M" in m.pattern) & (s.cp > 1) & (m.ssm_heads % (s.tp * s.cp) != 0),
        lambda m, s: f"tp {s.tp} x cp must divide model.ssm_heads = {m.ssm_heads}: ranks exchange whole heads",
    ),
    Rule(
        "cp",
        "tp x cp does not divide the GPUs",
        lambda m, s: (s.cp > 1) & (s.gpus % (s.tp * s.cp) != 0),
        lambda m, s: f"tp {s.tp} x cp {s.cp} must divide {many(s.gpus, 'GPU')}",
        suggestion=_near_ring,
    ),
    Rule(
        "pp",
        "tp x pp does not divide the GPUs",
        _no_mesh,
        lambda m, s: f"tp {s.tp}{f' x cp {s.cp}' if s.cp > 1 else ''} x pp {s.pp} must divide {many(s.gpus, 'GPU')}",
        suggestion=_near_mesh,
    ),
    Rule(
        "dp",
        "tp x pp x dp is not the number of GPUs",
        lambda m, s: s.tp * s.cp * s.pp * s.dp != s.gpus,
        lambda m, s: (
            f"{s.gpus // (s.tp * s.cp * s.pp)} (tp x pp{' x cp' if s.cp > 1 else ''} x dp must equal "
            f"{many(s.gpus, 'GPU')})"
        ),
    ),
    Rule(
        "stage_layers",
        "stage_layers does not add up",
        _uneven,
        lambda m, s: f"{s.pp * s.virtual_stages} numbers from 0 that add up to layers = {m.layers}",
    ),
    _layers_knob("pp", "pp does not divide the layers", lambda m, s: (m.layers % s.pp != 0) & (not s.stage_layers)),
    _layers_knob(
        "virtual_stages",
        "pp x virtual_stages does not divide the layers",
        lambda m, s: (m.layers % (s.pp * s.virtual_stages) != 0) & (not s.stage_layers),
    ),
    Rule(
        "global_batch",
        "dp does not divide the global batch",
        lambda m, s: s.global_batch % s.dp != 0,
        lambda m, s: f"a multiple of dp = {s.dp}",
    ),
    Rule(
        "micro_batch",
        "dp x micro_batch does not divide the global batch",
        lambda m, s: s.global_batch % (s.dp * s.micro_batch) != 0,
        lambda m, s: f"dp {s.dp} x micro_batch must divide global_batch = {s.global_batch}",
    ),
    Rule(
        "micro_batch",
        "too many actions in a step",
        lambda m, s: s.pp * s.virtual_stages * s.microbatches > MAX_MICROBATCH_STAGES,
        lambda m, s: (
            f"a larger one: {s.pp * s.virtual_stages * s.microbatches} stages x microbatches are more than the "
            f"{MAX_MICROBATCH_STAGES} that the engine takes"
        ),
    ),
    Rule(
        "global_batch",
        "too many actions until a schedule without flush is steady",
        lambda m, s: s.endless > MAX_MICROBATCH_STAGES,
        lambda m, s: (
            f"so many microbatches that they and pp have a common multiple nearby: {s.microbatches} and {s.pp} take "
            f"{s.endless} stages x microbatches until schedule {s.schedule} is steady, more than the "
            f"{MAX_MICROBATCH_STAGES} that the engine takes"
        ),
    ),
    Rule(
        "recompute_layers",
        "recompute_layers without recompute",
        lambda m, s: np.logical_and(s.repeated > 0, np.logical_not(s.repeats)),
        lambda m, s: "left out with recompute none",
    ),
    Rule(
        "schedule",
        "no schedule with pp > 1",
        lambda m, s: (np.asarray(s.schedule) == "none") & (s.pp > 1),
        lambda m, s: "another one, such as 1f1b, with pp > 1",
    ),
    Rule(
        "virtual_stages",
        "not two virtual stages with a V-shaped schedule",
        lambda m, s: np.isin(s.schedule, V_SHAPED) & (s.virtual_stages != 2),
        lambda m, s: f"2 with schedule {s.schedule}",
    ),
    Rule(
        "virtual_stages",
        "virtual stages without interleaved schedule and pp > 1",
        lambda m, s: np.where(s.chunked, (s.pp == 1) | (s.virtual_stages == 1), s.virtual_stages > 1),
        lambda m, s: f"2 or more with schedule {', '.join(LOOPED)} and pp 2 or more, else 1",
    ),
    Rule(
        "microbatch_group_size",
        "microbatch group smaller than pp",
        lambda m, s: s.interleaved & (s.group < s.pp),
        lambda m, s: f"at least pp = {s.pp}: a smaller group can deadlock",
    ),
    Rule(
        "micro_batch",
        "interleaved needs whole groups of microbatches",
        lambda m, s: _short_group(s),
        lambda m, s: f"a value that makes the {s.microbatches} microbatches a multiple of {s.group} (interleaved)",
    ),
    Rule(
        "sequence_parallel",
        "sequence parallelism without tp > 1",
        lambda m, s: s.sequence_parallel & (s.tp == 1),
        lambda m, s: "false with tp = 1: there is no tensor-parallel group",
        switched=True,
    ),
    Rule(
        "tp_comm_overlap",
        "tp_comm_overlap without sequence parallelism",
        lambda m, s: np.logical_and(s.tp_comm_overlap, (s.tp > 1) & np.logical_not(s.sequence_parallel)),
        lambda m, s: "false without sequence_parallel, which it cuts the traffic of",
        switched=True,
    ),
    Rule(
        "ep_overlap",
        "ep_overlap in an order that pairs no passes",
        lambda m, s: np.logical_and(s.ep_overlap, (s.ep > 1) & ~_paired(s)),
        lambda m, s: f"false with schedule {s.schedule}: interleaved, or none on one pipeline rank, pair passes",
    ),
    Rule(
        "ep_overlap",
        "ep_overlap with full recompute",
        lambda m, s: np.logical_and(s.ep_overlap, (s.ep > 1) & s.repeats & np.logical_not(s.selective)),
        lambda m, s: "false with recompute full: the exchanges are made again in the backward pass",
        switched=True,
    ),
    Rule(
        "tp",
        "tp does not divide the sequence (sequence parallelism)",
        lambda m, s: s.sequence_parallel & ((m.seq % s.tp != 0) | ((m.seq % s.cp == 0) & (m.seq // s.cp % s.tp != 0))),
        lambda m, s: f"a divisor of {_per_rank('seq', m.seq, s)} with sequence_parallel",
        switched=True,
    ),
    Rule(
        "tp",
        "tp does not divide the encoder's sequence (sequence parallelism)",
        lambda m, s: s.sequence_parallel & _encodes(m) & (m.encoder_seq // s.cp % s.tp != 0),
        lambda m, s: f"a divisor of {_per_rank('encoder_seq', m.encoder_seq, s)} with sequence_parallel",
        switched=True,
    ),
    _divisor("cp", "cp does not divide the sequence", "seq", lambda m, s: m.seq % s.cp != 0),
    _divisor(
        "cp",
        "cp does not divide the encoder's sequence",
        "encoder_seq",
        lambda m, s: _encodes(m) & (m.encoder_seq % s.cp != 0),
    ),
    Rule(
        "ep",
        "ep does not divide the experts",
        lambda m, s: (m.experts or 1) % s.ep != 0,
        lambda m, s: f"a divisor of model.experts = {m.experts}" if m.experts else "1: the model has no experts",
    ),
    Rule(
        "ep",
        "ep x etp does not divide the ranks of a stage",
        lambda m, s: (s.tp * s.cp * s.dp) % (s.ep * s.etp) != 0,
        lambda m, s: f"ep x etp {s.etp} must divide tp x cp x dp = {s.tp * s.cp * s.dp}",
    ),
    Rule(
        "etp",
        "etp does not divide the experts' width",
        lambda m, s: np.logical_or((m.moe_ffn if m.experts else 1) % s.etp != 0, (s.etp > 1) & (s.tp % s.etp != 0)),
        lambda m, s: f"a divisor of model.moe_ffn = {m.moe_ffn} and of tp = {s.tp}" if m.experts else "1: no experts",
    ),
    Rule(
        "fsdp_shard",
        "fsdp_shard without ZeRO",
        lambda m, s: np.logical_and(s.shard > 0, s.zero == 0),
        lambda m, s: "left out with zero 0: nothing is sharded",
        switched=True,
    ),
    Rule(
        "fsdp_shard",
        "fsdp_shard does not divide the data-parallel ranks",
        lambda m, s: (s.shard > 0) & ((s.dp * s.cp) % np.maximum(s.shard, 1) != 0),
        lambda m, s: f"a divisor of dp x cp = {s.dp * s.cp}",
    ),
)
"""In the order in which a user should mend them; every predicate is safe where earlier ones are broken."""
