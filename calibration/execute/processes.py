"""Processes that train together on this machine: started, watched, and ended in any case.

They meet at a port of 127.0.0.1 that is bound here, before any of them starts, and handed to the first of them.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sim.specs import InputError
from sim.specs.files import load_mapping, write_all, write_atomically

POLL_S = 0.05
GRACE_S = 5.0
ADDRESS = "127.0.0.1"
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
THREADS, INTERFACE = ("OMP_NUM_THREADS", "MKL_NUM_THREADS"), ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
ENVIRONMENT = {**dict.fromkeys(THREADS, "1"), **dict.fromkeys(INTERFACE, LOOPBACK)}
"""One thread a process, so that two of them are two devices; they listen on 127.0.0.1 only."""

WORKER = (sys.executable, "-m", "calibration.execute.worker")
LAST_LINES, LAST_COLUMNS = 3, 300
"""How much of what a dead process said last is told."""


class ExecutionError(RuntimeError):
    """A process died, or the whole took too long."""


def run_processes(
    task: Mapping[str, Any],
    timeout_s: float,
    command: Sequence[str] = WORKER,
    orders: Mapping[str, str] | None = None,
    port: int = 0,
    keep: Path | None = None,
) -> list[Mapping[str, Any]]:
    """Return what every one of `task["ranks"]` processes of `command FOLDER` wrote.

    orders: texts of files beside the task, by name; port: where they meet (0: any that is free); keep: the folder in
    which traces of theirs go.

    Raises:
        InputError: the port is in use.
        ExecutionError: a process died (with its last words), or not all had ended after `timeout_s`.
    """
    with TemporaryDirectory(prefix="trainsim-") as name, bound(port) as listener:
        folder = Path(name)
        write_task(folder, task, timeout_s, orders or {})
        with started(folder, int(task["ranks"]), command, listener) as processes:
            listener.close()
            _wait(processes, folder, timeout_s)
        for trace in folder.glob("trace-*.json") if keep else ():
            write_atomically(Path(keep or "") / trace.name, trace.read_bytes())
        return [load_mapping(folder / f"result-{rank}.json") for rank in range(len(processes))]


def write_task(folder: Path, task: Mapping[str, Any], timeout_s: float, orders: Mapping[str, str]) -> None:
    """Write what the worker reads; `timeout_s`: how long a process waits for another."""
    told = {"task.json": json.dumps({"timeout_s": timeout_s, **task})}
    write_all({folder / file: text for file, text in {**orders, **told}.items()})


def bound(port: int) -> socket.socket:
    """Return a socket that listens on a port of 127.0.0.1; only the first process inherits it."""
    made = socket.socket()
    if port and os.name == "posix":  # not to wait for the last run's connections; elsewhere it shares a port in use
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((ADDRESS, port))
        made.listen()
    except OSError:
        made.close()
        raise InputError("--port", port, f"a port of {ADDRESS} that nobody uses, or 0") from None
    return made


@contextmanager
def started(
    folder: Path, ranks: int, command: Sequence[str], listener: socket.socket
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start so many processes of `command FOLDER`; whatever happens they are ended."""
    processes: list[subprocess.Popen[bytes]] = []
    shared = {"MASTER_ADDR": ADDRESS, "MASTER_PORT": str(listener.getsockname()[1]), "WORLD_SIZE": str(ranks)}
    environment = {**os.environ, **ENVIRONMENT, **shared, "TRAINSIM_LISTENER": str(listener.fileno())}
    environment["TMPDIR"] = str(folder)  # what they compile goes with the folder, however they end
    try:
        for rank in range(ranks):
            with (folder / f"words-{rank}").open("wb") as words:
                processes.append(
                    subprocess.Popen(
                        [*command, str(folder)],
                        stdin=subprocess.PIPE,
                        stdout=words,
                        stderr=subprocess.STDOUT,
                        env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                        pass_fds=(listener.fileno(),) if rank == 0 else (),
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
        raise ExecutionError(last_words(processes, folder, dead))


def _settle(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait a moment for the others: the first to be seen dead is often not the one that failed."""
    end = time.monotonic() + GRACE_S
    while time.monotonic() < end and None in [process.poll() for process in processes]:
        time.sleep(POLL_S)


def last_words(processes: Sequence[subprocess.Popen[bytes]], folder: Path, dead: Sequence[int]) -> str:
    """Return which process died and why; one that lost its peer is told of last."""

    def said(rank: int) -> str:
        lines = (folder / f"words-{rank}").read_text("utf-8", "replace").strip().splitlines()[-LAST_LINES:]
        return " | ".join(line.strip()[:LAST_COLUMNS] for line in lines) or "it said nothing"

    # One that a signal ended said nothing; the others then miss it.
    first = min(dead, key=lambda rank: (processes[rank].returncode >= 0, "Connection" in said(rank)))
    code = processes[first].returncode
    how = f"was ended by signal {-code}" if code < 0 else f"died with exit code {code}"
    return f"process {first} of {len(processes)} {how}: {said(first)}"
