"""Heavy work in a process of its own: sliders stay live beside it, it tells its progress, and it can be cancelled.

A thread of the kernel would share the interpreter's lock with the sliders. A process that has finished its work is
kept, warm, for the next one; it ends by itself when the kernel is gone. What travels is pickled, between a process and
the one that it has started.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from subprocess import DEVNULL, Popen, TimeoutExpired
from threading import Lock, Thread
from time import monotonic
from typing import Any, Literal, NamedTuple

from sim.engine.step import Step, simulate
from sim.specs import Cluster, InputError, Model, Plan
from sim.specs.job import Objective, Target
from sim.tuner.tune import Tuned, tune

NICE = 10
"""By how much the process gives way to the kernel, whose sliders shall not wait for it."""

REPORT_EVERY_S = 0.05
"""Progress of one kind is passed on no more often: nobody reads faster, and every message makes the kernel work."""

LOOK_EVERY_S = 0.2
"""How often somebody looks whether the process still lives: processes that it has forked keep its pipe open."""

PATIENCE_S = 0.3
"""What a process has for ending when it is asked to, before it is killed."""

Kind = Literal["progress", "result", "error"]
Progress = Callable[[str, int, int], None]
Work = Callable[..., Any]
"""Importable, as the process looks it up by its name; called with the arguments and `progress` (what, done, of)."""


class Message(NamedTuple):
    """What comes back: progress (what, done, of), the result, or the text of an error."""

    kind: Kind
    content: Any


class Job:
    """One piece of work at a time, in a process.

    A newer `start` cancels what is running, and nothing more is heard of that. Callbacks are called on the event loop
    of the thread that starts the work; where there is none, by `poll` and `wait`.
    """

    def __init__(
        self,
        on_result: Callable[[Any], None],
        on_error: Callable[[str], None],
        on_progress: Progress = lambda what, done, of: None,
    ) -> None:
        self._on_result, self._on_error, self._on_progress = on_result, on_error, on_progress
        self._lock = Lock()
        self._number = 0
        self._worker: _Worker | None = None
        self._arrived: SimpleQueue[tuple[int, Message]] = SimpleQueue()

    @property
    def running(self) -> bool:
        """Whether an answer is still to come."""
        return self._worker is not None

    @property
    def pid(self) -> int | None:
        """The process that works, or None."""
        worker = self._worker
        return worker.pid if worker else None

    def start(self, work: Work, *arguments: Any) -> int:
        """Start `work(*arguments, progress=...)`, cancel what was running, and return the number of the request."""
        self.cancel()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        worker = _take()
        with self._lock:
            self._number += 1
            number, self._worker = self._number, worker
        Thread(target=self._read, args=(number, worker, (work, arguments), loop), daemon=True).start()
        return number

    def cancel(self) -> None:
        """End the process, if one works, at once; no callback is called for it any more."""
        with self._lock:
            self._number += 1
            worker, self._worker = self._worker, None
        if worker:
            worker.end()
            warm_up()

    def poll(self) -> None:
        """Call the callbacks of everything that has arrived without an event loop."""
        with suppress(Empty):
            while True:
                self._deliver(*self._arrived.get_nowait())

    def wait(self, timeout_s: float) -> bool:
        """`poll` until the work is done, `timeout_s` at most, and return whether it is."""
        until = monotonic() + timeout_s
        while self.running and (left := until - monotonic()) > 0:
            with suppress(Empty):
                self._deliver(*self._arrived.get(timeout=left))
        return not self.running

    def _read(
        self, number: int, worker: "_Worker", asked: tuple[Work, Any], loop: asyncio.AbstractEventLoop | None
    ) -> None:
        for message in worker.answers(*asked):
            try:
                if loop is None:
                    raise RuntimeError
                loop.call_soon_threadsafe(self._deliver, number, message)
            except RuntimeError:  # there is no loop, or none any more
                self._arrived.put((number, message))

    def _deliver(self, number: int, message: Message) -> None:
        with self._lock:
            if number != self._number or self._worker is None:
                return
            if message.kind != "progress":
                worker, self._worker = self._worker, None
                _keep(worker)
        if message.kind == "progress":
            self._on_progress(*message.content)
        else:
            (self._on_result if message.kind == "result" else self._on_error)(message.content)


SERVE = "import sys; from sim.widgets.background import serve; serve(int(sys.argv[1]))"
_spare: list["_Worker"] = []
_spare_lock = Lock()


def warm_up() -> None:
    """Start a process that waits for work, unless one waits already."""
    with _spare_lock:
        if not any(worker.alive for worker in _spare):
            _spare[:] = [_Worker()]


def close() -> None:
    """End the process that waits for work, if there is one."""
    with _spare_lock:
        while _spare:
            _spare.pop().end()


def _take() -> "_Worker":
    with _spare_lock:
        worker = _spare.pop() if _spare else None
    return worker if worker and worker.alive else _Worker()


def _keep(worker: "_Worker") -> None:
    with _spare_lock:
        if worker.alive and not _spare:
            _spare.append(worker)
            return
    worker.end()


class _Worker:
    """The kernel's end of a process; it leads a group of its own, so that an interrupt of the kernel passes it by."""

    def __init__(self) -> None:
        self._pipe, theirs = Pipe()
        # Not multiprocessing's own processes: they would run a user's script again, and daemonic ones, which end with
        # the kernel, may have no processes of their own, as the search has.
        found = os.pathsep.join(path or os.curdir for path in sys.path)
        self._process = Popen(
            [sys.executable, "-P", "-c", SERVE, str(theirs.fileno())],
            stdin=DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": found},
        )
        theirs.close()
        self.pid = self._process.pid
        self._ended = False

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def end(self) -> None:
        """End the process and what it has started."""
        if self._ended:  # its number may be another's by now
            return
        self._ended = True
        for ending in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self.pid, ending)
            with suppress(TimeoutExpired):
                self._process.wait(PATIENCE_S)

    def answers(self, work: Work, arguments: tuple[Any, ...]) -> Iterator[Message]:
        """Send the work and yield what comes back; the last is a result or an error."""
        try:
            self._pipe.send((work, arguments))
            while True:
                if self._pipe.poll(LOOK_EVERY_S):
                    message: Message = self._pipe.recv()
                    yield message
                    if message.kind != "progress":
                        return
                elif not self.alive:
                    raise EOFError
        except (EOFError, OSError):
            self.end()
            yield Message("error", f"the background process ended: {_reason(self._process.returncode)}")
        except Exception as error:  # whatever pickling meets with
            yield Message("error", _text(error))


