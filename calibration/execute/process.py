"""How a process begins and ends that another one started."""

import os
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

LISTENER = "TRAINSIM_LISTENER"
"""File descriptor of the socket on which rank 0 waits for the others: whoever started it has bound it."""


def end_with_input() -> None:
    """End the process when its standard input ends."""
    os.read(sys.stdin.fileno(), 1)  # not through a buffer, whose lock would be held at shutdown
    os._exit(1)


def whole(folder: Path, main: Callable[[Path], None]) -> None:
    """Do `main` in `folder` and end the process, with exit code 1 and the traceback where it fails.

    Torn down with the interpreter, a thread of gloo's that still runs would abort the process.
    """
    code = 0
    try:
        main(folder)
    except BaseException:  # also whoever wants to exit
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def process(main: Callable[[Path], None]) -> None:
    """Do `main` in the folder that the command line names; started by another process, end with standard input."""
    if LISTENER in os.environ:
        threading.Thread(target=end_with_input, daemon=True).start()
    whole(Path(sys.argv[1]), main)
