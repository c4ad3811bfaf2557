"""Measures what checkpointing costs on this machine, for the notebook about it: overheads, k, recoveries, adaptation.

    python -m calibration.checkpointing.evidence --out notebooks/data/checkpointing.json [--budget 400]

Three kinds of storage, torch.save and async_save, two sizes of state, the writing on a core of its own and, of the
smaller, on the trainer's. What the file holds already is left as it is, so a run that its budget ended goes on. All of
it takes some twenty minutes.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer

from calibration.checkpointing.frequency import Effort, Frequency, Interval, adapting, profiled
from calibration.checkpointing.measure import BUDGET, THROTTLED_BYTES_PER_S, measured, offered, opened
from calibration.checkpointing.results import (
    APIS,
    Adaptation,
    Evidence,
    Moment,
    Setting,
    read_evidence,
    write_evidence,
)
from calibration.checkpointing.training import Run
from calibration.host import made
from calibration.measuring import tell_evidence
from sim.checkpointing import plan
from sim.specs.checkpointing import Checkpointing

COMMAND = "python -m calibration.checkpointing.evidence --out notebooks/data/checkpointing.json"
MEGABYTES = (50, 200)
QUIET, INTERFERED, AFTER = 6, 12, 16
"""Intervals before, while and after another job interferes."""

OTHERS_BYTES = 2**24
"""That the other job on slow storage asks for at a time: four of ours."""

Told = Callable[[str], object]


def settings() -> list[Setting]:
    """Return everything that is measured, in order."""
    own = [
        Setting(backend=backend, api=api, cores="own", megabytes=megabytes)
        for megabytes in MEGABYTES
        for backend in offered()
        for api in APIS
    ]
    small = [one for one in own if one.megabytes == MEGABYTES[0] and one.backend != "throttled"]
    return own + [replace(one, cores="shared") for one in small]


def gather(out: Path, budget_s: float, told: Told) -> Evidence:
    """Return everything measured so far; the file is written after each setting, until the budget is spent."""
    begin = monotonic()
    made = read_evidence(out) if out.exists() else _empty()
    done = [case.setting for case in made.cases]
    for setting in settings():
        if setting not in done and monotonic() - begin < budget_s:
            made.cases.append(measured(setting, told=told))
            write_evidence(out, made)
    for kind in INTERFERENCE:
        if kind not in [one.interference for one in made.adaptations] and monotonic() - begin < budget_s:
            made.adaptations.append(adaptation(kind))
            told(f"{kind}: k = {[moment.steps_between for moment in made.adaptations[-1].moments]}")
            write_evidence(out, made)
    return made


def _empty() -> Evidence:
    return Evidence(
        **made(COMMAND),
        overhead_budget=BUDGET,
        adaptations=[],
        cases=[],
    )


def adaptation(kind: str) -> Adaptation:
    """Return k over time from the rule's on, before, while and after another job interferes."""
    setting, interfering = INTERFERENCE[kind]
    with opened(setting) as run:
        times = profiled(run, Effort(3, 0.4))
        k = plan(times, Checkpointing(overhead_budget=BUDGET)).choice("checkfreq-rule").steps_between
        frequency = Frequency(steps_between=k, iteration_s=times.iteration_s, overhead_budget=BUDGET)
        intervals = adapting(run, frequency, 10**6)
        moments = list(_moments(intervals, QUIET, False))
        with interfering(run):
            moments += _moments(intervals, INTERFERED, True)
        moments += _moments(intervals, AFTER, False)
    return Adaptation(setting=setting, interference=kind, iteration_s=times.iteration_s, moments=moments)


def _moments(intervals: Iterator[Interval], count: int, interfered: bool) -> Iterator[Moment]:
    for one in islice(intervals, count):
        yield Moment(
            at_s=one.at_s,
            steps_between=one.steps_between,
            overhead_percent=100 * one.overhead,
            interfered=interfered,
        )


@contextmanager
def _on_the_storage(run: Run) -> Iterator[None]:
    """Write to the same slow storage on a thread of its own, which only waits."""
    stop, store = threading.Event(), run.checkpointer.engine.store

    def write() -> None:
        while not stop.is_set():
            store.wait(OTHERS_BYTES)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def _on_the_core(run: Run) -> Iterator[None]:
    """Compute on the trainer's core, and write to its disk, in a process of its own."""
    core = min(os.sched_getaffinity(0))
    command = [sys.executable, "-m", "calibration.checkpointing.interfere", str(run.checkpointer.folder), str(core)]
    with subprocess.Popen(command) as process:
        try:
            yield
        finally:
            process.kill()


SLOW = Setting(backend="throttled", api="torch.save", cores="own", megabytes=MEGABYTES[0])
INTERFERENCE = {
    f"another job on storage of {THROTTLED_BYTES_PER_S / 1e6:.0f} MB/s, four fifths of it": (SLOW, _on_the_storage),
    "another job on the trainer's core and disk": (replace(SLOW, backend="disk"), _on_the_core),
}


def main(
    out: Annotated[Path, typer.Option("--out", help="File that is written, and gone on with.")],
    budget: Annotated[float, typer.Option("--budget", help="Seconds after which nothing more is begun.")] = 3600.0,
) -> None:
    """Measure; progress goes to stderr."""
    tell_evidence(gather, out, budget)


if __name__ == "__main__":
    typer.run(main)
