"""The plans to compare: knob values, the legal combinations as columns, and why the others are left out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.costs.layers.block import repeats_some
from sim.plans.limit import NOTHING, Asked, unsearched
from sim.plans.targets import OVERLAPS
from sim.schedules import CLOSED, SCHEDULES, Shape
from sim.specs import Cluster, Model, Plan
from sim.specs.catalog import precisions
from sim.specs.fields import read
from sim.specs.job import Target
from sim.specs.pipelines import PIPELINES
from sim.specs.plan import RECOMPUTE
from sim.specs.rules import RULES, Rule, divisors, shards
from sim.specs.spread import Spread
from sim.tuner.limits import on_target

Column = NDArray[np.int64]
Reason = tuple[str, Callable[[Model, Spread, Mapping[str, Column]], Any]]
"""A reason to leave rows out, and of a model, the rows' numbers and their columns for which it does."""

MAX_TP = 64
MAX_VIRTUAL_STAGES = 16
MAX_EP = 64
CP_TOKENS = 8192
"""Tokens of a sequence that context parallelism leaves a rank at least, where nobody lists its degrees: with fewer, tp
and micro-batches do as well, and every further degree makes the space larger."""

MAX_MICRO_BATCH = 64
SWITCHES = ("recompute", "zero", "sequence_parallel")
"""Knobs that do not change the pipeline's shape; each has an array axis of its own."""

ORDERS = tuple(name for name, pipeline in PIPELINES.items() if pipeline.copies == 1)
"""Codes of the `schedule` column: all orders of one copy of the model. Those without closed form are scored by bounds,
and the engine runs what these leave."""

NONE, ONE_F_ONE_B, INTERLEAVED = map(ORDERS.index, ("none", "1f1b", "interleaved"))
SPLIT = tuple(map(ORDERS.index, ("zb-h1", "zb-h2", "zb-1p")))
"""Those that on one rank run all of a microbatch before the next one; ZB-2P keeps two there."""

SHAPE_KNOBS = ("tp", "pp", "cp", "ep", "virtual_stages", "micro_batch", "fsdp_shard")
"""Knobs that are numbers of a row; `fsdp_shard` 0: one copy over all data-parallel ranks."""

PRECISIONS = tuple(precisions)
"""Codes of the `precision` column."""

KEPT = (
    "gradient_dtype", "overlap_dp", "precision", "optimizer", "compiled", "cuda_graphs", "layer_graphs", "fused_wgrad",
    "scatter_gather", "tp_overlap", "tp_comm_overlap", "token_dispatcher", "fused_experts", "ep_overlap",
    "blocking_sends", "offload", "framework", "core_modules", "cross_entropy", "etp", "fsdp_shard", "rank_order",
    "attention_kernel", "product_kernel", "recurrent_kernel", "tempo", "software_year", "optimizer_barrier",
    "recompute_experts",
)  # fmt: skip
"""Settings of a plan that are not searched: they are taken from the job's plan."""


@dataclass(frozen=True, eq=False)
class Space:
    """Rows are legal shapes (tp, pp, virtual_stages, micro_batch, dp, ...), schedules, precisions and kinds of layers
    (tempo); switches multiply every row.

    recompute: indices into `RECOMPUTE`, without selective where it repeats nothing; kept: settings that are not
    searched; excluded: configurations by reason; asked: all combinations of knobs; knobs: those that are given; target:
    what must run the plans.
    `allowed[row, recompute, zero, sequence_parallel]` marks the distinct legal configurations; waits, of an axis each,
    those whose gradients the target reduces after the backward pass, whatever the settings say.
    """

    model: Model
    cluster: Cluster
    global_batch: int
    kept: Mapping[str, Any]
    rows: Mapping[str, Column]
    recompute: Column
    zero: Column
    sequence_parallel: Column
    allowed: NDArray[np.bool_]
    excluded: Mapping[str, int]
    asked: int
    knobs: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    target: Target = "any"
    waits: NDArray[np.bool_] | None = None

    def plan(self, row: int, recompute: int, zero: int, sequence_parallel: int) -> Plan:
        """Return the plan at these indices; what is a default stays left out."""
        shape = {name: int(self.rows[name][row]) for name in SHAPE_KNOBS}
        if not shape["fsdp_shard"]:
            del shape["fsdp_shard"]
        switches: dict[str, Any] = {
            "recompute": RECOMPUTE[int(self.recompute[recompute])],
            "zero": int(self.zero[zero]),
        }
        sharded = bool(self.sequence_parallel[sequence_parallel])
        if sharded != (shape["tp"] > 1):
            switches["sequence_parallel"] = sharded
        if self.rows["schedule"][row] > INTERLEAVED:  # the others follow from the shape
            switches["schedule"] = ORDERS[self.rows["schedule"][row]]
        if "precision" in self.knobs:
            switches["precision"] = self.precision(row)
        if "tempo" in self.knobs:
            switches["tempo"] = bool(self.rows["tempo"][row])
        if self.waits is not None and self.waits[row, 0, zero, 0]:
            switches["overlap_dp"] = False
        return read(Plan, dict(self.kept) | shape | switches | {"global_batch": self.global_batch})

    def precision(self, row: int) -> str:
        """Return the precision of a row."""
        return str(PRECISIONS[self.rows["precision"][row]])


