"""What TBD's authors observe (arXiv 1803.06905, section 4, by number), beside what is found here, and on what.

In our words; the paper's own text, but for its abstract, was not at hand to hold them against.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from calibration.workloads.expected import Expectations, Expected
from calibration.workloads.results import Results, largest
from sim.report.numbers import tenths
from sim.units import percent

RECURRENT = ("seq2seq", "deep-speech-2")
LSTM = "seq2seq"
CONVOLUTIONAL = ("resnet-50", "inception-v3")
SATURATED = 1.05
"""Throughput is, where twice the batch has less than so many times as much."""


@dataclass(frozen=True)
class Observation:
    """A published observation; holds: whether it does here, None where it cannot be said, `ours` says why."""

    number: int
    published: str
    ours: str
    on: str
    holds: bool | None


def observations(tiny: Results, full: Results, expected: Expectations) -> list[Observation]:
    """Return all thirteen.

    tiny, full: networks measured on this machine, the tiny ones with their own batch; expected: predicted on a GPU.
    """
    made = [*_of_batches(expected), *_of_speed(tiny, full), *_of_the_device(expected), *_of_memory(tiny, expected)]
    return sorted([*made, _of_links(expected)], key=lambda one: one.number)


def _of_batches(expected: Expectations) -> Iterator[Observation]:
    rows, on = _alone(expected), f"predicted, {expected.device}, bf16"
    rises = {name: all(b > a for a, b in pairwise(_rates(found))) for name, found in rows.items()}
    yield Observation(
        1, "Throughput rises with the batch, for every network",
        f"rises with every doubling for {sum(rises.values())} of {len(rises)}", on, all(rises.values()),
    )  # fmt: skip
    last = {name: _rates(found)[-1] / _rates(found)[-2] for name, found in rows.items()}
    yield Observation(
        2, "Recurrent networks are not saturated by what fits into memory",
        "the last doubling that fits brings " + _listed({n: f"{last[n]:.2f}x" for n in (*RECURRENT, *CONVOLUTIONAL)}),
        on, all(last[name] >= SATURATED for name in RECURRENT),
    )  # fmt: skip


def _of_speed(tiny: Results, full: Results) -> Iterator[Observation]:
    compiled = tiny.gains()["compiled"]
    yield Observation(
        3, "Which framework is faster depends on the network (TensorFlow, MXNet, CNTK)",
        f"only torch is here: compiled is {_span(compiled.values())} times as fast" if compiled else "not measured",
        "measured, tiny networks, one core", min(compiled.values()) < 1 < max(compiled.values()) if compiled else None,
    )  # fmt: skip
    used = {row.workload: row.metrics.tensor_utilisation or 0.0 for row in full.measured().values()}
    yield Observation(
        7, "Recurrent networks use little of the arithmetic units",
        "of the peak " + _listed({name: percent(used[name]) for name in (*RECURRENT, *CONVOLUTIONAL)}),
        f"measured, whole networks, {full.samples} samples, one core",
        max(used[name] for name in RECURRENT) < min(used[name] for name in CONVOLUTIONAL),
    )  # fmt: skip
    yield Observation(
        8, "Long kernels use little of the arithmetic units, batch norm first",
        "the benchmark keeps no single kernels", "cannot be said", None,
    )  # fmt: skip
    yield Observation(9, "Processors are hardly used", "the processor is the device here", "cannot apply", None)
    yield Observation(
        10, "Newer GPUs need better libraries (Quadro P4000, Titan Xp)",
        "neither was at hand, and profiles of old GPUs are carried over from new ones", "cannot apply", None,
    )  # fmt: skip


def _of_the_device(expected: Expectations) -> Iterator[Observation]:
    rows, on = _alone(expected), f"predicted, {expected.device}, bf16"
    busy = {name: [row.metrics.compute_utilisation or 0.0 for row in found] for name, found in rows.items()}
    yield Observation(
        4, "The batch must be large enough to keep the GPU busy",
        f"busier with the largest batch than with one sample: {sum(b[-1] > b[0] for b in busy.values())} of "
        f"{len(busy)}; {_span([b[0] for b in busy.values()], percent)} becomes "
        f"{_span([b[-1] for b in busy.values()], percent)}", on, all(b[-1] > b[0] for b in busy.values()),
    )  # fmt: skip
    compute = {name: expected.own(name).metrics.compute_utilisation or 0.0 for name in (LSTM, *CONVOLUTIONAL)}
    yield Observation(
        5, "The GPU is seldom busy with LSTMs",
        "at their own batch busy " + _listed({name: percent(share) for name, share in compute.items()}), on,
        compute[LSTM] < min(compute[name] for name in CONVOLUTIONAL),
    )  # fmt: skip
    rate = {name: [row.metrics.flop_per_s for row in found] for name, found in rows.items()}
    yield Observation(
        6, "The batch must be large enough for the arithmetic units",
        f"of the peak, a step of one sample uses {_of_peak(expected, [r[0] for r in rate.values()])}, of the largest "
        f"batch {_of_peak(expected, [r[-1] for r in rate.values()])}", on, all(r[-1] > r[0] for r in rate.values()),
    )  # fmt: skip


def _of_memory(tiny: Results, expected: Expectations) -> Iterator[Observation]:
    on = f"predicted, {expected.device}, bf16"
    parts = {name: row.metrics.memory_bytes for name, row in tiny.measured().items()}
    said = {name: expected.own(name).metrics.memory_bytes for name in parts}
    wanted = (*CONVOLUTIONAL, *RECURRENT)
    yield Observation(
        11, "Feature maps take most of the memory",
        f"the largest part of {_count(parts)} tiny networks (convolutional and recurrent "
        f"{_span([_maps(parts[name]) for name in wanted], percent)}); of {_count(said)} full ones (these "
        f"{_span([_maps(said[name]) for name in wanted], percent)})",
        f"measured, each with its own batch; {on}",
        all(largest(held[name]) == "activations" for held in (parts, said) for name in wanted),
    )  # fmt: skip
    rows = _alone(expected)
    half = {name: _rates(rows[name])[-2] / _rates(rows[name])[-1] for name in CONVOLUTIONAL}
    yield Observation(
        12, "To fill the memory with the largest batch may not pay",
        "half of the largest batch has " + _listed({name: percent(value) for name, value in half.items()})
        + " of its throughput", on, all(v > 1 / SATURATED for v in half.values()),
    )  # fmt: skip


def _of_links(expected: Expectations) -> Observation:
    scaling = expected.scaling
    spans = {links: _span(by.values(), percent) for links, by in scaling.items()}
    slow, fast = scaling["Ethernet"], scaling["InfiniBand"]
    return Observation(
        13, "The network must be fast for several machines to pay",
        "of eight times the throughput, eight devices have " + _listed(spans),
        f"predicted, {expected.device}, bf16", all(slow[name] <= fast[name] for name in slow),
    )  # fmt: skip


def _of_peak(expected: Expectations, rates: Iterable[float]) -> str:
    return _span([rate / expected.peak_flop_per_s for rate in rates], tenths)


def _maps(held: Mapping[Any, float]) -> float:
    return held["activations"] / sum(held.values())


def _count(parts: Mapping[str, Mapping[Any, float]]) -> str:
    return f"{sum(largest(held) == 'activations' for held in parts.values())} of {len(parts)}"


def _alone(expected: Expectations) -> dict[str, list[Expected]]:
    return {name: expected.alone(name) for name in dict.fromkeys(row.workload for row in expected.rows)}


def _rates(found: list[Expected]) -> list[float]:
    return [row.metrics.samples_per_s for row in found]


def _listed(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _span(values: Iterable[float], told: Callable[[float], str] = "{:.2f}".format) -> str:
    held = sorted(values)
    return f"{told(held[0])} to {told(held[-1])}"
