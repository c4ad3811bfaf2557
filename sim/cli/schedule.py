"""`trainsim schedule`: the order of a pipeline schedule and its length in any one unit."""

import re
from fractions import Fraction
from typing import Annotated

import typer

from sim.cli.output import console, print_json
from sim.engine.path import run_path
from sim.engine.timeline import Durations, Timeline, ticks
from sim.schedules import SCHEDULES, IllegalScheduleError, Kind, Schedule, Shape, build
from sim.specs import InputError

FLAGS = {
    "virtual_stages": "--chunks",
    "microbatch_group_size": "--group-size",
    "microbatches": "--microbatches",
    "memory_limit": "--memory-limit",
    "input_frees": "--input-frees",
}
VARIANTS = ("torch", "megatron", "zero-bubble")
MAX_ACTIONS = 1_000_000
LARGEST, SMALLEST = 1e9, 1e-9
"""Durations between these keep every sum of ticks within 64 bits."""

DEFAULTS = {"F": "1", "I": "1", "W": "1", "comm": "0"}


def schedule_command(
    name: Annotated[str, typer.Argument(help="One of " + ", ".join(SCHEDULES))],
    ranks: Annotated[int, typer.Option(min=1, max=4096, help="Pipeline ranks.")],
    microbatches: Annotated[int, typer.Option(min=1, max=100_000, help="Microbatches in a step.")],
    chunks: Annotated[int, typer.Option(min=0, max=256, help="Model chunks a rank (0: the schedule's own).")] = 0,
    variant: Annotated[str, typer.Option("--variant", "--group", help="Grouping: " + ", ".join(VARIANTS))] = "megatron",
    group_size: Annotated[int, typer.Option(min=0, help="Microbatches a chunk takes in turn.")] = 0,
    durations: Annotated[str, typer.Option(help="F=,I=,W=,comm= in any one unit; B = I + W.")] = "",
    memory_limit: Annotated[
        float, typer.Option(min=0, help="Microbatches a rank may keep, for zb-1p and zb-2p (0: p and 2p).")
    ] = 0,
    input_frees: Annotated[
        float, typer.Option(min=0, max=1, help="Share of what a microbatch keeps that I frees (W: the rest).")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show a pipeline schedule: actions per rank, makespan, bubble, what is kept in flight."""
    if variant not in VARIANTS:
        raise InputError("variant", variant, ", ".join(VARIANTS))
    chunks = chunks or (2 if name == "interleaved" else 1)
    if 3 * ranks * microbatches * chunks > MAX_ACTIONS:
        raise InputError("--microbatches", microbatches, f"at most {MAX_ACTIONS} actions in all")
    group = group_size or (microbatches // max(1, microbatches // ranks) if variant == "torch" else 0)
    unit, times = _ticks(durations)
    table = {Kind.F: times["F"], Kind.I: times["I"], Kind.W: times["W"], Kind.B: times["I"] + times["W"]}
    each = Durations.uniform(ranks * chunks, table, times["comm"])
    try:
        order = build(name, Shape(ranks, microbatches, chunks, group, memory_limit, input_frees), each.work())
    except IllegalScheduleError as error:
        raise InputError(FLAGS.get(error.field, error.field), error.value, error.allowed) from None
    timeline = run_path(order, each)
    if as_json:
        print_json(_data(order, timeline, unit))
        return
    for rank, text in enumerate(order.texts()):
        console.print(f"rank {rank}: {text}", highlight=False)
    console.print(
        f"makespan {float(timeline.makespan * unit):g}, bubble {timeline.bubble_makespan():.1%} over ideal, "
        f"{timeline.bubble_rank_span():.1%} of the longest rank span"
    )


def _ticks(text: str) -> tuple[Fraction, dict[str, int]]:
    """Return the user's unit of one tick, and all durations in ticks."""
    given = dict(DEFAULTS)
    for item in filter(None, text.split(",")):
        key, _, value = item.partition("=")
        if key not in DEFAULTS:
            raise InputError("durations", item, "F=,I=,W=,comm= with numbers")
        given[key] = value
    if not all(_decimal(value) for value in given.values()):
        raise InputError("durations", text, f"F=,I=,W=,comm= with decimal numbers, 0 or {SMALLEST:g} to {LARGEST:g}")
    exact = ticks(given)
    if not exact["F"] or not exact["I"] + exact["W"]:
        raise InputError("durations", text, "F and I + W above 0")
    if max(exact.values()) > LARGEST / SMALLEST / MAX_ACTIONS:
        raise InputError("durations", text, "numbers of at most 12 digits between the largest and the finest")
    return Fraction(given["F"]) / exact["F"], exact


def _decimal(text: str) -> bool:
    return bool(DECIMAL.fullmatch(text)) and (float(text) == 0 or SMALLEST <= float(text) <= LARGEST)


DECIMAL = re.compile(r"[0-9]{1,12}(\.[0-9]{0,12})?|\.[0-9]{1,12}")


def _data(order: Schedule, timeline: Timeline, unit: Fraction) -> dict[str, object]:
    return {
        "name": order.name,
        "actions": order.texts(),
        "makespan": float(timeline.makespan * unit),
        "bubble_makespan": timeline.bubble_makespan(),
        "bubble_rank_span": timeline.bubble_rank_span(),
        "peak_in_flight": order.peak_in_flight(),
        "weight_versions": order.weight_versions,
        "staleness": order.staleness,
    }