def default_knobs(model: Model, cluster: Cluster) -> dict[str, list[Any]]:
    """Return the values that are tried for knobs that the user leaves free."""
    meshes = divisors(cluster.gpus)
    split = not model.whole_layers
    powers = [2**i for i in range(MAX_MICRO_BATCH.bit_length())]
    return {
        "tp": [d for d in meshes if d <= (MAX_TP if split else 1)],
        "pp": [d for d in meshes if d <= model.layers],
        "cp": [d for d in meshes if d == 1 or (split and d * CP_TOKENS <= model.seq)],
        "ep": [d for d in divisors(model.experts or 1) if d <= min(MAX_EP, cluster.gpus)],
        "virtual_stages": [d for d in divisors(model.layers) if d <= MAX_VIRTUAL_STAGES],
        "micro_batch": powers,
        "recompute": list(RECOMPUTE) if split else ["none", "full"],
        "zero": [0, 1, 2, 3],
        "sequence_parallel": [False, True] if split else [False],
    }


def same_once(model: Model, framework: str, recompute: Sequence[str]) -> list[str]:
    """Return kinds of recompute without selective where that is the same as none."""
    same = "none" in recompute and not repeats_some(model, framework)
    return [kind for kind in recompute if not (same and kind == "selective")]


def build_space(
    model: Model,
    cluster: Cluster,
    global_batch: int,
    knobs: Mapping[str, Sequence[Any]] | None = None,
    kept: Mapping[str, Any] | None = None,
    target: Target = "any",
) -> Space:
    """Return every combination of the knobs, split into legal rows and counted exclusions.

    Without ranks to shard over all stages of ZeRO are one configuration, and without a pipeline all schedules that are
    the same as none: duplicates of one that is left are excluded by reason like illegal ones. Values listed twice count
    once.
    """
    fixed = kept or {}
    settings = Plan(global_batch=global_batch, **fixed).suited(cluster)
    values = default_knobs(model, cluster) | {"fsdp_shard": [settings.fsdp_shard or 0]}
    values |= {"precision": [settings.precision], "tempo": [settings.tempo]}
    values |= {k: list(dict.fromkeys(v)) for k, v in (knobs or {}).items()}
    shape = _combinations(cluster, values)
    recompute = np.array([RECOMPUTE.index(r) for r in values["recompute"]], dtype=np.int64)
    zero, sp = np.array(sorted(values["zero"]), dtype=np.int64), np.array(values["sequence_parallel"], dtype=np.int64)
    per_row = len(recompute) * len(zero) * len(sp)
    shape["microbatches"] = global_batch // (shape["dp"] * shape["micro_batch"])
    excluded: dict[str, int] = {}
    rows = _legal_rows(model, cluster, global_batch, fixed, shape, per_row, excluded)
    needs = _asked(model, settings, rows, recompute, zero, sp)
    spread = _spread(cluster, global_batch, fixed, {k: v[:, None, None, None] for k, v in rows.items()})
    allowed = on_target(target, needs, _legal(model, spread, recompute, zero, sp, excluded), excluded)
    allowed = _distinct(model, needs, allowed, excluded)
    if len(recompute) > len(same_once(model, settings.framework, values["recompute"])):
        idle = recompute == RECOMPUTE.index("selective")
        _count(excluded, "selective recompute of nothing (the same as none)", int(allowed[:, idle].sum()))
        recompute, allowed = recompute[~idle], allowed[:, ~idle]
    asked, given = len(shape["tp"]) * per_row, dict(knobs or {})
    waits = ~OVERLAPS[target](needs) if target in OVERLAPS and settings.overlap_dp else None
    return Space(
        model, cluster, global_batch, fixed, rows, recompute, zero, sp, allowed, excluded, asked, given, target, waits
    )


