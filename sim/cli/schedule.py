"""`trainsim schedule`: the order of a pipeline schedule and its length in any one unit."""

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

from sim.cli.output import console
from sim.engine.graph import DeadlockError
from sim.engine.path import run_path
from sim.engine.steady import steady_state
from sim.engine.timeline import Durations, Timeline, exact_ticks
from sim.report.numbers import tenths
from sim.schedules import SCHEDULES, IllegalScheduleError, Kind, Schedule, Shape, build
from sim.schedules.custom import read_order
from sim.specs import InputError
from sim.specs.fields import short
from sim.specs.files import print_json

FLAGS = {
    "ranks": "--ranks",
    "variant": "--variant",
    "virtual_stages": "--chunks",
    "microbatch_group_size": "--group-size",
    "microbatches": "--microbatches",
    "memory_limit": "--memory-limit",
    "input_frees": "--input-frees",
    "replicas": "--replicas",
    "vertical_sync": "--vertical-sync",
}
CUSTOM = "custom"
MAX_ACTIONS = 1_000_000
MAX_DIGITS = 4
MAX_CYCLE = 400
"""Characters that a message spends on a cycle of waits."""
MAX_SHOWN = 400
"""Characters of a rank's actions in the text."""
LARGEST, SMALLEST = 1e9, 1e-9
"""Durations between these keep every sum of ticks within 64 bits."""

DEFAULTS = {"F": "1", "I": "1", "W": "1", "comm": "0"}


