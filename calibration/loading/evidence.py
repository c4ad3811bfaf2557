"""Measures real input pipelines beside their predictions, for the notebook "Are GPUs waiting for data?".

    python -m calibration.loading.evidence --out notebooks/data/loading.json [--budget 400]

It goes on where a file ends that is there already, and writes after every point, so that the budget (seconds) may be
less than the whole takes: about six minutes on two cores. No law is fitted to any of it.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import torch
import typer

from calibration.host import cores_and_cpu
from calibration.loading.bench import SCALES, Setting, opened
from calibration.loading.calibrate import Calibration, calibrated
from calibration.loading.decoding import PREPARE
from calibration.loading.generated import Kind
from calibration.loading.measure import Measured, measured, prediction
from calibration.loading.results import Decoding, Found, Point, Results, Shared, errors, read_results, write_results
from calibration.loading.together import count_misses, part, share_work
from sim.loading import Prediction
from sim.report.numbers import change, tenths
from sim.specs.loading import Topology
from sim.units import percent

COMMAND = "python -m calibration.loading.evidence --out notebooks/data/loading.json"
SECONDS = 1.5
DECODED: Mapping[Kind, tuple[float, ...]] = {"images": (128.0, 256.0, 384.0, 640.0), "audio": (1.0, 4.0, 16.0)}
DECODED_S = 1.0
SHARED_BATCHES = 100
KINDS: tuple[Kind, ...] = ("images", "audio")

Told = Callable[[str], object]


def settings(kind: Kind) -> Iterator[Setting]:
    """Yield what is measured of a kind: torch's loader, then the staged one."""
    for topology, several in SETTINGS[kind].items():
        for values in several:
            yield Setting(kind=kind, scale=SCALES[kind], topology=topology, **values)


def given(cached: float, workers: int, cores: int, trainer: float | str, **storage: float) -> dict[str, Any]:
    """Return the values of a setting; trainer: seconds that it sleeps, or compute."""
    trained = {"trainer": "compute"} if isinstance(trainer, str) else {"trainer_s": trainer}
    return {"cached": cached, "workers": workers, "cores": cores, **trained, **storage}


SLOW = {"storage_latency_s": 0.008, "storage_bytes_per_s": 100e6}
NARROW = {"storage_latency_s": 0.0, "storage_bytes_per_s": 10e6}

SETTINGS: Mapping[Kind, Mapping[Topology, tuple[dict[str, Any], ...]]] = {
    "images": {
        "serial": (
            given(0.0, 1, 2, 0.02),
            given(0.0, 2, 2, 0.02),
            given(0.0, 4, 2, 0.02, **SLOW),
            given(0.25, 2, 2, 0.02, **NARROW),
            given(0.5, 1, 2, 0.02),
            given(0.5, 2, 2, 0.02),
            given(0.5, 2, 1, 0.02),
            given(0.5, 4, 1, 0.04, **SLOW),
            given(0.75, 2, 2, 0.02, **NARROW),
            given(0.9, 2, 2, 0.04),
            given(1.0, 1, 1, 0.02),
            given(1.0, 1, 2, 0.06),
            given(1.0, 2, 2, 0.005),
            given(1.0, 1, 1, "compute"),
            given(0.0, 1, 1, "compute"),
            given(0.5, 2, 1, "compute"),
            given(0.5, 1, 2, "compute"),
            given(0.0, 2, 2, "compute"),
            given(1.0, 2, 2, "compute"),
        ),
        "staged": (
            given(0.0, 1, 2, 0.02),
            given(0.5, 2, 2, 0.02),
            given(0.5, 1, 1, 0.02),
            given(1.0, 2, 2, 0.005),
            given(0.5, 1, 1, "compute"),
            given(0.75, 2, 2, 0.02, **NARROW),
        ),
    },
    "audio": {
        "serial": (
            given(0.0, 1, 2, 0.01),
            given(0.5, 2, 2, 0.01),
            given(0.3, 2, 2, 0.01, storage_latency_s=0.001, storage_bytes_per_s=20e6),
            given(0.5, 2, 1, 0.01),
            given(1.0, 2, 2, 0.005),
            given(0.5, 1, 1, "compute"),
            given(0.75, 4, 2, 0.02, **SLOW),
        ),
        "staged": (given(0.5, 1, 2, 0.01), given(0.9, 2, 2, 0.02, **SLOW)),
    },
}


def told(setting: Setting) -> str:
    """Return what sets a setting apart."""
    trained = f"trainer {setting.trainer_s:g} s" if setting.trainer == "sleep" else "trainer computes"
    return (
        f"{setting.topology} {setting.kind}, {percent(setting.cached)} cached, {setting.workers} workers on "
        f"{setting.cores} cores, {trained}, storage {setting.storage_latency_s:g} s "
        f"+ {setting.storage_bytes_per_s:g} B/s"
    )


def point(found: Measured) -> Point:
    """Return a measured setting as it is kept."""
    phases = found.phases
    return Point(
        setting=found.setting,
        sample_bytes=found.sample_bytes,
        cached_bytes=float(found.cached_bytes),
        **asdict(found.calibration),
        measured=Found(
            samples_per_s=phases.samples_per_s,
            fetch_stall_fraction=phases.fetch_stall_fraction,
            prep_stall_fraction=phases.prep_stall_fraction,
            bottleneck=found.bottleneck,
        ),
        predicted=predicted(found.predicted),
        others_share=found.others_share,
    )


