"""A search's short list as rows, for the terminal and for the page."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any, Literal, TypedDict

from sim.report.numbers import seconds_interval
from sim.specs import Plan, StagePlan
from sim.tuner.explain import value_words
from sim.tuner.ranking import RankedPlan
from sim.tuner.tune import Tuned
from sim.units import GB, digits3, percent


class Row(TypedDict):
    """One plan of the ranking; times in seconds, sizes in bytes, mfu a fraction (Megatron's convention).

    What differs from stage to stage is text, the stages' values in order: "2 x3, 4".
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
    recompute: str
    sequence_parallel: bool | str
    step_time_s: float
    step_time_interval_s: tuple[float, float]
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
    "recompute": ("recompute", "activations computed again in the backward pass"),
    "sequence_parallel": ("sp", "sequence parallelism of norms and dropout within tp"),
    "step_time": ("step time (80 %)", "predicted median and central 80 % interval"),
    "mfu": ("MFU", "model FLOP utilisation, Megatron's convention, of the 16-bit peak"),
    "memory": ("peak / capacity, GB", "allocated on the fullest rank, and the device's memory"),
    "fits": ("fits", "whether reserved memory and context fit: yes, close or no"),
    "price": ("USD / 1e9 tokens", "rent of all devices for 1e9 training tokens"),
    "p_best": ("P(best)", "probability of being the fastest of these plans, under sampled calibrations"),
}
"""Column -> (heading, explanation)."""


def ranking(tuned: Tuned) -> list[Row]:
    """Return the short list, best first, as plain rows."""
    return [_row(n, ranked) for n, ranked in enumerate(tuned.plans, 1)]


def shown(rows: Sequence[Row]) -> list[str]:
    """Return the columns worth showing: those of cp and ep only where a plan uses them, P(best) where it is known."""
    usual = {"cp": 1, "ep": 1, "p_best": None}
    return [name for name in COLUMNS if name not in usual or any(dict(row)[name] != usual[name] for row in rows)]


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


def _of_stages(plan: Plan, name: str) -> Any:
    """Return a plan's value, or the values of its unequal stages as text."""
    values = [getattr(plan.at(s), name) for s in range(len(plan.stages) or 1)]
    if len(set(values)) == 1:
        return values[0]
    runs = ((value, len(list(same))) for value, same in groupby(values))
    return ", ".join(f"{value_words(value)} x{n}" if n > 1 else value_words(value) for value, n in runs)


def _row(rank: int, ranked: RankedPlan) -> Row:
    step, plan = ranked.step, ranked.plan
    return Row(
        rank=rank,
        tp=_of_stages(plan, "tp"),
        pp=plan.pp,
        cp=plan.cp,
        ep=plan.ep,
        virtual_stages=plan.virtual_stages,
        dp=_of_stages(plan, "dp") if plan.stages else step.placed.dp,
        micro_batch=_of_stages(plan, "micro_batch"),
        zero=_of_stages(plan, "zero"),
        recompute=str(_of_stages(plan, "recompute")),
        sequence_parallel=_of_stages(plan, "sequence_parallel"),
        step_time_s=step.step_time_s,
        step_time_interval_s=step.step_time_interval_s,
        mfu=step.mfu,
        peak_memory_bytes=step.peak_memory_bytes,
        capacity_bytes=step.cluster.memory_bytes,
        fits=step.fits,
        usd_per_1e9_tokens=step.usd_per_1e9_tokens,
        p_best=ranked.p_best,
        why=ranked.why[0],
    )


def formatted(row: Row) -> dict[str, str]:
    """Return a row's cells as text, by the names of `COLUMNS`."""
    plain: dict[str, Any] = dict(row)
    price = row["usd_per_1e9_tokens"]
    cells = {
        "sequence_parallel": "on" if row["sequence_parallel"] else "off",
        "step_time": seconds_interval(row["step_time_s"], row["step_time_interval_s"]),
        "mfu": percent(row["mfu"]),
        "memory": f"{digits3(row['peak_memory_bytes'] / GB)} / {digits3(row['capacity_bytes'] / GB)}",
        "price": "not known" if price is None else digits3(price),
        "p_best": "" if row["p_best"] is None else percent(row["p_best"]),
    }
    return {name: cells.get(name, str(plain.get(name, ""))) for name in COLUMNS}
