"""Processes that the tests start are forked by one that has imported what all of them need, which takes them longest.

They are those that `calibration.execute.processes` starts as `python -m MODULE …`, and in the full run none.
"""

import fcntl
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

MODULES = (
    "calibration.execute.worker",
    "calibration.federated.worker",
    "calibration.rank",
    "calibration.workloads.parallel",
)
WIDTH = 12
"""Of a number that is told."""


class Forked:
    """What is used of `subprocess.Popen`, of a process that another one forks."""

    def __init__(self, server: socket.socket, command: Sequence[str], given: dict[str, Any]) -> None:
        self._told, tells = os.pipe()
        stdin, self._stdin = os.pipe()
        passed = given["pass_fds"]
        asked = json.dumps([command[2:], str(Path.cwd()), dict(given["env"]), passed]).encode()
        socket.send_fds(server, [asked], [tells, stdin, given["stdout"].fileno(), *passed])
        os.close(tells)
        os.close(stdin)
        self.pid = self._number()
        self.returncode: int | None = None

    def _number(self) -> int:
        return int(os.read(self._told, WIDTH))

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], 0)[0]:
            self.returncode = self._number()
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def communicate(self) -> None:
        """Wait for its end; to be called once."""
        os.close(self._stdin)
        if self.returncode is None:
            self.returncode = self._number()
        os.close(self._told)


@contextmanager
def forking() -> Iterator[None]:
    """Have `calibration.execute.processes` fork what it can."""
    from calibration.execute import processes  # noqa: PLC0415 - of those who start processes alone

    server, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        code = [sys.executable, "-m", "tests.forked", str(theirs.fileno())]
        process = subprocess.Popen(code, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL)

    def started(command: Sequence[str], **given: Any) -> Any:
        if command[0] != sys.executable or command[1] != "-m" or command[2] not in MODULES:
            return subprocess.Popen(command, **given)
        return Forked(server, command, given)

    with pytest.MonkeyPatch.context() as patch, server:
        patch.setattr(processes, "subprocess", SimpleNamespace(**vars(subprocess) | {"Popen": started}))
        yield
    process.wait()


def serve(asks: socket.socket) -> None:
    """Fork what is asked for until nobody is left who asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        asked, places, _, _ = socket.recv_fds(asks, 2**20, 8)
        if not asked:
            return
        request = json.loads(asked)
        importlib.import_module(request[0][0])
        if not os.fork():
            asks.close()
            _watch(*request, *places)
        for place in places:
            os.close(place)


def _watch(words: list[str], folder: str, env: dict[str, str], passed: list[int], tells: int, *given: int) -> None:
    """Fork the process and tell its number, and how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Beyond the places that they are to have.
    held = [fcntl.fcntl(place, fcntl.F_DUPFD_CLOEXEC, 500) for place in given]
    for place in given:
        os.close(place)
    pid = os.fork()
    if not pid:
        os.close(tells)
        for place, wanted in zip([*held[:2], *held[1:]], [0, 1, 2, *passed], strict=True):
            os.dup2(place, wanted)
        for place in held:
            os.close(place)
        _run(words, folder, env)
    for place in held:
        os.close(place)
    os.write(tells, f"{pid:{WIDTH}}".encode())
    os.write(tells, f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):{WIDTH}}".encode())
    os._exit(0)


def _run(words: list[str], folder: str, env: dict[str, str]) -> None:
    """Be `python -m MODULE …`."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None
    sys.argv = words
    try:
        sys.modules.pop(words[0])
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    except BaseException:  # what it does not end with itself
        traceback.print_exc()
    finally:
        os._exit(1)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as own:
        serve(own)
