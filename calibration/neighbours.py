"""How much longer kernels of one core take while the other cores run the same: memory and last-level cache are shared.

Processes of one thread each are started once. In every round each kind of kernel is timed for a moment in the first of
them alone and then in all at the same time, so that whatever else slows the machine slows both; what counts is the
median ratio. Kernels stream new data from memory, or multiply matrices that have left the caches. Their time is that of
the thread on its core: one of others that takes turns on a core would slow all together, but not the first alone.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import cycle, product
from multiprocessing.connection import wait
from typing import IO, Any, Literal, get_args

import numpy as np
import torch

from sim.costs.fitted import six_digits
from sim.specs.fields import InputError
from sim.tuner.orphans import end_with_parent

OPERATION = "beside"
Kind = Literal["memory", "product"]
KINDS: tuple[Kind, ...] = get_args(Kind)
STREAM_BYTES = 2**26
"""Of one copy, read and written: several times the last-level cache that a core has."""
PRODUCT, SETS = 512, 32
"""Rows of square matrices, and how many pairs of them are multiplied in turn (96 MiB with their results)."""
ROUNDS, WINDOW_S = 7, 0.2
START_S = 120.0
"""Until a process that is asked for the first time must have answered, beside the window."""
MOST = 8
"""Processes at most; more than so many neighbours are told by the line through none and all of these."""


@dataclass(frozen=True)
class Beside:
    """Median seconds of one kernel among `processes` that ran it at the same time, in one round."""

    kind: str
    processes: int
    round: int
    t_s: float
    n: int

    @property
    def row(self) -> dict[str, Any]:
        """The columns of `samples.parquet` that belong to the case and its times."""
        moved = 2.0 * STREAM_BYTES if self.kind == "memory" else 12.0 * PRODUCT**2
        return {
            "op": OPERATION, "direction": self.kind, "dtype": "float32", "layout": "", "implementation": "torch",
            "group": f"{self.processes} processes", "use": "fit",
            "id": f"{OPERATION}/{self.kind}/float32/torch//processes={self.processes} round={self.round}", "calls": 1,
            "t_s": self.t_s, "t_min_s": self.t_s, "t_p10_s": self.t_s, "t_p90_s": self.t_s,
            "n": self.n, "launches": 1, "flop": 2.0 * PRODUCT**3 if self.kind == "product" else 0.0, "bytes": moved,
            "shape": json.dumps({"processes": self.processes, "round": self.round}), "error": None,
        }  # fmt: skip


MOST_ADDED = 100.0
"""As much as a profile states."""


def measure(processes: int, budget_s: float = 20.0, rounds: int = ROUNDS, window_s: float = WINDOW_S) -> list[Beside]:
    """Return the times of every kind alone and among `processes` (`MOST` at most), as many rounds as the budget allows.

    The budget begins when all are ready.

    Raises:
        InputError: a process failed or did not answer.
    """
    found = []
    with ExitStack() as held:
        team = [held.enter_context(_process()) for _ in range(min(processes, MOST))]
        _timed(team, KINDS[0], 0.0)  # until all are ready
        begin = time.monotonic()
        for number in range(rounds):
            for kind, some in product(KINDS, (team[:1], team)):
                answer = _timed(some, kind, window_s)
                found.append(Beside(kind, len(some), number, answer["t_s"], answer["n"]))
            if time.monotonic() - begin > budget_s:
                break
    return found


def shares(rows: Sequence[Mapping[str, Any]]) -> dict[Kind, float]:
    """Return by kind what every neighbour adds to the time of a kernel, relative to alone, from 0 to `MOST_ADDED`.

    rows: samples with `shape` as numbers; the fluid model of `sim.costs.contention` with streams that are alike. Rounds
    without a time alone say nothing.
    """
    held = {(r["direction"], r["shape"]["round"], r["shape"]["processes"]): r["t_s"] for r in rows}
    found: dict[Kind, float] = {}
    for kind in KINDS:
        pairs = [
            (t, held[k, n, 1], p - 1) for (k, n, p), t in held.items() if k == kind and p >= 2 and (k, n, 1) in held
        ]
        if pairs:
            added = float(np.median([(t / alone - 1) / others for t, alone, others in pairs]))
            found[kind] = six_digits(min(max(added, 0.0), MOST_ADDED))
    return found


@contextmanager
def _process() -> Iterator[subprocess.Popen[str]]:
    """Start a process of one thread that times kernels when it is asked to, and end it whatever it does."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    words, pipe = [sys.executable, "-m", "calibration.neighbours"], subprocess.PIPE
    process = subprocess.Popen(words, env=environment, text=True, errors="replace", stdin=pipe, stdout=pipe)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _timed(team: Sequence[subprocess.Popen[str]], kind: str, window_s: float) -> Mapping[str, Any]:
    """Return what the first of `team` has timed while all of them ran kernels of one kind; all are asked first."""
    with suppress(BrokenPipeError):  # that a process has ended is told below
        for process in team:
            _say(process.stdin, [kind, window_s])
    end = time.monotonic() + START_S + window_s
    answers = [_answer(process, end) for process in team]
    return answers[0]


def _answer(process: subprocess.Popen[str], end: float) -> Mapping[str, Any]:
    """Return what a process answers until `end` (of `time.monotonic`); raises InputError where that is nothing."""
    allowed, stream = "processes of PyTorch that run side by side", process.stdout
    if not stream or not wait([stream.fileno()], max(0.0, end - time.monotonic())):
        raise InputError("processes", "no answer", allowed)
    line = stream.readline()
    if not line:
        raise InputError("processes", f"exit code {process.wait()}", allowed)
    try:
        found = json.loads(line)
        return {"t_s": float(found["t_s"]), "n": int(found["n"])}
    except (ValueError, TypeError, KeyError):
        raise InputError("processes", line, allowed) from None


def _say(stream: IO[str] | None, told: object) -> None:
    if stream:
        stream.write(json.dumps(told) + "\n")
        stream.flush()


def _kernels() -> Mapping[str, Callable[[], object]]:
    generator = torch.Generator().manual_seed(0)
    source = torch.randn(STREAM_BYTES // 4, generator=generator)
    target = torch.empty_like(source)
    pairs = cycle([tuple(torch.randn(2, PRODUCT, PRODUCT, generator=generator)) for _ in range(SETS)])
    return {"memory": lambda: target.copy_(source), "product": lambda: torch.mm(*next(pairs))}


def main() -> None:
    """Time kernels as asked on standard input, a line each, until it ends."""
    end_with_parent()
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries also print (MKL_VERBOSE), which is no answer
    kernels = _kernels()
    for line in sys.stdin:
        kind, window_s = json.loads(line)
        taken = _window(kernels[kind], window_s)
        _say(answers, {"t_s": float(np.median(taken)), "n": len(taken)})


def _window(kernel: Callable[[], object], window_s: float) -> list[float]:
    """Return the seconds on a core of each call, one call at least, of as many as `window_s` of the clock hold."""
    end, taken = time.perf_counter() + window_s, list[float]()
    while time.perf_counter() < end or not taken:
        begin = time.thread_time()
        kernel()
        taken.append(time.thread_time() - begin)
    return taken


if __name__ == "__main__":
    main()
