"""The folder that a calibration writes: made where there is none, and one process's alone while it is written."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sim.specs.fields import InputError
from sim.specs.locks import lock_file, unlocked

LOCK = "calibrate.lock"


def made(folder: Path) -> None:
    """Make a folder where there is none; raises InputError where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("--out", str(folder), f"a folder that exists or can be made ({error.strerror})") from None


@contextmanager
def alone(folder: Path, option: str = "--out") -> Iterator[None]:
    """Make a folder and keep other calibrations out of it; a new one in which nothing is written goes again.

    Raises:
        InputError: of `option`: another calibration writes the folder, or it cannot be written.
    """
    new = not folder.exists()
    made(folder)
    lock = lock_file(folder / LOCK, option, folder)
    try:
        yield
    finally:
        unlocked(lock)
        if new:
            with suppress(OSError):
                folder.rmdir()
