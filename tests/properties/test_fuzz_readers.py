"""Damaged files of every kind but jobs (`test_fuzz`): each loads or is refused with one `InputError`, and soon."""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from sim.specs import InputError
from tests.full import FULL
from tests.pace import slower
from tests.properties.mutations import DEEP, damaged, damaged_bytes
from tests.properties.readers import BINARY, READERS

FILES = 5_000 if FULL else 25
USUAL = 10_000
"""Characters of a file; of longer ones so much fewer are damaged."""
WORD = re.compile(r"[\w.+-]+")
LONG = 2**17 + 1
"""More than a cell of Python's reader of CSV may hold."""
MOST_S = 1.0
TRIES = 3


def fixed(text: str) -> Iterator[bytes]:
    """Yield a file that is nothing but deep, and ones with a long or deep word in the place of another."""
    yield b"[" * 30_000
    words = [match.span() for match in WORD.finditer(text)]
    for begin, end in dict.fromkeys((words[len(words) // 2], words[-1])):
        for damage in ("x" * LONG, "9" * LONG, "[" * DEEP, '"' + "[" * DEEP + '"'):
            yield (text[:begin] + damage + text[end:]).encode()


@pytest.mark.parametrize("kind", READERS)
def test_damaged_files_of_every_reader(tmp_path, kind):
    name, made, read = READERS[kind]
    text, random, file = made(), Random(kind), tmp_path / name
    file.write_text(text, "utf-8")
    read(file)
    every = (*fixed(text), *(damaged(random, text) for _ in range(max(10, FILES * USUAL // max(USUAL, len(text))))))
    for number, raw in enumerate(every):
        _refused_or_read(read, file, raw, number)


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
    tries = (_seconds(read, file, where) for _ in range(TRIES))
    assert any(spent < MOST_S or spent < MOST_S * slower() for spent in tries), where


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
