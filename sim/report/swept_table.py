"""Configurations of a sweep as the rows of a table."""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np

from sim.report import markup as m
from sim.report.numbers import byte_unit, seconds_interval
from sim.report.swept import Point, Swept, axis_label, paths_of
from sim.specs.fields import short
from sim.sweep.outcome import BETTER, FITS, INTERVAL, NUMBERS, measured
from sim.units import digits3, percent, seconds

Box = tuple[float, float, float, float]
Numbers = Mapping[str, float]
PREDICTED = NUMBERS.keys() | INTERVAL.keys()


def step_words(numbers: Numbers) -> str:
    """Return the step time, with its 80 % interval where it is known."""
    value, low, high = (
        numbers.get(name, float("nan")) for name in ("step_time_s", "step_time_low_s", "step_time_high_s")
    )
    return seconds_interval(value, (low, high)) if isfinite(low) else seconds(value)


def _cost(numbers: Numbers) -> str:
    value = numbers["usd_per_1e9_tokens"]
    return digits3(value) if value > 0 else "not known"


COLUMNS: Mapping[str, tuple[str, Callable[[Numbers], str]]] = {
    "step time": ("in brackets its 80 % interval, which simulated steps have", step_words),
    "peak memory": (
        "allocated, fullest pipeline rank",
        lambda n: byte_unit(n["peak_memory_bytes"]).text(n["peak_memory_bytes"]),
    ),
    "fits": ("close: the memory of a GPU lies inside the interval", lambda n: FITS[int(n["fits"])]),
    "MFU": ("model FLOP utilisation, Megatron's convention", lambda n: percent(n["mfu"])),
    "tokens/s and GPU": ("", lambda n: digits3(n["tokens_per_s_per_gpu"])),
    "USD per 1e9 tokens": ("at the cluster's price", _cost),
}
"""Predicted numbers by heading, with an explanation and the text of a value."""


def configurations(points: Sequence[Point], columns: Sequence[str] | None = None) -> str:
    """Return the table of some configurations, as HTML. columns: paths of axes and headings of `COLUMNS`, by default
    all."""
    chosen = [*points[0].values, *COLUMNS] if columns is None else columns
    named = ((COLUMNS.get(name, ("",))[0], breakable(name)) for name in chosen)
    heads = [("#", "the configuration's number"), *((text, why) for why, text in named)]
    return m.table(heads, ([str(p.number), *(_cell(p, name) for name in chosen)] for p in points))


def _cell(point: Point, name: str) -> str:
    return COLUMNS[name][1](point.numbers) if name in COLUMNS else short(axis_label(point.values[name]), 60)


def chosen_points(
    found: Swept, box: Box | None, among: Mapping[str, Sequence[Any]], most: int
) -> tuple[list[Point], int]:
    """Return the best of the points of `glimpse`, those that fit before the others, and how many there are to choose
    from.

    box: memory from and to (B), time from and to (s), that is looked at, None is everything; among: as of `glimpse`.
    The best of all is among them where it lies there, whether it is drawn or not.
    """
    held = found.points
    memory, time = held["peak_memory_bytes"], held["step_time_s"]
    rows = np.flatnonzero(_inside(memory, time, box))
    name, sign = BETTER[found.objective]
    worth = np.nan_to_num(sign * held[name][rows].astype(float), nan=np.inf)
    chosen = rows[np.lexsort((worth, -held["fits"][rows]))[:most]]
    paths = paths_of(held)
    best = [
        p
        for p in found.top
        if p.number not in held["number"]
        and all(p.values[path] in values for path, values in among.items())
        and _inside(p.numbers["peak_memory_bytes"], p.numbers["step_time_s"], box)
    ]
    listed = [
        Point(
            int(held["number"][k]),
            {path: held[path][k] for path in paths},
            {path: float(held[path][k]) for path in PREDICTED & held.keys()},
        )
        for k in chosen.tolist()
    ]
    return [*best, *listed][:most], len(rows) + len(best)


def _inside(memory: Any, time: Any, box: Box | None) -> Any:
    low, high, early, late = box or (0.0, np.inf, 0.0, np.inf)
    return (memory >= low) & (memory <= high) & (time >= early) & (time <= late)


def breakable(path: str) -> str:
    """Return a path that may go on in the next line between its words."""
    return path.replace(".", ".\u200b").replace("_", "_\u200b")


def best_words(best: Point, objective: str) -> str:
    """Return what the best configuration takes, and which it is."""
    worth = "" if objective == "step_time" else f", {measured(best.numbers[BETTER[objective][0]], objective)}"
    named = ", ".join(f"{path} {short(axis_label(value), 60)}" for path, value in best.values.items())
    return f"{step_words(best.numbers)} a step{worth} with {named}"
