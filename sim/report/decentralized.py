"""Decentralised training in words: traffic, time, theta and what accuracy it leaves."""

from collections.abc import Iterator, Sequence

from sim.decentralized import Simulated, WhatIf
from sim.decentralized.accuracy import Estimate
from sim.units import digits3, grouped, lasting, many, percent, si

AXES = {
    "bandwidth": ("links of", "B/s"),
    "partitions": ("partitions:", ""),
    "skew": ("skew", ""),
    "model_bytes": ("a model of", "B"),
}


def answer_decentralized(found: Simulated) -> Iterator[str]:
    """Yield the answer, how theta went, where the time went, and what happened."""
    setting = found.setting
    saved = f", {digits3(found.saving)} times less than BSP" if found.saving and found.saving > 1 else ""
    yield (
        f"{many(found.steps, 'minibatch', 'minibatches')} by {setting.algorithm} on {setting.partitions} partitions "
        f"{'takes' if found.steps == 1 else 'take'} "
        f"{lasting(found.seconds)} (BSP {lasting(found.bsp_seconds)}) and {si(found.traffic_bytes, 'B')}{saved}."
    )
    if found.accuracy and found.accuracy_loss:
        borne = percent(setting.objective.tolerated)
        word = "within" if found.bearable else "above"
        chosen = f", on which {setting.controller} settles," if setting.adapts else ""
        yield (
            f"Accuracy {estimated(found.accuracy)}; theta {found.final_theta:g}{chosen} loses "
            f"{estimated(found.accuracy_loss)} between home and away, {word} the {borne} that are borne."
        )
    if setting.adapts:
        went = ", ".join(f"{since.theta:g} from minibatch {grouped(since.step)}" for since in found.thetas)
        yield f"{setting.controller} moved theta: {went}; models that travelled take {si(found.travel_bytes, 'B')}."
    for n, parts in enumerate(found.parts_s):
        held = ", ".join(f"{part} {lasting(seconds)}" for part, seconds in parts.items() if seconds)
        yield f"Partition {n}: {held or 'nothing takes any time'}."
    for report in found.reports:
        yield report[0].upper() + report[1:] + "."


def estimated(estimate: Estimate) -> str:
    """Return a fraction with its 80 % interval in percent."""
    return f"{percent(estimate.value)} ({percent(estimate.low)} to {percent(estimate.high)})"


def what_if_lines(rows: Sequence[WhatIf]) -> Iterator[str]:
    """Yield a line for every value of an axis."""
    for row in rows:
        words, unit = AXES[row.axis]
        value = si(row.value, unit) if unit else f"{row.value:g}"
        accuracy = f", accuracy {estimated(row.accuracy)}" if row.accuracy else ""
        saved = f", {digits3(row.saving)} times less than BSP" if row.saving else ""
        took = f"{lasting(row.seconds)}, {si(row.traffic_bytes, 'B')}{saved}"
        yield f"{words} {value}: {took}, theta {row.theta:g}{accuracy}"
