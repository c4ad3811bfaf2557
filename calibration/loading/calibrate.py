"""What one worker, one reader and the trainer alone take: all that a prediction of a loader is made from."""

from dataclasses import asdict, dataclass, replace
from itertools import islice, repeat
from statistics import fmean, median
from time import perf_counter, sleep

import psutil
from torch import Tensor
from torch.utils.data import DataLoader

from calibration.loading.bench import Bench, Setting, loader, trainer
from calibration.loading.decoding import Prepared
from calibration.loading.phases import first, pace
from calibration.loading.sharing import sharing_loss
from calibration.loading.sources import Source

WORKER_S, TRAINER_S = 1.0, 0.5
"""How long a worker and a trainer are watched."""

READS = 48
RECEIVED = 12


@dataclass(frozen=True)
class Calibration:
    """What a sample takes where nothing is shared.

    prep_s: of a worker's core, to decode, augment, collate and send it. handover_s: of the training process's core, to
    receive it. waiting_s: what the training process waits for besides until it has a sample of a batch that is ready
    (the worker's answer, a wake-up). memory_bytes_per_s: of a file that is cached, opened and counted. latency_s: of a
    file of throttled storage beside its transfer, as sleeping is never exact. trainer_s: of a batch, alone.
    sharing_loss: of a core's time, while the setting's processes take turns on it.
    """

    prep_s: float
    handover_s: float
    waiting_s: float
    memory_bytes_per_s: float
    latency_s: float
    trainer_s: float
    sharing_loss: float = 0.0


def calibrated(bench: Bench, setting: Setting) -> Calibration:
    """Return what one worker, one reader and the trainer alone take, on all cores that this thread has."""
    alone = loader(replace(setting, workers=1), bench.cached)
    prep_s, handover_s = _core_seconds(alone, setting.batch)
    received_s = _received(alone, 1.5 * prep_s * setting.batch)
    memory_s = read_s(bench.cached, setting.files)
    return Calibration(
        prep_s=prep_s,
        handover_s=handover_s,
        waiting_s=max(0.0, received_s / setting.batch - handover_s),
        memory_bytes_per_s=bench.sample_bytes / memory_s,
        latency_s=latency_s(bench, setting, memory_s) if setting.cached < 1 else 0.0,
        trainer_s=trainer_s(bench, setting),
        sharing_loss=sharing_loss(bench, setting),
    )


def between(before: Calibration, after: Calibration) -> Calibration:
    """Return the mean of what was found twice."""
    return Calibration(**{name: (value + getattr(after, name)) / 2 for name, value in asdict(before).items()})


def latency_s(bench: Bench, setting: Setting, memory_s: float) -> float:
    """Return what a sample of throttled storage takes longer than one that is cached, beside its transfer.

    It is prepared too, because whoever has waited finds caches and clocks of the core less ready than who has not.
    """
    throttled, cached = (
        Prepared(source, setting.kind, setting.seed) for source in (bench.throttled(setting), bench.cached)
    )
    longer = [_seconds(throttled, n % setting.files) - _seconds(cached, (n + 1) % setting.files) for n in range(READS)]
    return max(0.0, fmean(longer) + memory_s - bench.sample_bytes / setting.storage_bytes_per_s)


def _seconds(data: Prepared, place: int) -> float:
    """Return what fetching and preparing a sample takes."""
    begin = perf_counter()
    data[place]
    return perf_counter() - begin


def read_s(source: Source, number: int) -> float:
    """Return the seconds in which one reader reads a file, in the mean of so many."""
    begin = perf_counter()
    for item in range(number):
        source.read(item % len(source))
    return (perf_counter() - begin) / number


def trainer_s(bench: Bench, setting: Setting) -> float:
    """Return the seconds of a batch of the trainer alone."""
    if setting.trainer == "sleep" and not setting.trainer_s:
        return 0.0
    data = Prepared(bench.files, setting.kind, setting.seed)
    batch = first("batches", DataLoader(data, setting.batch, sampler=setting.places))
    train = trainer(setting, batch)
    once = pace(repeat(batch), train, 1, 1)
    return pace(repeat(batch), train, max(3, round(TRAINER_S / once)), 1)


def _core_seconds(alone: DataLoader[Tensor], batch: int) -> tuple[float, float]:
    """Return the seconds of a core that a sample takes its worker and this process, while nobody trains."""
    me, received, batches = psutil.Process(), 0, iter(alone)
    for _ in islice(batches, 4):
        pass
    workers = me.children()
    begin, own, theirs = perf_counter(), _used(me), sum(map(_used, workers))
    while perf_counter() - begin < WORKER_S:
        next(batches)
        received += batch
    return (sum(map(_used, workers)) - theirs) / received, (_used(me) - own) / received


def _used(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _received(alone: DataLoader[Tensor], until_ready_s: float) -> float:
    """Return the seconds in which a batch that is ready is handed over."""
    taken, batches = [], iter(alone)
    for _ in range(RECEIVED):
        sleep(until_ready_s)
        begin = perf_counter()
        next(batches)
        taken.append(perf_counter() - begin)
    return median(taken[2:])