def _spread(cluster: Cluster, global_batch: int, kept: Mapping[str, Any], shape: Mapping[str, Column]) -> Spread:
    """Return the numbers of rows for the rules, with switches that break none."""
    return Spread(
        gpus=cluster.gpus, cp=shape["cp"], ep=shape["ep"], etp=kept.get("etp", 1), shard=shape["fsdp_shard"],
        tp=shape["tp"], pp=shape["pp"], virtual_stages=shape["virtual_stages"], dp=shape["dp"],
        micro_batch=shape["micro_batch"], global_batch=global_batch, group=shape["pp"], sequence_parallel=np.False_,
        schedule=np.array(ORDERS)[shape["schedule"]], tempo=shape["tempo"] > 0,
        tp_comm_overlap=kept.get("tp_comm_overlap", False), ep_overlap=kept.get("ep_overlap", False),
    )  # fmt: skip


def _legal_rows(
    model: Model,
    cluster: Cluster,
    global_batch: int,
    kept: Mapping[str, Any],
    rows: Mapping[str, Column],
    per_row: int,
    excluded: dict[str, int],
) -> Mapping[str, Column]:
    """Return the rows that nothing leaves out; the `per_row` configurations of any other count for its first reason."""
    spread, legal = _spread(cluster, global_batch, kept, rows), np.ones(len(rows["tp"]), dtype=bool)
    for reason, broken in REASONS:
        found = broken(model, spread, rows)
        if not np.any(found):
            continue
        found = legal & found
        legal &= ~found
        _count(excluded, reason, int(found.sum()) * per_row)
        if 2 * legal.sum() < len(legal):  # the reasons that follow need not look at the others
            rows = {name: column[legal] for name, column in rows.items()}
            spread, legal = _spread(cluster, global_batch, kept, rows), np.ones(len(rows["tp"]), dtype=bool)
    return {name: column[legal] for name, column in rows.items()}


def _asked(model: Model, plan: Plan, rows: Mapping[str, Column], recompute: Column, zero: Column, sp: Column) -> Asked:
    """Return what the configurations ask of a target, on the space's axes; `plan` says what is not searched."""
    columns: dict[str, Any] = {name: column[:, None, None, None] for name, column in rows.items()}
    barrier = np.array([plan.barrier(name) for name in ORDERS])
    return Asked(
        **{name: columns[name] for name in ("tp", "pp", "cp", "ep", "dp", "microbatches")},
        group=columns["pp"],
        shard=np.where(columns["fsdp_shard"] > 0, columns["fsdp_shard"], columns["dp"] * columns["cp"]),
        schedule=np.array(ORDERS)[columns["schedule"]],
        recompute=np.array(RECOMPUTE)[recompute][:, None, None],
        zero=zero[:, None],
        sequence_parallel=sp > 0,
        etp=plan.etp,
        partial=columns["fsdp_shard"] > 0,
        precision=np.array(PRECISIONS)[columns["precision"]],
        gradient_dtype=plan.gradient_dtype,
        overlap_dp=plan.overlap_dp,
        rank_order=plan.rank_order,
        offload=plan.offload or NOTHING,
        barrier=barrier[columns["schedule"]],
        **unsearched(model, plan) | {"tempo": columns["tempo"] > 0},
    )


