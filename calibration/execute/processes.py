"""Processes that train together on this machine: started, watched, and ended in any case."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sim.specs.files import load_mapping, write_atomically

POLL_S = 0.05
GRACE_S = 5.0
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
"""One thread a process, so that two of them are two devices; gloo listens on 127.0.0.1 only."""

WORKER = (sys.executable, "-m", "calibration.execute.worker")


class ExecutionError(RuntimeError):
    """A process died, or the whole took too long."""


def run_processes(
    task: Mapping[str, Any], timeout_s: float, command: Sequence[str] = WORKER
) -> list[Mapping[str, Any]]:
    """Return what every one of `task["ranks"]` processes of `command FOLDER RANK` wrote.

    Raises:
        ExecutionError: a process died (with its last words), or not all had ended after `timeout_s`.
    """
    with TemporaryDirectory(prefix="trainsim-") as name:
        folder = Path(name)
        write_atomically(folder / "task.json", json.dumps(task))
        with _started(folder, int(task["ranks"]), command) as processes:
            _wait(processes, folder, timeout_s)
        return [load_mapping(folder / f"result-{rank}.json") for rank in range(len(processes))]


@contextmanager
def _started(folder: Path, ranks: int, command: Sequence[str]) -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    environment = {**os.environ, **ENVIRONMENT}
    try:
        for rank in range(ranks):
            with (folder / f"words-{rank}").open("wb") as words:
                processes.append(
                    subprocess.Popen(
                        [*command, str(folder), str(rank)],
                        stdin=subprocess.PIPE,
                        stdout=words,
                        stderr=subprocess.STDOUT,
                        env=environment,
                    )
                )
        yield processes
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.communicate()


def _wait(processes: Sequence[subprocess.Popen[bytes]], folder: Path, timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    while None in (codes := [process.poll() for process in processes]):
        if any(codes):
            _settle(processes)
            break
        if time.monotonic() > end:
            raise ExecutionError(f"process {codes.index(None)} has not ended after {timeout_s:g} s; all were ended")
        time.sleep(POLL_S)
    dead = [rank for rank, process in enumerate(processes) if process.poll()]
    if dead:
        raise ExecutionError(_last_words(processes, folder, dead))


def _settle(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait a moment for the others: the first to be seen dead is often not the one that failed."""
    end = time.monotonic() + GRACE_S
    while time.monotonic() < end and None in [process.poll() for process in processes]:
        time.sleep(POLL_S)


def _last_words(processes: Sequence[subprocess.Popen[bytes]], folder: Path, dead: Sequence[int]) -> str:
    """Return which process died and why; one that lost its peer is told of last."""

    def said(rank: int) -> str:
        lines = (folder / f"words-{rank}").read_text("utf-8", "replace").strip().splitlines()
        return lines[-1][:300] if lines else "it said nothing"

    first = min(dead, key=lambda rank: "Connection" in said(rank))
    code = processes[first].returncode
    how = f"was ended by signal {-code}" if code < 0 else f"died with exit code {code}"
    return f"process {first} of {len(processes)} {how}: {said(first)}"
