"""Damaged files of every kind but jobs (`test_fuzz`): each loads or is refused with one `InputError`, and soon."""

import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from sim.specs import InputError
from tests.full import FULL
from tests.properties.mutations import damaged, damaged_bytes
from tests.properties.readers import BINARY, READERS

FILES = 5_000 if FULL else 40
USUAL = 10_000
"""Characters of a file; of longer ones so much fewer are damaged."""
MOST_S = 1.0
TRIES = 3


@pytest.mark.parametrize("kind", READERS)
def test_damaged_files_of_every_reader(tmp_path, kind):
    name, made, read = READERS[kind]
    text, random, file = made(), Random(kind), tmp_path / name
    file.write_text(text, "utf-8")
    read(file)
    for number in range(max(10, FILES * USUAL // max(USUAL, len(text)))):
        _refused_or_read(read, file, damaged(random, text) if number else b"[" * 30_000, number)


@pytest.mark.parametrize("kind", BINARY)
def test_damaged_files_that_are_no_text(tmp_path, kind):
    name, made, read = BINARY[kind]
    random, file = Random(kind), tmp_path / name
    made(file)
    read(file)
    whole = file.read_bytes()
    for number in range(FILES // 2):
        _refused_or_read(read, file, damaged_bytes(random, whole), number)


def _refused_or_read(read: Callable[[Path], object], file: Path, raw: bytes, number: int) -> None:
    file.write_bytes(raw)
    where = f"file {number}: {raw[:300]!r}"
    assert any(_seconds(read, file, where) < MOST_S for _ in range(TRIES)), where


def _seconds(read: Callable[[Path], object], file: Path, where: str) -> float:
    """Return the CPU seconds of reading a file, which gives something or one InputError."""
    begin = time.process_time()
    try:
        read(file)
    except InputError as error:
        assert "\n" not in str(error), where
        assert len(str(error)) < 2_000, where
    except Exception as other:  # any other class is what this test looks for
        pytest.fail(f"{where}: {type(other).__name__}: {other}")
    return time.process_time() - begin
