"""The folder that a calibration writes: made where there is none, and one process's alone while it is written."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sim.specs.fields import InputError
from sim.specs.files import none_left_empty
from sim.specs.locks import lock_file, unlocked

LOCK = "calibrate.lock"


def made(folder: Path, option: str = "--out") -> None:
    """Make a folder where there is none; raises InputError of `option` where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(option, str(folder), f"a folder that exists or can be made ({error.strerror})") from None


@contextmanager
def alone(folder: Path, option: str = "--out") -> Iterator[None]:
    """Make a folder and keep other calibrations out of it; new ones in which nothing is written go again.

    Raises:
        InputError: of `option`: another calibration writes the folder, or it cannot be written.
    """
    with none_left_empty(folder):
        made(folder, option)
        lock = lock_file(folder / LOCK, option, folder)
        try:
            yield
        finally:
            unlocked(lock)