def schedule_command(
    name: Annotated[str, typer.Argument(help=f"{CUSTOM} (with --order), or one of " + ", ".join(SCHEDULES))],
    ranks: Annotated[int | None, typer.Option(min=1, max=4096, help="Pipeline ranks.")] = None,
    microbatches: Annotated[int | None, typer.Option(min=1, max=100_000, help="Microbatches in a step.")] = None,
    chunks: Annotated[int, typer.Option(min=0, max=256, help="Model chunks a rank (0: the schedule's own).")] = 0,
    variant: Annotated[
        str, typer.Option("--variant", "--group", help="Whose order: torch, megatron, zero-bubble, deepseek.")
    ] = "",
    group_size: Annotated[
        int, typer.Option(min=0, help="Microbatches a chunk takes in turn, interleaved (0: usual).")
    ] = 0,
    durations: Annotated[str, typer.Option(help="F=1,I=1,W=1,comm=0 (default) in any one unit; B = I + W.")] = "",
    memory_limit: Annotated[
        float, typer.Option(min=0, help="Microbatches a rank may keep, for zb-1p and zb-2p (0: p and 2p).")
    ] = 0,
    input_frees: Annotated[
        float, typer.Option(min=0, max=1, help="Share of what a microbatch keeps that I frees (W: the rest).")
    ] = 0,
    replicas: Annotated[
        str, typer.Option(help="Ranks of each stage for pipedream: 15,1 is one stage on 15 ranks and one on 1.")
    ] = "",
    vertical_sync: Annotated[
        bool, typer.Option("--vertical-sync", help="One weight version for all stages of a microbatch (pipedream).")
    ] = False,
    file: Annotated[
        Path | None, typer.Option("--order", "--file", help="CSV of an order of your own, in PyTorch's format.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show a pipeline schedule: actions per rank, makespan, bubble, what is kept in flight."""
    unit, times = _ticks(durations)
    table = {Kind.F: times["F"], Kind.I: times["I"], Kind.W: times["W"], Kind.B: times["I"] + times["W"]}
    if (name == CUSTOM) != (file is not None):
        allowed = f"required with {CUSTOM}: a CSV of actions" if file is None else f"only with {CUSTOM}"
        raise InputError("--order", file and str(file), allowed)
    if file is not None:
        stated = {"--chunks": chunks, "--variant": variant, "--group-size": group_size, "--replicas": replicas}
        limits = {"--memory-limit": memory_limit, "--input-frees": input_frees, "--vertical-sync": vertical_sync}
        order = _read(file, {"--ranks": ranks, "--microbatches": microbatches}, stated | limits)
    else:
        if name not in SCHEDULES:
            raise InputError("schedule", name, f"one of {', '.join(SCHEDULES)}, {CUSTOM} (with --order)")
        for option, value in (("--ranks", ranks), ("--microbatches", microbatches)):
            if value is None:
                raise InputError(option, value, "required: a whole number of at least 1")
        chunks = chunks or SCHEDULES[name].chunks
        shape = Shape(
            ranks or 1, microbatches or 1, chunks, group_size, memory_limit, input_frees, variant,
            _replicas(replicas), vertical_sync,
        )  # fmt: skip
        order = _built(name, shape, group_size, Durations.uniform(shape.ranks * chunks, table, times["comm"]))
    try:
        timeline = run_path(order, Durations.uniform(order.stages, table, times["comm"]))
    except DeadlockError as error:
        if file is None:
            raise
        raise InputError("--order", str(file), f"an order that can run ({short(str(error), MAX_CYCLE)})") from None
    if as_json:
        print_json(_data(order, timeline, unit))
        return
    console.print("\n".join(_summary(order, timeline, unit)), style="bold", highlight=False)
    for rank, text in enumerate(order.texts()):
        console.print(f"rank {rank}: {_begin(text)}", highlight=False)


def _built(name: str, shape: Shape, group_size: int, each: Durations) -> Schedule:
    """Return the order of a registered kind."""
    if 3 * shape.ranks * shape.microbatches * shape.chunks > MAX_ACTIONS:
        raise InputError("--microbatches", shape.microbatches, f"at most {MAX_ACTIONS} actions in all")
    if group_size and not SCHEDULES[name].grouped:
        grouped = ", ".join(kind.name for kind in SCHEDULES.values() if kind.grouped)
        raise InputError("--group-size", group_size, f"only with {grouped}")
    try:
        return build(name, shape, each.work())
    except IllegalScheduleError as error:
        raise InputError(FLAGS.get(error.field, error.field), error.value, error.allowed) from None


def _replicas(text: str) -> tuple[int, ...]:
    """Return the ranks of every stage; empty text: one each."""
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isascii() and part.isdigit() and len(part) <= MAX_DIGITS for part in parts):
        raise InputError("--replicas", text, "whole numbers, one for each stage, such as 15,1")
    return tuple(map(int, parts))


def _read(file: Path, sizes: Mapping[str, int | None], stated: Mapping[str, object]) -> Schedule:
    """Return the order of a file; sizes that are asked for must be the file's, and nothing else may be stated."""
    order = read_order(file)
    for (option, asked), found in zip(sizes.items(), (order.ranks, order.microbatches), strict=True):
        if asked not in (None, found):
            raise InputError(option, asked, f"{found}, as the file has, or left out")
    for option, value in stated.items():
        if value:
            raise InputError(option, value, f"left out with {CUSTOM}: the file states the order")
    return order


def _ticks(text: str) -> tuple[Fraction, dict[str, int]]:
    """Return the user's unit of one tick, and all durations in ticks."""
    stated: dict[str, str] = {}
    for item in filter(None, text.split(",")):
        key, _, value = item.partition("=")
        if key not in DEFAULTS:
            raise InputError("--durations", item, "F=,I=,W=,comm= with numbers; B = I + W")
        if key in stated:
            raise InputError("--durations", text, "each of F=,I=,W=,comm= once")
        stated[key] = value
    given = {**DEFAULTS, **stated}
    if not all(_decimal(value) for value in given.values()):
        raise InputError("--durations", text, f"F=,I=,W=,comm= with decimal numbers, 0 or {SMALLEST:g} to {LARGEST:g}")
    exact = exact_ticks(given)
    if not exact["F"] or not exact["I"] + exact["W"]:
        raise InputError("--durations", text, "F and I + W above 0")
    if max(exact.values()) > LARGEST / SMALLEST / MAX_ACTIONS:
        raise InputError("--durations", text, "numbers of at most 12 digits between the largest and the finest")
    return Fraction(given["F"]) / exact["F"], exact


def _decimal(text: str) -> bool:
    return bool(DECIMAL.fullmatch(text)) and (float(text) == 0 or SMALLEST <= float(text) <= LARGEST)


DECIMAL = re.compile(r"([0-9]{1,12}(\.[0-9]{0,12})?|\.[0-9]{1,12})([eE][+-]?[0-9]{1,2})?")


def _summary(order: Schedule, timeline: Timeline, unit: Fraction) -> Iterator[str]:
    """Yield what is asked of most schedules: it stands in front of the actions, which fill screens."""
    yield (
        f"makespan {float(timeline.makespan * unit):g}, bubble {tenths(timeline.bubble_makespan())} over ideal, "
        f"{tenths(timeline.bubble_rank_span())} of the longest rank span"
    )
    peaks = [(str(peak), len(list(same))) for peak, same in groupby(order.peak_in_flight())]
    words = " ".join(f"{peak}x{n}" if n > 1 else peak for peak, n in peaks)
    yield f"in flight at most, rank by rank: {words} (activations of one microbatch in one chunk)"


def _begin(actions: str) -> str:
    """Return the actions of a rank, of very many the first."""
    if len(actions) <= MAX_SHOWN:
        return actions
    shown = actions[: MAX_SHOWN + 1].rpartition(" ")[0]
    return f"{shown} ... {actions.count(' ') - shown.count(' ')} more, which --json lists"


def _data(order: Schedule, timeline: Timeline, unit: Fraction) -> dict[str, object]:
    return {
        "name": order.name,
        "actions": order.texts(),
        "makespan": float(timeline.makespan * unit),
        "bubble_makespan": timeline.bubble_makespan(),
        "bubble_rank_span": timeline.bubble_rank_span(),
        "peak_in_flight": order.peak_in_flight(),
        "pipelines": order.pipelines,
        "weight_versions": list(order.weight_versions),
        "staleness": list(order.staleness),
        "steady_per_microbatch": _steady(timeline, unit),
    }


def _steady(timeline: Timeline, unit: Fraction) -> float | None:
    """Return the time between microbatches once a schedule without flush is under way; None if it flushes or ends
    before."""
    kind = SCHEDULES.get(timeline.schedule.name)
    if kind is None or not kind.asynchronous:
        return None
    try:
        return steady_state(timeline).ticks_per_microbatch * float(unit)
    except ValueError:
        return None
