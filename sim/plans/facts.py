"""What a plan file states of a plan: degrees, stages, order, memory law, prediction, provenance, as plain data."""

from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from datetime import date as _date
from hashlib import sha256
from itertools import accumulate, groupby, pairwise
from json import dumps
from typing import Any

import numpy as np

from sim import __version__
from sim.costs.profile import load_profile
from sim.engine.assembly import at, footprint
from sim.engine.step import Step
from sim.plans.traffic import traffic
from sim.schedules import Schedule
from sim.specs import InputError, Model, PlacedPlan

Data = dict[str, Any]
MOST_RUNS = 100


def degrees(placed: PlacedPlan) -> Data:
    """Return how many ranks share the work along each axis; tp and dp of unequal stages are the first's."""
    plan = placed.at(0).plan
    return {
        "tp": plan.tp,
        "pp": plan.pp,
        "dp": placed.at(0).dp,
        "cp": plan.cp,
        "ep": plan.ep,
        "etp": plan.etp,
        "virtual_stages": plan.virtual_stages,
        "gpus": placed.gpus,
        "microbatches": placed.microbatches,
    }


def stage_map(model: Model, placed: PlacedPlan) -> list[Data]:
    """Return layers and ranks of every chunk; a second copy of the model comes after the first."""
    plan = placed.plan
    layers = plan.split(model)
    first = [0, *accumulate(layers)]
    held = [runs(ranks) for ranks in global_ranks(placed)]
    return [
        {
            "stage": n,
            "pipeline_rank": rank,
            "first_layer": first[n % len(layers)],
            "layers": layers[n % len(layers)],
            "ranks": held[rank],
        }
        for n, rank in enumerate(plan.rank_of)
    ]


def global_ranks(placed: PlacedPlan) -> list[list[int]]:
    """Return the global ranks of every pipeline rank: `rank_order`, innermost axis first; unequal stages in a row."""
    plan = placed.plan
    if plan.stages:
        ends = [0, *accumulate(placed.stage_gpus)]
        return [list(range(a, b)) for a, b in pairwise(ends)]
    axes = plan.rank_order.split("-")
    extent = {"tp": plan.tp, "cp": plan.cp, "dp": placed.dp, "pp": plan.pp}
    ids = np.arange(placed.gpus).reshape([extent[axis] for axis in reversed(axes)])
    by_rank = np.moveaxis(ids, len(axes) - 1 - axes.index("pp"), 0).reshape(plan.pp, -1)
    return [[int(rank) for rank in row] for row in np.sort(by_rank)]


def runs(ranks: list[int]) -> str:
    """Return ascending ranks as text: "0-7,16-23", or "0-28:4" for every fourth; "" for more than 100 runs."""
    steps = set(np.diff(ranks).tolist())
    if len(steps) == 1 and steps != {1}:
        return f"{ranks[0]}-{ranks[-1]}:{steps.pop()}"
    parts = [_run([rank for _, rank in held]) for _, held in groupby(enumerate(ranks), lambda pair: pair[1] - pair[0])]
    return ",".join(parts) if len(parts) <= MOST_RUNS else ""


def _run(held: list[int]) -> str:
    return f"{held[0]}-{held[-1]}" if len(held) > 1 else str(held[0])


def order_hash(ranks: list[str]) -> str:
    """Return the SHA-256 of an order's ranks, joined by newlines."""
    return sha256("\n".join(ranks).encode()).hexdigest()


def memory_law(step: Step) -> Data:
    """Return what the step's memory follows from, in bytes."""
    schedule = step.timeline.schedule
    held = footprint(schedule, step.costs)
    return {
        "framework": step.plan.framework,
        "recompute": step.plan.recompute if not step.plan.stages else "by stage",
        "input_frees": schedule.input_frees,
        "workspace_bytes": held.workspace,
        "in_flight": schedule.peak_in_flight(),
        "fixed_bytes": [sum(rank.values()) for rank in held.fixed],
        "saved_bytes": list(held.saved),
        "temporary_bytes": list(held.temporary),
    }


def prediction(step: Step) -> Data:
    """Return the prediction of the step: time, memory, messages."""
    return {
        "step_time_s": step.step_time_s,
        "step_time_interval_s": list(step.step_time_interval_s),
        "mfu": step.mfu,
        "fits": step.fits,
        "messages": step.placed.microbatches,
        "message_bytes": list(message_bytes(step)),
        "ranks": [
            {
                "rank": held.rank,
                "peak_memory_bytes": held.peak_bytes,
                "interval80_bytes": list(step.peak_interval_bytes(held.rank)),
            }
            for held in step.memory
        ],
        "traffic": [
            {"rank": rank, "what": what, "messages": messages, "sent_bytes": sent}
            for rank, counted in enumerate(traffic(step.model, step.placed))
            for what, (messages, sent) in sorted(counted.items())
        ],
    }


def message_bytes(step: Step) -> Iterator[float]:
    """Yield, per boundary of chunks s and s + 1 of one copy, what a tensor-parallel rank sends of a microbatch."""
    plan, homes = step.plan, step.plan.rank_of
    chunks = len(homes) // plan.copies
    for s in range(chunks - 1):
        rank = homes[s]
        part = at(step.costs["boundary_buffer_bytes"], rank) / 2  # it has room for one to send and one received
        alike = step.placed.at(rank).plan
        parts = plan.scatter_gather or alike.sequence_parallel
        yield 0.0 if rank == homes[s + 1] else part * (1 if parts else alike.tp)


def provenance(step: Step, date: str | None = None) -> Data:
    """Return who predicted, when, and with which numbers; `date` is by default today's (UTC).

    Raises:
        InputError: `date` is none.
    """
    try:
        day = _date.fromisoformat(date) if date else datetime.now(UTC).date()
    except ValueError:
        raise InputError("date", date, "a date such as 2026-08-31") from None
    names = dict.fromkeys(str(member.profile) for member in step.cluster.members)
    return {
        "trainsim": __version__,
        "date": day.isoformat(),
        "engine": "events" if step.contention else "path",
        "profiles": [{"name": load_profile(name).name, "sha256": fitted_hash(load_profile(name))} for name in names],
        "run_level": {"name": step.level.source[:2_000], "sha256": fitted_hash(step.level)},
    }


def fitted_hash(numbers: Any) -> str:
    """Return the SHA-256 of a profile's or run-level set's canonical JSON."""
    text = dumps(asdict(numbers), sort_keys=True, separators=(",", ":"), default=str)
    return sha256(text.encode()).hexdigest()


def order_data(order: Schedule) -> Data:
    """Return an order as a plan file holds it: its ranks only where they leave room for the rest."""
    ranks = order.texts()
    found = {"schedule": order.name, "microbatches": order.microbatches, "sha256": order_hash(ranks)}
    return found | ({"ranks": ranks} if sum(map(len, ranks)) <= MOST_ORDER_BYTES else {})


MOST_ORDER_BYTES = 2**19
"""Half of what a JSON file may have; longer orders (about 80,000 passes) are named by their hash alone."""
