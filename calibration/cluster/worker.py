"""A worker that holds one training at a time: places it from its checkpoint, runs it for a while, saves it again.

Workers differ as device types do. Every step of a worker with a link waits until its batch has come over it, so that
jobs that read much for what they compute are slowed down most; the cores are the same.
"""

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter, sleep
from typing import Literal, Protocol

import torch

from calibration.checkpointing.checkpointer import Checkpointer
from calibration.checkpointing.engine import pin
from calibration.checkpointing.manifest import Progress
from calibration.cluster.networks import Network, Training
from calibration.host import keep_freed_memory
from sim.tuner.orphans import end_with_parent

LEAST_SLEEP_S = 0.005
"""Waiting is put together to so much at least: shorter sleeps take the system longer than they should."""

LATE_S = 120.0
"""How much longer than its seconds an order may take: a step, or a checkpoint read or written."""

Kind = Literal["place", "run", "save", "drop", "end"]


@dataclass(frozen=True)
class Order:
    """What a worker is to do: place a job, run what it holds, save and drop it, or drop it as it is."""

    kind: Kind
    job: str = ""
    seconds: float = 0.0
    steps: int = 0


@dataclass(frozen=True)
class Done:
    """How long an order took, and the steps of the training that were done then (run: during it)."""

    seconds: float = 0.0
    steps: int = 0


class Slot(Protocol):
    """What takes orders: `ask` returns at once, `answer` when the order is carried out."""

    def ask(self, order: Order) -> None:
        """Begin."""

    def answer(self) -> Done:
        """Return when it is done."""


class SlotError(RuntimeError):
    """A worker has failed; the message says what happened there."""


class Worker:
    """Carries out orders in this process; checkpoints of a job are in a folder of its name below `folder`."""

    def __init__(
        self, networks: Mapping[str, Network], folder: Path, link_bytes_per_s: float | None = None, seed: int = 0
    ) -> None:
        self.networks, self.folder, self.link, self.seed = networks, folder, link_bytes_per_s, seed
        self.job = ""
        self.training: Training | None = None

    def do(self, order: Order) -> Done:
        """Carry out an order; raises SlotError where none is held that could run or be saved."""
        begin = perf_counter()
        if order.kind == "place":
            self._place(order.job)
            return Done(perf_counter() - begin, self._held.at)
        steps = 0
        if order.kind == "run":
            steps = self._run(order, begin)
        if order.kind == "save":
            steps = self._save()
        if order.kind in ("save", "drop"):
            self.job, self.training = "", None
        return Done(perf_counter() - begin, steps)

    @property
    def _held(self) -> Training:
        if self.training is None:
            raise SlotError("no job is placed")
        return self.training

    def _place(self, job: str) -> None:
        self.job, self.training = job, Training(self.networks[job], self.seed)
        with self._checkpointer() as checkpointer:
            found = checkpointer.resume()
        if found:
            state, progress = found
            self.training.load(state, progress.step)

    def _run(self, order: Order, begin: float) -> int:
        training, owed_s = self._held, 0.0
        waits_s = self.networks[self.job].batch_bytes / self.link if self.link else 0.0
        first = training.at
        while training.at - first < order.steps and perf_counter() - begin < order.seconds:
            training.step()
            owed_s += waits_s
            if owed_s > LEAST_SLEEP_S:
                owed_s -= _slept(owed_s)
        if owed_s > 0:
            sleep(owed_s)
        return training.at - first

    def _save(self) -> int:
        at = self._held.at
        with self._checkpointer() as checkpointer:
            if checkpointer.last != at:
                checkpointer.save(self._held.state(), Progress(step=at))
                checkpointer.wait()
        return at

    def _checkpointer(self) -> Checkpointer:
        folder = self.folder / self.job
        folder.mkdir(exist_ok=True)
        return Checkpointer(folder)


class SlotProcess:
    """A worker in a process of its own, with one thread, on one core."""

    def __init__(
        self,
        networks: Mapping[str, Network],
        folder: Path,
        link_bytes_per_s: float | None = None,
        core: int | None = None,
    ) -> None:
        context = get_context("fork")
        self._asked_s = 0.0
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, Worker(networks, folder, link_bytes_per_s), core)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, order: Order) -> None:
        """Begin an order; raises SlotError where the worker has ended."""
        try:
            self._pipe.send(order)
        except OSError:
            raise SlotError("the worker has ended") from None
        self._asked_s = order.seconds

    def answer(self) -> Done:
        """Return when it is done; raises SlotError where it has failed, or is late, which ends the process."""
        limit_s = self._asked_s + LATE_S
        try:
            if not self._pipe.poll(limit_s):
                self._process.kill()  # what it answers later would be taken for the answer to the next order
                raise SlotError(f"the worker has not answered after {limit_s:g} s")
            found = self._pipe.recv()
        except (EOFError, OSError):
            raise SlotError("the worker has ended") from None
        if isinstance(found, Done):
            return found
        raise SlotError(found)

    def close(self) -> None:
        """End the process."""
        with suppress(SlotError):  # it has ended by itself
            self.ask(Order("end"))
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()


def _serve(pipe: Connection, worker: Worker, core: int | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who gave the orders ends this process
    end_with_parent()
    torch.set_num_threads(1)
    keep_freed_memory()
    pin(None if core is None else frozenset({core}))
    while True:
        try:
            order = pipe.recv()
        except EOFError:
            return  # nobody is there any more
        if order.kind == "end":
            return
        try:
            pipe.send(worker.do(order))
        except Exception as error:  # all that went wrong there is told here
            pipe.send(f"{type(error).__name__}: {error}")


def _slept(seconds: float) -> float:
    """Sleep, and return how long it really was."""
    begin = perf_counter()
    sleep(seconds)
    return perf_counter() - begin


def cores() -> list[int | None]:
    """Return the cores that this process may use, [None] where the system does not say."""
    return [*sorted(os.sched_getaffinity(0))] if hasattr(os, "sched_getaffinity") else [None]
