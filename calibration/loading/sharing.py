"""What is lost of a core that processes take turns on: after every switch caches hold what the other one left."""

from collections.abc import Callable, Sequence
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import Connection
from threading import BrokenBarrierError
from time import perf_counter
from typing import Protocol

import torch
from torch.utils.data import default_collate

from calibration.loading.bench import Bench, Setting, on_cores, trainer
from calibration.loading.decoding import Prepared

SHARED_S, WARM, READY_S = 0.7, 2, 30.0
"""How long loops are watched, how often each runs before, and how long they wait for each other."""

Step = Callable[[int], object]


class Barrier(Protocol):
    """Where processes wait for each other."""

    def wait(self, timeout: float | None = None) -> int:
        """Return when all are there."""
        ...


def sharing_loss(bench: Bench, setting: Setting) -> float:
    """Return the share of a core's time that is lost while the setting's processes take turns on it, 0 where they need
    not: a worker beside the trainer if that computes, else beside a worker.

    Each is timed alone on one core, then both together: what they lack of the sum of what they did alone is lost.
    """
    computes = setting.trainer == "compute"
    if setting.workers + computes <= setting.cores:
        return 0.0
    data = Prepared(bench.cached, setting.kind, setting.seed)

    def prepare(number: int) -> object:
        return default_collate([data[setting.batch * number + sample] for sample in range(setting.batch)])

    steps: list[Step] = [prepare, prepare]
    if computes:
        batch = default_collate([data[place] for place in range(setting.batch)])
        train = trainer(setting, batch)
        steps[1] = lambda number: train(batch)
    alone = [side_by_side([step])[0] for step in steps[: 1 + computes]]
    together = side_by_side(steps)
    return max(0.0, 1 - sum(rate / alone[min(n, computes)] for n, rate in enumerate(together)))


def side_by_side(steps: Sequence[Step]) -> list[float]:
    """Return how often a second each of some loops runs, while all of them run on one core."""
    context = get_context("fork")
    barrier, pipes = context.Barrier(len(steps)), [context.Pipe(duplex=False) for _ in steps]
    with on_cores(1):
        processes = [
            context.Process(target=_loop, args=(step, barrier, theirs), daemon=True)
            for step, (_, theirs) in zip(steps, pipes, strict=True)
        ]
        for process in processes:
            process.start()
    for _, theirs in pipes:
        theirs.close()
    try:
        return [float(ours.recv()) for ours, _ in pipes]
    except EOFError:
        told = "its error is on stderr (of gradients: torch computes none in a fork of a process that has)"
        raise RuntimeError(f"a loop ended early; {told}") from None
    finally:
        for process in processes:
            process.join()


def _loop(step: Step, barrier: Barrier, pipe: Connection) -> None:
    torch.set_num_threads(1)
    numbers = count()
    for number in range(WARM):
        step(number)
    try:
        barrier.wait(READY_S)
    except BrokenBarrierError:
        return
    begin, done, spent = perf_counter(), 0, 0.0
    while spent < SHARED_S:
        step(next(numbers))
        done, spent = done + 1, perf_counter() - begin
    pipe.send(done / spent)
