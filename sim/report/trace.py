"""A step as a Chrome trace: open it in Perfetto or chrome://tracing; nothing needs uploading."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sim.engine.memory import CATEGORIES
from sim.engine.step import Step
from sim.report.decimation import lasting
from sim.report.text import answer
from sim.schedules import Kind
from sim.specs.arguments import checked
from sim.specs.files import write_atomically
from sim.units import GB

MAX_SLICES = 300_000
"""Operations written at most (about 50 MB); later ones are left out and counted in `otherData`."""
MEMORY_POINTS = 2_000
"""Memory points per rank at most; each bucket keeps its smallest and largest."""
PROCESS = 1
CATEGORY = {Kind.REDUCE_GRAD: "communication", Kind.OPTIMIZER: "optimizer"}


@checked
def save_trace(step: Step, path: str | Path) -> Path:
    """Write the step's operations and memory in Chrome's JSON trace format and return the path.

    One thread per pipeline rank; a slice is named like "0F3" (stage, kind, microbatch) and carries the name
    that torch's pipelining runtime records, "PP:0F3", in its arguments, so that a measured trace can be
    joined. Times in microseconds from the step's start; memory counters in GB by category.

    Raises:
        OSError: the folder is missing or not writable; nothing is left behind.
    """
    target = Path(path)
    write_atomically(target, json.dumps(trace_data(step), separators=(",", ":"), allow_nan=False))
    return target


def trace_data(step: Step) -> dict[str, Any]:
    """Return the trace as plain data."""
    written = min(len(step.timeline.start), MAX_SLICES)
    return {
        "traceEvents": [*_names(step), *_slices(step, written), *_counters(step)],
        "displayTimeUnit": "ms",
        "otherData": {
            "answer": answer(step),
            "model": step.model.name,
            "slices": written,
            "slices_left_out": len(step.timeline.start) - written,
        },
    }


def _names(step: Step) -> Iterator[dict[str, Any]]:
    title = f"{step.model.name} on {step.placed.gpus} x {step.cluster.device}"
    yield {"ph": "M", "pid": PROCESS, "name": "process_name", "args": {"name": title}}
    for rank in range(step.plan.pp):
        yield _meta(rank, "thread_name", {"name": f"pipeline rank {rank}"})
        yield _meta(rank, "thread_sort_index", {"sort_index": rank})


def _meta(rank: int, name: str, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "pid": PROCESS, "tid": rank, "name": name, "args": args}


def _slices(step: Step, written: int) -> Iterator[dict[str, Any]]:
    timeline, graph = step.timeline, step.timeline.graph
    zero = int(timeline.start.min())
    for i in np.argsort(timeline.start, kind="stable")[:written].tolist():
        action = graph.action(i)
        start, end = int(timeline.start[i]) - zero, int(timeline.end[i]) - zero
        yield {
            "ph": "X",
            "pid": PROCESS,
            "tid": int(graph.rank[i]),
            "name": str(action),
            "cat": CATEGORY.get(action.kind, "compute"),
            "ts": start / 1e3,
            "dur": (end - start) / 1e3,
            "args": {"torch": f"PP:{action}", "stage": action.stage, "microbatch": action.microbatch},
        }


def _counters(step: Step) -> Iterator[dict[str, Any]]:
    zero = int(step.timeline.start.min())
    for held in step.memory:
        for i in lasting(held, MEMORY_POINTS).tolist():
            moving = {"activations": held.activations[i], "temporaries": held.temporaries[i]}
            sizes = {c: float(moving.get(c, held.fixed.get(c, 0.0))) for c in CATEGORIES}
            yield {
                "ph": "C",
                "pid": PROCESS,
                "name": f"memory of rank {held.rank} (GB)",
                "ts": (int(held.at_ns[i]) - zero) / 1e3,
                "args": {c: round(size / GB, 6) for c, size in sizes.items()},
            }
