"""A search's short list as rows of plain data."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Literal, TypedDict

from sim.report.numbers import change, probability, seconds_interval
from sim.report.per_stage import HOSTED, of_stages, on_host, recomputing, runs
from sim.specs import Plan, StagePlan
from sim.tuner.explain import value_words
from sim.tuner.ranking import RankedPlan
from sim.tuner.tune import Tuned
from sim.units import GB, digits3, percent

SMALL = 0.1
"""Shares below it are told to a hundredth of a percent."""


class Row(TypedDict):
    """One plan of the ranking; times in seconds, sizes in bytes, mfu a fraction (Megatron's convention).

    What differs from stage to stage is text, the stages' values in order: "2x3 4" is three of 2 and one of 4.
    layers: of every stage (chunk); *_on_host: percent; over_best: step time on the event engine over that of the first
    plan, less 1; None where the order is by memory.
    """

    rank: int
    tp: int | str
    pp: int
    cp: int
    ep: int
    virtual_stages: int
    dp: int | str
    micro_batch: int | str
    zero: int | str
    fsdp_shard: int | None
    schedule: str
    precision: str
    layers: str
    recompute: str
    tempo: bool
    weights_on_host: str
    gradients_on_host: str
    optimizer_on_host: str
    activations_on_host: str
    sequence_parallel: bool | str
    step_time_s: float
    step_time_interval_s: tuple[float, float]
    over_best: float | None
    mfu: float
    peak_memory_bytes: float
    capacity_bytes: float
    fits: Literal["yes", "close", "no"]
    usd_per_1e9_tokens: float | None
    p_best: float | None
    why: str


COLUMNS: Mapping[str, tuple[str, str]] = {
    "rank": ("#", "rank in the order of the objective"),
    "tp": ("tp", "tensor-parallel degree: devices that share every layer"),
    "pp": ("pp", "pipeline-parallel degree: devices in a row, each with some layers"),
    "cp": ("cp", "context-parallel degree: devices that share a sequence"),
    "ep": ("ep", "expert-parallel degree: devices that share the experts"),
    "virtual_stages": ("v", "virtual stages: chunks of the model per pipeline rank"),
    "dp": ("dp", "data-parallel degree: copies of the model"),
    "micro_batch": ("micro", "micro-batch: samples per copy and forward pass"),
    "zero": ("ZeRO", "what is sharded over dp: 1 optimizer, 2 + gradients, 3 + parameters"),
    "fsdp_shard": ("shard", "data-parallel ranks that share one copy of what ZeRO shards"),
    "schedule": ("schedule", "order of the pipeline's passes"),
    "precision": ("precision", "of matrix products"),
    "layers": ("layers", "layers of every stage"),
    "recompute": ("recompute", "activations computed again in the backward pass; a number: in so many of its layers"),
    "tempo": ("Tempo", "layers that keep fewer bytes for the backward pass"),
    **{f"{what}_on_host": (f"{what} on host, %", f"share of the {what} kept in host memory") for what in HOSTED},
    "sequence_parallel": ("sp", "sequence parallelism of norms and dropout within tp"),
    "step_time": ("step time (80\u00a0%)", "predicted median and central 80 % interval, without contention"),
    "over_best": ("over 1st", "step time on the event engine, with contention, over that of the first plan"),
    "mfu": ("MFU", "model FLOP utilisation, Megatron's convention, of the 16-bit peak"),
    "memory": ("peak, GB", "allocated on the fullest pipeline rank"),
    "fits": ("fits", "whether reserved memory and context fit: yes, close or no"),
    "price": ("USD / 1e9 tokens", "rent of all devices for 1e9 training tokens"),
    "p_best": (
        "P(best)",
        "share of draws of kernel and run-level errors in which the plan is the fastest of these; errors common to all "
        "plans cancel, those of one plan alone are not drawn",
    ),
}
"""Column -> (heading, explanation)."""


def ranking(tuned: Tuned) -> list[Row]:
    """Return the short list, best first, as plain rows."""
    first = None if tuned.objective == "memory_headroom" else tuned.best.ranked_s
    return [_row(n, ranked, first) for n, ranked in enumerate(tuned.plans, 1)]


class StageRow(TypedDict):
    """One stage of a plan: degrees, how many of its layers recompute, and what waits on the host, in words."""

    stage: int
    layers: int
    tp: int
    dp: int
    micro_batch: int
    zero: int
    recompute: str
    recomputing_layers: int
    on_host: str


def stages(plan: Plan) -> list[StageRow]:
    """Return the unequal stages of a plan as plain rows, none where all are alike."""
    return [
        StageRow(
            stage=n,
            layers=own.layers,
            tp=own.tp,
            dp=own.dp,
            micro_batch=own.micro_batch,
            zero=own.zero,
            recompute=own.recompute,
            recomputing_layers=0 if own.recompute == "none" else own.recompute_layers or own.layers,
            on_host=_on_host(own) or "nothing",
        )
        for n, own in enumerate(plan.stages)
    ]


def _on_host(own: StagePlan) -> str:
    return ", ".join(f"{100 * share:g} % of {name}" for name, share in asdict(own.offload).items() if share)


def _row(rank: int, ranked: RankedPlan, first_s: float | None) -> Row:
    step, plan = ranked.step, ranked.plan
    return Row(
        rank=rank,
        tp=of_stages(plan, "tp"),
        pp=plan.pp,
        cp=plan.cp,
        ep=plan.ep,
        virtual_stages=plan.virtual_stages,
        dp=of_stages(plan, "dp") if plan.stages else step.placed.dp,
        micro_batch=of_stages(plan, "micro_batch"),
        zero=of_stages(plan, "zero"),
        fsdp_shard=plan.fsdp_shard,
        schedule=plan.schedule,
        precision=plan.precision,
        layers=runs(plan.split(step.model)),
        recompute=recomputing(plan),
        tempo=plan.tempo,
        weights_on_host=on_host(plan, "weights"),
        gradients_on_host=on_host(plan, "gradients"),
        optimizer_on_host=on_host(plan, "optimizer"),
        activations_on_host=on_host(plan, "activations"),
        sequence_parallel=of_stages(plan, "sequence_parallel"),
        step_time_s=step.step_time_s,
        step_time_interval_s=step.step_time_interval_s,
        over_best=None if first_s is None else ranked.ranked_s / first_s - 1,
        mfu=step.mfu,
        peak_memory_bytes=step.peak_memory_bytes,
        capacity_bytes=step.cluster.memory_bytes,
        fits=step.fits,
        usd_per_1e9_tokens=step.usd_per_1e9_tokens,
        p_best=ranked.p_best,
        why=ranked.why[0],
    )


def formatted(row: Row) -> dict[str, str]:
    """Return a row's cells as text, by the names of `COLUMNS`; empty where there is nothing to say."""
    plain: dict[str, Any] = dict(row)
    price, over, p = row["usd_per_1e9_tokens"], row["over_best"], row["p_best"]
    cells = {
        "fsdp_shard": "all" if row["fsdp_shard"] is None else str(row["fsdp_shard"]),
        "sequence_parallel": value_words(row["sequence_parallel"]),
        "tempo": value_words(row["tempo"]),
        "step_time": seconds_interval(row["step_time_s"], row["step_time_interval_s"]),
        "over_best": "" if over is None else change(over, 2 if over < SMALL else 0),
        "mfu": percent(row["mfu"]),
        "memory": digits3(row["peak_memory_bytes"] / GB),
        "price": "not known" if price is None else digits3(price),
        "p_best": "" if p is None else probability(p),
    }
    return {name: cells.get(name, str(plain.get(name, ""))) for name in COLUMNS}