def predicted(said: Prediction) -> Found:
    """Return what is kept of a prediction."""
    return Found(**{name: getattr(said, name) for name in Found.__dataclass_fields__})


def again(kept: Point) -> Point:
    """Return a point as the present laws predict it, from the calibration that it holds."""
    known = Calibration(**{name: getattr(kept, name) for name in Calibration.__dataclass_fields__})
    said = prediction(kept.setting, known, kept.sample_bytes, int(kept.cached_bytes))
    return replace(kept, predicted=predicted(said))


def decoding(kind: Kind, scale: float) -> Decoding:
    """Return what preparing files of a scale takes one core."""
    setting = Setting(kind=kind, scale=scale, files=16)
    with opened(setting) as bench:
        data = [bench.files.read(item) for item in range(setting.files)]
        draw, begin, prepared, spent = np.random.default_rng(0), perf_counter(), 0, 0.0
        while spent < DECODED_S:
            PREPARE[kind](data[prepared % len(data)], draw)
            prepared, spent = prepared + 1, perf_counter() - begin
        return Decoding(kind=kind, scale=scale, sample_bytes=bench.sample_bytes, prep_s=spent / prepared)


class Gathered:
    """Results that grow in a file, until `budget_s` are spent."""

    def __init__(self, out: Path, budget_s: float, told: Told) -> None:
        self.out, self.end, self.told = out, perf_counter() + budget_s, told
        self.results = read_results(out) if out.exists() else _nothing()
        self.results = replace(self.results, points=[again(kept) for kept in self.results.points])

    def keep(self, **changes: Any) -> None:
        """Write the results with changes."""
        self.results = replace(self.results, load_average=os.getloadavg()[0], **changes)
        write_results(self.out, self.results)

    def gather(self) -> bool:
        """Measure what is missing; return whether all is there."""
        steps = [self._decoding, self._caches, self._points, self._shared]
        return all(step() for step in steps)

    @property
    def over(self) -> bool:
        """Whether the budget is spent."""
        return perf_counter() > self.end

    def _decoding(self) -> bool:
        if not self.results.decoding:
            self.keep(decoding=[decoding(kind, scale) for kind, scales in DECODED.items() for scale in scales])
        return True

    def _caches(self) -> bool:
        if not self.results.caches:
            with opened(Setting(files=512, scale=32.0)) as bench:
                found = [count_misses(bench.files, name, x, 5) for name in ("minio", "lru") for x in (0.25, 0.5, 0.75)]
                self.keep(caches=found, parted=[part(bench.files, nodes, 3, 0.55) for nodes in (2, 3)])
        return not self.over

    def _points(self) -> bool:
        there = [kept.setting for kept in self.results.points]
        for kind in KINDS:
            left = [setting for setting in settings(kind) if setting not in there]
            if left and not self._of_kind(left):
                return False
        return True

    def _of_kind(self, left: Sequence[Setting]) -> bool:
        """Measure settings that differ in neither files nor batch; return whether all could be."""
        with opened(left[0]) as bench:
            for setting in left:
                if self.over:
                    return False
                kept = point(measured(bench, setting, SECONDS))
                self.keep(points=[*self.results.points, kept])
                self.told(
                    f"{kept.measured.samples_per_s:8.1f} samples/s, predicted {change(kept.error):>7}: {told(setting)}"
                )
        return True

    def _shared(self) -> bool:
        for jobs in (2, 3):
            if jobs not in [kept.jobs for kept in self.results.shared]:
                if self.over:
                    return False
                self.keep(shared=[*self.results.shared, _shared(jobs)])
                self.told(f"{jobs} jobs: coordinated {self.results.shared[-1].speedup:.2f} times as fast")
        return True


def _shared(jobs: int) -> Shared:
    """Return jobs on half cached images, one worker each, all of the machine's cores."""
    setting = Setting(cached=0.5, cores=min(2, os.cpu_count() or 1), trainer_s=0.005)
    with opened(setting) as bench:
        return share_work(bench, setting, jobs, calibrated(bench, setting), SHARED_BATCHES)


def _nothing() -> Results:
    machine = cores_and_cpu()
    software = ", ".join(f"{name} {version(name)}" for name in ("torch", "pillow", "soundfile"))
    return Results(
        command=COMMAND, date=f"{datetime.now(UTC):%Y-%m-%d}", machine=machine, software=software,
        load_average=os.getloadavg()[0], decoding=[], caches=[], shared=[], parted=[], points=[],
    )  # fmt: skip


def main(
    out: Annotated[Path, typer.Option("--out", help="File that is written; what it holds is not measured again.")],
    budget: Annotated[float, typer.Option("--budget", help="Seconds after which no other point is begun.")] = 3600.0,
) -> None:
    """Measure; progress goes to stderr."""
    torch.set_num_threads(1)
    gathered = Gathered(out, budget, lambda text: sys.stderr.write(text + "\n"))
    whole = gathered.gather()
    gathered.keep()
    points = gathered.results.points
    if points:
        found = errors(points)
        text = f"{len(points)} points, median error {tenths(found.median)}, largest {tenths(found.largest)}"
        sys.stderr.write(text + ("\n" if whole else "; run it again for the rest\n"))


if __name__ == "__main__":
    typer.run(main)
