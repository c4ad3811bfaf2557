"""What was measured of real input pipelines, as a file for the notebook "Are GPUs waiting for data?"."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Annotated

from pydantic import Field

from calibration.loading.bench import Setting
from calibration.loading.generated import Kind
from sim.costs.fitted import short
from sim.specs.fields import read, real, spec, whole
from sim.specs.files import load_mapping, write_listed

Text = Annotated[str, Field(min_length=1, max_length=400, description="text of 1 to 400 characters")]
Seconds = Annotated[float, real(0.0, 1e6, "s")]
Rate = Annotated[float, real(0.0, 1e12, "samples/s")]
Share = Annotated[float, real(0.0, 1.0)]
Bytes = Annotated[float, real(0.0, 1e15, "B")]
Count = Annotated[int, whole(0, 10**9)]


@spec
class Found:
    """What one pipeline reaches, measured or predicted."""

    samples_per_s: Rate
    fetch_stall_fraction: Share
    prep_stall_fraction: Share
    bottleneck: Text


@spec
class Point:
    """A setting that was measured and predicted; between them what the prediction is made from.

    sample_bytes: of a file in the mean; cached_bytes: of all that the cache held; prep_s to sharing_loss:
    `calibration.loading.calibrate.Calibration`. others_share: of the machine that others used.
    """

    setting: Setting
    sample_bytes: Bytes
    cached_bytes: Bytes
    prep_s: Seconds
    handover_s: Seconds
    waiting_s: Seconds
    memory_bytes_per_s: Annotated[float, real(1e6, 1e13, "B/s")]
    latency_s: Seconds
    trainer_s: Seconds
    sharing_loss: Share
    measured: Found
    predicted: Found
    others_share: Share

    @property
    def error(self) -> float:
        """How far the predicted rate is off, as a share of the measured one."""
        return self.predicted.samples_per_s / self.measured.samples_per_s - 1


@spec
class Decoding:
    """What preparing a sample takes one core, decoding included: files of `scale` (pixels a side, seconds)."""

    kind: Kind
    scale: Annotated[float, real(0.1, 4_096.0)]
    sample_bytes: Bytes
    prep_s: Seconds


@spec
class Cached:
    """Misses of a real cache in a DataLoader of two workers, in each epoch, beside what is expected of later epochs.

    share: of the samples that the cache keeps; expected: MinIO exactly, LRU by its law.
    """

    policy: Text
    samples: Count
    share: Share
    misses: list[Count]
    expected: Annotated[float, real(0.0, 1e9)]


@spec
class Shared:
    """`jobs` that train on the same data: samples/s of each with a loader of its own, and with one for all."""

    jobs: Count
    workers: Count
    separate_samples_per_s: Rate
    coordinated_samples_per_s: Rate
    predicted_separate: Rate
    predicted_coordinated: Rate

    @property
    def speedup(self) -> float:
        """How many times as fast coordinated preparation is."""
        return self.coordinated_samples_per_s / self.separate_samples_per_s

    @property
    def predicted_speedup(self) -> float:
        """The same by the laws."""
        return self.predicted_coordinated / self.predicted_separate


@spec
class Parted:
    """Nodes that read everything for some epochs: reads of storage by all, with caches apart and as one cache.

    share: of all samples, what a node keeps.
    """

    nodes: Count
    samples: Count
    epochs: Count
    share: Share
    apart_reads: Count
    together_reads: Count


@spec
class Results:
    """Everything that `python -m calibration.loading.evidence` measured; load_average: of its last minute."""

    command: Text
    date: Text
    machine: Text
    software: Text
    load_average: Annotated[float, real(0.0, 1e6)]
    decoding: list[Decoding]
    caches: list[Cached]
    shared: list[Shared]
    parted: list[Parted]
    points: Annotated[list[Point], Field(max_length=1_000)]

    def lines(self) -> list[str]:
        """Return when, where and on what it was measured."""
        return [f"measured {self.date} on {self.machine}", self.software, f"made by {self.command}"]


@spec
class Errors:
    """Errors of predicted rates, as shares of the measured ones."""

    median: float
    largest: float
    bias: float


def errors(points: Sequence[Point]) -> Errors:
    """Return the median and the largest size of the errors, and their median with sign."""
    each = [point.error for point in points]
    sizes = [abs(error) for error in each]
    return Errors(median=median(sizes), largest=max(sizes), bias=median(each))


def read_results(path: Path) -> Results:
    """Return the results of a file; raises InputError for a wrong one."""
    return read(Results, load_mapping(path), str(path))


def write_results(path: Path, results: Results) -> None:
    """Write results whole or not at all, one point a line, numbers with six digits."""
    write_listed(path, short(asdict(results)), "points")
