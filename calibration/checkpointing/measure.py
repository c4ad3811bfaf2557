"""What checkpointing costs on this machine: training with it against training alone, beside what profiling predicts.

Training has one thread, pinned to a core; the writing runs on another one or on the same. Predictions know the profile
alone (`calibration.checkpointing.frequency.profiled`), never what is measured after it.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import ceil, sqrt
from pathlib import Path
from time import perf_counter

import torch

from calibration.checkpointing.async_save import AsyncSave
from calibration.checkpointing.checkpointer import Checkpointer
from calibration.checkpointing.engine import Engine, TorchSave, pin
from calibration.checkpointing.frequency import Effort, profiled
from calibration.checkpointing.iterator import Order, ResumableLoader
from calibration.checkpointing.results import (
    Api,
    Backend,
    Case,
    Cores,
    Point,
    Recovery,
    Setting,
    overhead_percent,
    recovery_s,
)
from calibration.checkpointing.store import Store
from calibration.checkpointing.training import Run, Sizes, Tokens, Trainee
from calibration.host import HostLoad, keep_freed_memory
from calibration.instruments import usable_cores
from sim.checkpointing import Times, plan
from sim.specs.checkpointing import Checkpointing
from sim.specs.fields import InputError

MEMORY = Path("/dev/shm")
THROTTLED_BYTES_PER_S = 200e6
SAMPLES, BATCH = 100_000, 8
SEQ, LAYERS, VOCAB = 64, 6, 256
STATE_BYTES = 12
"""A parameter in fp32: itself and Adam's two moments."""

BUDGET = 0.035
ROUNDS = 5
"""Of which the median counts: a machine that others share has a slow second now and then. Where others share it all the
time, steps are long and so is what the writing takes of them, and there may be fewer (`Scale.longest_s`)."""

CRASHES = 3
MOST_TRIED = 4
"""Further k beside the predicted one that are measured in search of the best."""


@dataclass(frozen=True)
class Scale:
    """How long a point is: `alone_s` seconds of steps alone between rounds, at least `saving_s` with saves in each.

    longest_s: no further round is begun after so long. steps: of a round with saves, at least; search: whether k around
    the predicted one are measured too.
    """

    alone_s: float = 0.8
    saving_s: float = 1.2
    longest_s: float = 60.0
    steps: int = 1
    effort: Effort = field(default_factory=Effort)
    search: bool = True


