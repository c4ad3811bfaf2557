"""Calibrations to kill: `killed_driver.py` forks one for each line of its input, so that torch is imported once.

A line is JSON: folder, and `at`: [audit event of a write, times], or null. It says `pid N`; then `measured ID` and
`safe IDS` as samples come and are in the file; at that event it kills itself; then `ended STATUS` of waitpid.
"""

import json
import os
import signal
import sys
from pathlib import Path

from calibration import session, store
from calibration.session import Bench, Request
from calibration.store import SESSION
from tests.calibration.fakes import FINGERPRINT, FakeFamily, FakeMachine

OPS, CASES, SECOND_S = ("gemm", "gelu"), 20, 2.0**-7
"""Times are powers of two, so that a sample is the same to the last bit whenever it is measured."""


def said(line: str) -> None:
    """Write a line at once."""
    os.write(1, line.encode() + b"\n")


class Telling(store.Store):
    """A store that tells what it takes up, and what is safe."""

    def add(self, row):
        said(f"measured {row['id']}")
        super().add(row)

    def write(self):
        super().write()
        said(f"safe {json.dumps(list(self.rows))}")


def dies(event: str, left: int) -> None:
    """Kill this process when a draft is opened, or put in its place, so many times."""

    def hear(heard: str, details: tuple[object, ...]) -> None:
        nonlocal left
        if heard == event and ".draft-" in str(details[0]):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hear)


def calibrate(folder: Path) -> None:
    """Measure to the end, from what the folder holds."""
    machine = FakeMachine(sentinels=[SECOND_S])
    held = [FakeFamily(machine, name=op, op=op, count=CASES, second_s=SECOND_S) for op in OPS]
    request = Request("cpu", folder, resume=(folder / SESSION).exists())
    session.measured(request, held, Bench(FINGERPRINT, machine.tools()), lambda *progress: None)


def main() -> None:
    """Fork a calibration for each line."""
    store.EVERY_S, session.Store = 0.0, Telling
    for line in sys.stdin:
        asked = json.loads(line)
        if pid := os.fork():
            said(f"pid {pid}")
            said(f"ended {os.waitpid(pid, 0)[1]}")
            continue
        if asked["at"]:
            dies(*asked["at"])
        calibrate(Path(asked["folder"]))
        os._exit(0)


if __name__ == "__main__":
    main()