def _reason(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit status {code}"
    hint = ", perhaps for want of memory" if -code == signal.SIGKILL else ""
    return f"killed by {signal.Signals(-code).name}{hint}"


def _text(error: BaseException) -> str:
    return str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"


def serve(descriptor: int) -> None:
    """Do the work that comes through the pipe `descriptor`, one piece after the other: what the process runs.

    It ends, with all that it has started, when the other end of the pipe is gone.
    """
    os.nice(NICE)
    pipe = Connection(descriptor)
    asked: SimpleQueue[tuple[Work, Any] | Exception] = SimpleQueue()
    Thread(target=_receive, args=(pipe, asked), daemon=True).start()
    while True:
        answer = _answered(asked.get(), pipe)
        try:
            pipe.send(answer)
        except Exception as error:  # a result that cannot be pickled; nothing of it was sent
            pipe.send(Message("error", _text(error)))


def _receive(pipe: Connection, asked: "SimpleQueue[tuple[Work, Any] | Exception]") -> None:
    while True:
        try:
            asked.put(pipe.recv())
        except (EOFError, OSError):
            os.killpg(0, signal.SIGKILL)
        except Exception as error:  # the function cannot be imported here
            asked.put(error)


def _answered(asked: tuple[Work, Any] | Exception, pipe: Connection) -> Message:
    if isinstance(asked, Exception):
        return Message("error", _text(asked))
    work, arguments = asked
    try:
        return Message("result", work(*arguments, progress=_Reporter(pipe)))
    except BaseException as error:  # whatever ends the work is told to who asked for it
        return Message("error", _text(error))


class _Reporter:
    """Progress that is sent at once where another part of the work begins or one ends, else now and then."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._what, self._next_s = pipe, "", 0.0

    def __call__(self, what: str, done: int, of: int) -> None:
        now = monotonic()
        if what != self._what or done >= of or now >= self._next_s:
            self._what, self._next_s = what, now + REPORT_EVERY_S
            self._pipe.send(Message("progress", (what, done, of)))


def tune_job(
    model: Model,
    cluster: Cluster,
    global_batch: int,
    plan: Plan | None = None,
    knobs: Mapping[str, Sequence[Any]] | None = None,
    objective: Objective = "step_time",
    top: int = 10,
    target: Target = "torch",
    *,
    progress: Progress,
) -> Tuned:
    """Return `sim.tune`'s answer: work for `Job.start`."""
    return tune(model, cluster, global_batch, knobs, objective, top, plan=plan, target=target, progress=progress)


def events_job(model: Model, cluster: Cluster, plan: Plan, *, progress: Progress) -> Step:
    """Return one step on the event engine: work for `Job.start`."""
    progress("simulating events", 0, 1)
    return simulate(model, cluster, plan, "events")
