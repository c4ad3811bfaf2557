"""A step as a trace file: open it in Perfetto or chrome://tracing; nothing needs uploading."""

import json
from pathlib import Path
from typing import Any

from sim.engine.step import Step
from sim.report.chrome import chrome_events
from sim.report.perfetto import perfetto_trace
from sim.report.text import answer, answer_trained, critical_words
from sim.report.tracks import Tracks, tracks_of, tracks_of_training
from sim.run.trained import Trained
from sim.specs.arguments import checked
from sim.specs.files import write_atomically

MAX_SLICES = 300_000
"""Operations written at most (about 50 MB); later ones are left out and counted in `otherData`."""


@checked
def save_trace(step: Step | Trained, path: str | Path) -> Path:
    """Write the step's operations, messages and memory as a trace and return the path.

    Of a stretch of training: the passes of every rank, what loaders read and prepare, snapshots, writing, failures.

    A name that ends in `.pftrace` gives Perfetto's own format (ns, bytes), any other Chrome's JSON (us, GB). From the
    compiled engine: one thread per pipeline rank. From the event engine: one process per rank with a thread of its
    actions and one for each of compute, collectives and messages. An action is named like "0F3" (stage, kind,
    microbatch) and carries the name that torch's pipelining runtime records, "PP:0F3", in its arguments, so that a
    measured trace can be joined; arrows are the messages between ranks.

    Raises:
        InputError: the folder is missing or not writable; nothing is left behind.
    """
    target = Path(path)
    write_atomically(target, trace_content(step, target))
    return target


def trace_content(step: Step | Trained, target: Path) -> str | bytes:
    """Return what `save_trace` writes to `target`, whose name says the format."""
    if target.suffix == ".pftrace":
        return perfetto_trace(_tracks(step))
    return json.dumps(trace_data(step), separators=(",", ":"), allow_nan=False)


def trace_data(step: Step | Trained) -> dict[str, Any]:
    """Return the trace in Chrome's format as plain data."""
    held = _tracks(step)
    return {
        "traceEvents": chrome_events(held),
        "displayTimeUnit": "ms",
        "otherData": {
            **_facts(step),
            "slices": len(held.slices),
            "slices_left_out": held.left_out,
        },
    }


def _tracks(step: Step | Trained) -> Tracks:
    return tracks_of(step, MAX_SLICES) if isinstance(step, Step) else tracks_of_training(step, MAX_SLICES)


def _facts(step: Step | Trained) -> dict[str, str]:
    if isinstance(step, Step):
        return {"answer": answer(step), "critical_path": critical_words(step), "model": step.model.name}
    return {"answer": answer_trained(step), "model": step.step.model.name}