def _combinations(cluster: Cluster, values: Mapping[str, Sequence[Any]]) -> dict[str, Column]:
    """Return all combinations of the shape knobs as columns; the schedule follows from pp and chunks if free."""
    codes = [ORDERS.index(name) for name in values.get("schedule", ["none"])]
    named = {"schedule": codes, "precision": [PRECISIONS.index(name) for name in values["precision"]]}
    named["tempo"] = list(values["tempo"])
    axes = [np.array(each, dtype=np.int64) for each in (*(values[k] for k in SHAPE_KNOBS), *named.values())]
    columns = [a.ravel() for a in np.meshgrid(*axes, indexing="ij")]
    shape = dict(zip([*SHAPE_KNOBS, *named], columns, strict=True))
    if "schedule" not in values:
        piped = np.where(shape["virtual_stages"] > 1, INTERLEAVED, ONE_F_ONE_B)
        shape["schedule"] = np.where((shape["pp"] == 1) & (shape["virtual_stages"] == 1), 0, piped)
    shape["dp"] = np.maximum(1, cluster.gpus // (shape["tp"] * shape["pp"] * shape["cp"]))
    return shape


def _alone(schedules: Column) -> Column:
    """Return the schedules that stand for the listed ones where there is no pipeline: none or 1F1B, which is the same,
    for all. Without either, one stands for ZB-H1, ZB-H2 and ZB-1P; others keep more microbatches, or update more often.
    """
    same = next((each for each in (NONE, ONE_F_ONE_B) if (schedules == each).any()), None)
    if same is not None:
        return np.full_like(schedules, same)
    split = np.isin(schedules, SPLIT)
    return np.where(split, schedules[split].min(initial=len(ORDERS)), schedules)


def _unordered(model: Model, spread: Spread, shape: Mapping[str, Column]) -> NDArray[np.bool_]:
    """Return which combinations the schedules without closed form refuse."""
    refused = np.zeros(len(shape["pp"]), dtype=bool)
    for code, name in enumerate(ORDERS):
        rows = np.flatnonzero(shape["schedule"] == code)
        if not len(rows) or name == "none" or name in CLOSED:
            continue
        each = np.stack([shape[n][rows] for n in ("pp", "microbatches", "virtual_stages")], axis=1)
        sizes, where = np.unique(each, axis=0, return_inverse=True)
        refused[rows] = np.array([_refused(name, *size) for size in sizes.tolist()])[where.ravel()]
    return refused


def _refused(name: str, ranks: int, microbatches: int, chunks: int) -> bool:
    kind = SCHEDULES[name]
    return kind.refusal(Shape(ranks, microbatches, chunks, kind.group(ranks, microbatches))) is not None


def _of_rule(rule: Rule) -> Reason:
    return rule.reason, lambda model, spread, rows: rule.broken(model, spread)


REASONS: tuple[Reason, ...] = (
    *(_of_rule(rule) for rule in RULES if not rule.switched),
    (
        "fsdp_shard of all data-parallel ranks (the same as 0)",
        lambda model, spread, rows: (rows["fsdp_shard"] == 0).any() & (spread.shard == spread.dp * spread.cp),
    ),
    (
        "a pipeline schedule with pp = 1 (the same as another)",
        lambda model, spread, rows: (spread.pp == 1) & (rows["schedule"] != _alone(rows["schedule"])),
    ),
    ("microbatches or ranks that the schedule cannot have", _unordered),
)
"""Why rows are left out, in the order in which reasons count, whatever the switches."""


def _count(excluded: dict[str, int], reason: str, number: int) -> None:
    if number:
        excluded[reason] = excluded.get(reason, 0) + number


def _legal(
    model: Model,
    spread: Spread,
    recompute: Column,
    zero: Column,
    sp: Column,
    excluded: dict[str, int],
) -> NDArray[np.bool_]:
    """Return which configurations of legal rows, whose numbers are `spread`, are legal with every switch."""
    switched = replace(
        spread, zero=zero[:, None], sequence_parallel=sp > 0,
        selective=(recompute == RECOMPUTE.index("selective"))[:, None, None],
        repeats=(recompute > RECOMPUTE.index("none"))[:, None, None],
    )  # fmt: skip
    legal = np.ones((len(spread.tp), len(recompute), len(zero), len(sp)), dtype=bool)
    for rule in (rule for rule in RULES if rule.switched):  # the rows keep the others already
        broken = rule.broken(model, switched)
        if not np.any(broken):
            continue
        broken = legal & broken
        _count(excluded, rule.reason, int(broken.sum()))
        legal &= ~broken
    return legal


def _distinct(model: Model, asked: Asked, allowed: NDArray[np.bool_], excluded: dict[str, int]) -> NDArray[np.bool_]:
    """Return the `allowed` configurations, of those without anything to shard the ones of the least ZeRO stage."""
    same = allowed & ~shards(model, asked.dp * asked.cp, asked.tp, asked.ep * asked.etp)
    again = same & (same.cumsum(axis=2) > 1)
    _count(excluded, "ZeRO without ranks to shard over (the same as ZeRO-0)", int(again.sum()))
    return np.asarray(allowed & ~again)
