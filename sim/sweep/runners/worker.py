"""A worker of the pool: `python -m sim.sweep.runners.worker FD` takes a function, then tasks, from a pipe."""

import os
import sys
from multiprocessing.connection import Connection
from typing import Any


def serve(pipe: Connection) -> None:
    """Answer every task with (what went wrong or None, result), until the other end is closed."""
    try:
        function = pipe.recv()
        while True:
            task = pipe.recv()
            try:
                found: tuple[str | None, Any] = None, function(task)
            except Exception as error:
                found = f"{type(error).__name__}: {error}", None
            pipe.send(found)
    except (EOFError, OSError):
        return  # whoever asked is gone


if __name__ == "__main__":
    os.nice(10)
    serve(Connection(int(sys.argv[1])))
