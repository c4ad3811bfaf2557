"""A sweep as a script, for tests that kill it: `driver.py STORE RUNNER HOW AFTER`.

It says `ack N` once block N is safe. HOW: `before` kills it between BEGIN and COMMIT of write number AFTER, `inside`
says `committing` just before that COMMIT, so that whoever reads it can kill it meanwhile; `never` does neither.
"""

import os
import signal
import sys

from sim.sweep import run, writer
from sim.sweep.evaluate import Block
from sim.sweep.grid import Grid
from tests.sweep.conftest import BASE, QUICK

ROWS = 8


def main(store: str, runner: str, how: str, after: int) -> None:
    """Run the sweep of the small grid, in short blocks."""

    class Mortal(writer.Writer):
        """A writer that tells when it is inside a write, or ends there."""

        written = 0

        def commit(self) -> None:
            Mortal.written += 1
            if Mortal.written == after and how == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            if Mortal.written == after and how == "inside":
                said("committing")
            super().commit()

        def write(self, block: Block) -> None:
            super().write(block)
            said(f"ack {block.number}")

    writer.BLOCK_ROWS = {"analytic": ROWS}
    run.Writer = Mortal
    run.sweep(Grid(**BASE, axes=QUICK), store, runner, None if runner == "here" else 2, resume=True)


def said(line: str) -> None:
    """Write a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