def sizes_of(megabytes: int) -> Sizes:
    """Return a GPT whose training state has about so many megabytes."""
    parameters = megabytes * 1e6 / STATE_BYTES
    hidden = max(32, 32 * round(sqrt(parameters / (12 * LAYERS)) / 32))
    return Sizes(hidden=hidden, layers=LAYERS, heads=hidden // 32, seq=SEQ, vocab=VOCAB)


def folder_of(backend: Backend) -> Path:
    """Return where temporary folders of a storage are made."""
    return MEMORY if backend == "tmpfs" else Path(tempfile.gettempdir())


def offered() -> list[Backend]:
    """Return the kinds of storage that this machine has."""
    has_memory = MEMORY.is_dir() and os.access(MEMORY, os.W_OK)
    return ["disk", *(["tmpfs"] if has_memory else []), "throttled"]  # type: ignore[list-item]


def engine_of(setting: Setting, cores: frozenset[int] | None) -> Engine:
    """Return a setting's way of writing."""
    store = Store(THROTTLED_BYTES_PER_S if setting.backend == "throttled" else None)
    return TorchSave(store=store, cores=cores) if setting.api == "torch.save" else AsyncSave(store=store, cores=cores)


@contextmanager
def opened(setting: Setting) -> Iterator[Run]:
    """Yield a training of one thread on one core, whose checkpoints are in a folder of their own and removed.

    Raises:
        InputError: the folder cannot be written, or has no room for three checkpoints.
    """
    where = Path(setting.folder or folder_of(setting.backend))
    if not where.is_dir() or not os.access(where, os.W_OK):
        raise InputError("folder", str(where), "an existing folder that can be written")
    need, free = 4e6 * setting.megabytes, shutil.disk_usage(where).free
    if free < need:
        raise InputError("folder", str(where), f"a folder with {need:.0f} free bytes, of which it has {free}")
    with ExitStack() as stack:
        trainer, writer = _cores(setting, stack)
        sizes = sizes_of(setting.megabytes)
        loader = ResumableLoader(Tokens(SAMPLES, sizes), Order(samples=SAMPLES, batch=BATCH))
        made = stack.enter_context(tempfile.TemporaryDirectory(prefix="trainsim-checkpoints-", dir=where))
        pin(trainer)
        yield Run(Trainee(sizes), loader, stack.enter_context(Checkpointer(Path(made), engine_of(setting, writer))))


def _cores(setting: Setting, stack: ExitStack) -> tuple[frozenset[int] | None, frozenset[int] | None]:
    """Return the cores of trainer and writer, where the system can pin; the stack restores what is changed for them."""
    stack.callback(torch.set_num_threads, torch.get_num_threads())
    torch.set_num_threads(1)
    keep_freed_memory()
    if not hasattr(os, "sched_getaffinity"):
        return None, None
    before = frozenset(os.sched_getaffinity(0))
    first, *others = sorted(before)
    if setting.cores == "own" and not others:
        raise InputError("cores", "own", "shared: this process has one core")
    stack.callback(pin, before)
    return frozenset({first}), frozenset({others[0] if setting.cores == "own" else first})


def measured(setting: Setting, scale: Scale | None = None, told: Callable[[str], object] = str) -> Case:
    """Return a setting's profile, overheads at several k beside their predictions, and recoveries.

    Raises:
        InputError: as `opened`.
    """
    scale = scale or Scale()
    with opened(setting) as run:
        times = profiled(run, scale.effort)
        told(f"{setting.name}: step {times.iteration_s:.3g} s, snapshot {times.host_snapshot_s:.3g} s, persist "
             f"{times.persist_s:.3g} s, contention {times.contention:.2f}, reload {times.reload_s:.3g} s")  # fmt: skip
        picked = plan(times, Checkpointing(overhead_budget=BUDGET)).steps_between
        points: dict[int, Point] = {}

        def within(k: int) -> bool:
            if k not in points:
                points[k] = point(run, times, k, scale)
                told(f"{setting.name}: k = {k}: {points[k].measured_percent:.1f} %, "
                     f"predicted {points[k].predicted_percent:.1f} %")  # fmt: skip
            return points[k].measured_percent <= 100 * BUDGET

        rule = plan(times, Checkpointing(overhead_budget=BUDGET)).choice("checkfreq-rule").steps_between
        for k in sorted({rule, ceil(picked / 2), picked, *([2 * picked] if scale.search else [])}):
            within(k)
        if scale.search:
            _around(picked, within)
        recovery = recovered(run, times, picked)
    return Case(setting=setting, times=times, points=[points[k] for k in sorted(points)], recovery=recovery)


def _around(picked: int, within: Callable[[int], bool]) -> None:
    """Measure around the picked k until the least within the budget is known, or enough was tried."""
    k, step = picked, -1 if within(picked) else 1
    for _ in range(MOST_TRIED):
        k += step
        if k < 1 or within(k) != (step < 0):
            break


def point(run: Run, times: Times, steps_between: int, scale: Scale) -> Point:
    """Return the overhead of saving every k steps: rounds of training alone and with saves, in turn."""
    few = max(2, ceil(scale.steps / 2), ceil(scale.alone_s / times.iteration_s))
    saves = ceil(max(scale.steps, scale.saving_s / times.iteration_s) / steps_between)
    load, rounds, started = HostLoad(), list[float](), perf_counter()
    before = _seconds(run, few) / few
    while len(rounds) < ROUNDS and not (rounds and perf_counter() - started > scale.longest_s):
        begin = perf_counter()
        for _ in range(saves):
            run.save()
            _seconds(run, steps_between)
        run.checkpointer.wait()
        spent = perf_counter() - begin
        after = _seconds(run, few) / few
        rounds.append(100 * (spent / (saves * steps_between * (before + after) / 2) - 1))
        before = after
    return Point(
        steps_between=steps_between,
        rounds=rounds,
        predicted_percent=overhead_percent(times, steps_between),
        load=load.others(),
    )


def _seconds(run: Run, steps: int) -> float:
    begin = perf_counter()
    for _ in range(steps):
        run.step()
    return perf_counter() - begin


def recovered(run: Run, times: Times, steps_between: int) -> Recovery:
    """Return what failures in the middle of steps over an interval cost: reading, and training what was lost again.

    The writing that a failure would have cut off goes on to its end here, and counts as lost.
    """
    found = []
    for n in range(CRASHES):
        run.save()
        _seconds(run, steps_between)
        run.save()
        begun = min(steps_between - 1, int((n + 0.5) / CRASHES * steps_between))  # steps done, and half of the next
        _seconds(run, begun)
        at, safe = run.at, run.checkpointer.last
        run.checkpointer.wait()
        assert safe is not None  # the first save of this round has ended when the second began
        run.checkpointer.forget()
        begin = perf_counter()
        run.rewind(safe)
        _seconds(run, at - run.at)
        found.append(perf_counter() - begin + times.iteration_s / 2)
        run.step()
    return Recovery(
        steps_between=steps_between,
        measured_s=sum(found) / CRASHES,
        predicted_s=recovery_s(times, steps_between),
    )


def cores_here() -> Cores:
    """Return own where the writing can have a core beside the trainer's."""
    return "own" if usable_cores() > 1 else "shared"


def quick(backend: Backend = "disk", api: Api = "torch.save", megabytes: int = 25) -> Case:
    """Return a measurement of this machine in some ten seconds: the profile, and k up to the predicted one.

    On a machine with one core the writing has the trainer's.

    Raises:
        InputError: as `opened`.
    """
    setting = Setting(backend=backend, api=api, cores=cores_here(), megabytes=megabytes)
    return measured(setting, Scale(0.3, 0.5, longest_s=5.0, effort=Effort(3, 0.2), search=False))
