"""An input pipeline measured, beside what is predicted of it from one worker, one reader and the trainer alone."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import ceil
from time import sleep
from typing import Any

import torch

from calibration.host import HostLoad, keep_freed_memory
from calibration.instruments import usable_cores
from calibration.loading.bench import Bench, Setting, loader, on_cores, opened, trainer
from calibration.loading.calibrate import Calibration, between, calibrated
from calibration.loading.minio import MinIO
from calibration.loading.phases import Phases, Told, differential, first, silent
from sim.loading import Prediction, predict
from sim.specs.dataset import Dataset
from sim.specs.fields import InputError
from sim.specs.loading import Loading
from sim.specs.storage import Storage

SECONDS = 2.0
"""How long each phase is timed."""

WINDOW_S = 0.5
MOST_LOAD = 0.1
"""Share of the machine that others may use (`calibration.guards`)."""


@dataclass(frozen=True)
class Measured:
    """A pipeline measured and predicted.

    sample_bytes: of a file in the mean; cached_bytes: of all that are cached. others_share: of the machine's cores that
    others used just before, 0 to 1.
    """

    setting: Setting
    sample_bytes: float
    cached_bytes: int
    calibration: Calibration
    phases: Phases
    predicted: Prediction
    others_share: float

    @property
    def error(self) -> float:
        """How far the predicted rate is off, as a share of the measured one."""
        return self.predicted.samples_per_s / self.phases.samples_per_s - 1

    @property
    def busy(self) -> bool:
        """Whether others used so much of the machine that the times are of them too."""
        return self.others_share > MOST_LOAD

    @property
    def bottleneck(self) -> str:
        """What training waits for most, as it was measured: compute where it hardly waits."""
        stalls = {"fetch": self.phases.fetch_stall_fraction, "prep": self.phases.prep_stall_fraction}
        return max(stalls, key=lambda name: stalls[name]) if sum(stalls.values()) > LEAST_STALL else "compute"

    def data(self) -> dict[str, Any]:
        """Return everything as plain data."""
        phases, said = self.phases, self.predicted
        return {
            "measured": {
                "samples_per_s": phases.samples_per_s,
                "compute_samples_per_s": phases.compute_samples_per_s,
                "prep_samples_per_s": phases.prep_samples_per_s,
                "fetch_stall_fraction": phases.fetch_stall_fraction,
                "prep_stall_fraction": phases.prep_stall_fraction,
                "bottleneck": self.bottleneck,
            },
            "predicted": {name: getattr(said, name) for name in SHOWN},
            "error": self.error,
            "recommended_cache_bytes": said.recommended_cache_bytes,
            "recommended_cores": said.recommended_cores,
            "why": said.why,
            "others_share": self.others_share,
            "load_average": os.getloadavg()[0],
            "setting": asdict(self.setting),
            "calibration": asdict(self.calibration),
            "assumptions": list(said.assumptions),
        }


LEAST_STALL = 0.02
PHASES, PREPARING_S = 4, 8.0
"""What is timed, and about how long files, caches and costs take before."""

SHOWN = (
    "samples_per_s",
    "compute_samples_per_s",
    "prep_samples_per_s",
    "fetch_stall_fraction",
    "prep_stall_fraction",
    "bottleneck",
)
"""What is predicted and also measured."""


def measure(setting: Setting, seconds: float = SECONDS, told: Told = silent) -> Measured:
    """Return a pipeline on generated files, measured and predicted; `seconds`: of each of its four phases.

    `told`: is called with what is done next, as text.

    Raises:
        InputError: the machine has not so many cores.
    """
    with opened(setting) as bench:
        return measured(bench, setting, seconds, told)


def quick(seconds: float = 15.0, seed: int = 0) -> Measured:
    """Return half cached images, loaded by one worker for a device elsewhere, measured on this machine in `seconds`.

    Raises:
        InputError: there are less than 10 seconds.
    """
    if not 10 <= seconds <= 600:
        raise InputError("seconds", seconds, "a number from 10 to 600")
    setting = Setting(files=128, cached=0.5, cores=usable_cores(), seed=seed)
    return measure(setting, (seconds - PREPARING_S) / PHASES)


def measured(bench: Bench, setting: Setting, seconds: float = SECONDS, told: Told = silent) -> Measured:
    """Return one setting on a bench's files; calibrated before and after it, as machines drift."""
    told("timing one worker, one reader and the trainer alone")
    torch.set_num_threads(1)
    keep_freed_memory()
    load = HostLoad()
    sleep(WINDOW_S)
    others_share = load.others()
    source = bench.source(setting)
    size, kept = bench.sample_bytes, source.used_bytes()
    before = calibrated(bench, setting)
    batch_s = setting.batch / prediction(setting, before, size, kept).samples_per_s
    batches = setting.workers * ceil(seconds / batch_s / setting.workers)
    with on_cores(setting.cores), quietly():
        phases = run(bench, setting, source, batches, told)
    told("timing one worker, one reader and the trainer alone, again")
    known = between(before, calibrated(bench, setting))
    return Measured(setting, size, kept, known, phases, prediction(setting, known, size, kept), others_share)


def run(bench: Bench, setting: Setting, source: MinIO, batches: int, told: Told = silent) -> Phases:
    """Return the measured phases of a setting."""
    cached, cold = loader(setting, bench.cached), loader(setting, source)
    warm = setting.workers * (setting.prefetch + 1)
    return differential(cold, cached, trainer(setting, first("cached", cached)), setting.batch, batches, warm, told)


def prediction(setting: Setting, known: Calibration, size_bytes: float, cached_bytes: int) -> Prediction:
    """Return what the laws say of a setting: samples of `size_bytes`, of which `cached_bytes` are cached."""
    return predict(described(setting, known, size_bytes, cached_bytes), compute_samples_per_s(setting, known))


def compute_samples_per_s(setting: Setting, known: Calibration) -> float:
    """Return what training takes that is handed every batch at once: its own time, and its wait for a ready batch."""
    return 1 / max(known.trainer_s / setting.batch + known.waiting_s, 1e-9)


def described(setting: Setting, known: Calibration, size_bytes: float, cached_bytes: int) -> Loading:
    """Return a setting as the laws know it."""
    storage = Storage(
        read_bytes_per_s=setting.storage_bytes_per_s,
        write_bytes_per_s=setting.storage_bytes_per_s,
        latency_s=known.latency_s,
    )
    return Loading(
        dataset=Dataset(samples=setting.files, sample_bytes=size_bytes),
        storage=storage,
        prep_s=known.prep_s,
        handover_s=known.handover_s,
        sharing_loss=known.sharing_loss,
        workers=setting.workers,
        topology=setting.topology,
        cores=setting.cores,
        trainer_cores=1 if setting.trainer == "compute" else 0,
        prefetch=setting.prefetch,
        cache="minio" if cached_bytes else "none",
        cache_bytes=float(cached_bytes),
        memory_bytes_per_s=known.memory_bytes_per_s,
    )


@contextmanager
def quietly() -> Iterator[None]:
    """Keep torch from advising fewer workers: how many are too many is what is measured."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create", category=UserWarning)
        yield
