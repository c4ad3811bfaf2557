"""What a prediction of the input pipeline says, in lines."""

from collections.abc import Sequence
from itertools import groupby
from math import isfinite

from sim.loading import Prediction, Simulated, WhatIf
from sim.units import counted, digits3, lasting, many, percent, si


def answer_loading(found: Prediction) -> list[str]:
    """Return the lines of a prediction: what training gets, why, and what would be enough."""
    lines = [
        f"{digits3(found.samples_per_s)} samples/s of {digits3(found.compute_samples_per_s)} that training could take: "
        f"fetch stall {percent(found.fetch_stall_fraction)}, prep stall {percent(found.prep_stall_fraction)}.",
        found.why,
        f"Fetching gives {_rate(found.fetch_samples_per_s)}, preparing {_rate(found.prep_samples_per_s)}; "
        f"{percent(found.hit_fraction)} of reads are cached, an epoch reads {si(found.read_bytes_per_epoch, 'B')} from "
        "storage.",
        f"An epoch takes {lasting(found.epoch_s)}, the first {lasting(found.first_epoch_s)}.",
        f"Enough: {si(found.recommended_cache_bytes, 'B')} of cache, {many(found.recommended_cores, 'core')}; on these "
        f"cores {many(found.recommended_workers, 'worker')}.",
    ]
    return [*lines, *(f"Assumed: {text}" for text in found.assumptions)]


def _rate(value: float) -> str:
    return f"{digits3(value)} samples/s" if isfinite(value) else "as much as one likes"


def answer_simulated(found: Simulated, law: Prediction) -> list[str]:
    """Return the lines of a simulation beside the law's prediction."""
    off = found.samples_per_s / law.samples_per_s - 1
    return [
        f"Simulated: {digits3(found.samples_per_s)} samples/s ({100 * off:+.1f} % of the law's), "
        f"{counted(found.counts.batches)} batches in {lasting(found.seconds)} of training.",
    ]


def what_if_lines(rows: Sequence[WhatIf]) -> list[str]:
    """Return a line for every setting, one for numbers that follow each other and change nothing."""
    lines = []
    for (told, _), alike in groupby(
        rows, key=lambda row: (_found(row), row.value if isinstance(row.value, str) else "")
    ):
        first, *more = map(_value, alike)
        lines.append(f"{rows[0].axis} {first}{f' to {more[-1]}' if more else ''}: {told}")
    return lines


def _found(row: WhatIf) -> str:
    stalls = f"fetch stall {percent(row.fetch_stall_fraction)}, prep stall {percent(row.prep_stall_fraction)}"
    return f"{digits3(row.samples_per_s)} samples/s, {stalls}"


def _value(row: WhatIf) -> str:
    if isinstance(row.value, str):
        return row.value
    return {"cache": si(row.value, "B"), "gpus": f"x {row.value:g}"}.get(row.axis, f"{row.value:g}")
