"""Tracks in Chrome's JSON trace format, which Perfetto and chrome://tracing open.

Source: "Trace Event Format" (the Chromium project): metadata M, complete events X, counters C, flows s, t, f.
"""

from collections.abc import Iterator
from typing import Any

from sim.report.tracks import Slice, Tracks
from sim.units import GB

Event = dict[str, Any]
FIRST_THREAD = 1
"""Perfetto takes thread 0 for Linux's idle task and mixes its slices with another thread's."""


def chrome_events(held: Tracks) -> list[Event]:
    """Return metadata, then everything else in the order of time; times in microseconds."""
    events = [*_slices(held), *_flows(held), *_counters(held)]
    return [*_names(held), *sorted(events, key=lambda e: float(e["ts"]))]


def _names(held: Tracks) -> Iterator[Event]:
    for n, (process, name) in enumerate(held.processes.items()):
        yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": name}}
        yield {"ph": "M", "pid": process, "name": "process_sort_index", "args": {"sort_index": n}}
    for n, track in enumerate(held.tracks):
        of = {"ph": "M", "pid": track.process, "tid": FIRST_THREAD + n}
        yield of | {"name": "thread_name", "args": {"name": track.name}}
        yield of | {"name": "thread_sort_index", "args": {"sort_index": track.order}}


def _on(held: Tracks, piece: Slice) -> Event:
    return {"pid": held.tracks[piece.track].process, "tid": FIRST_THREAD + piece.track}


def _slices(held: Tracks) -> Iterator[Event]:
    for s in held.slices:
        times = {"ts": s.start / 1e3, "dur": (s.end - s.start) / 1e3}
        yield {"ph": "X"} | _on(held, s) | {"name": s.name, "cat": s.category} | times | {"args": dict(s.args)}


def _flows(held: Tracks) -> Iterator[Event]:
    """An arrow leaves a slice in its last nanosecond, which is still inside it, and enters the next at its start.

    Where that has started before (a receiver that first gathers its weights), the arrow leaves then: viewers drop those
    that go back in time.
    """
    for number, flow in enumerate(held.flows, 1):
        last, first, entered = len(flow) - 1, held.slices[flow[0]], held.slices[flow[1]].start
        for n, i in enumerate(flow):
            s = held.slices[i]
            at = s.start if n else max(first.start, min(first.end - 1, entered))
            phase = {"ph": "s"} if n == 0 else {"ph": "f" if n == last else "t", "bp": "e"}
            yield phase | _on(held, s) | {"id": number, "name": "message", "cat": "message", "ts": at / 1e3}


def _counters(held: Tracks) -> Iterator[Event]:
    for c in held.counters:
        for i, at in enumerate(c.at):
            sizes = {name: round(values[i] / GB, 6) for name, values in c.values.items()}
            yield {"ph": "C", "pid": c.process, "name": f"{c.name} (GB)", "ts": at / 1e3, "args": sizes}
