"""Storage is measured in the folder given, bounded, and leaves nothing behind."""

import itertools
import os

import pytest

from calibration import storage
from calibration.storage import BLOCK_BYTES, FSYNCS, SMALL_FILES, Storage, measure_storage
from sim.specs.fields import InputError


def test_measures_and_leaves_nothing(tmp_path):
    found = measure_storage(tmp_path, file_bytes=2**22, repeats=2)
    assert found.file_bytes == 2**22
    assert found.read_bytes_per_s > 1e6
    assert found.write_bytes_per_s > 1e5
    assert 0 < found.small_read_s < 1
    assert 0 < found.fsync_s < 10
    assert list(tmp_path.iterdir()) == []


def test_bandwidth_is_bytes_over_time(tmp_path):
    ticks = itertools.count()
    found = measure_storage(tmp_path, file_bytes=2**22, repeats=3, clock=lambda: next(ticks) / 4)
    each = 0.25  # a tick between the two calls of the clock
    assert found == Storage(
        read_bytes_per_s=2**22 / each,
        write_bytes_per_s=2**22 / each,
        fsync_s=each,
        small_read_s=each,
        small_bytes=4096,
        file_bytes=2**22,
        repeats=3,
        cached=not hasattr(os, "posix_fadvise"),
    )
    assert next(ticks) == 2 * (3 + 3 + FSYNCS + SMALL_FILES)


@pytest.mark.slow
def test_pages_that_cannot_be_given_up_are_said(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "posix_fadvise")
    assert measure_storage(tmp_path, file_bytes=2**22, repeats=1).cached


def test_written_pages_are_given_up_before_reading(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *a: asked.append(a[1:]))
    measure_storage(tmp_path, file_bytes=2**22, repeats=2)
    assert asked == [(0, 0, os.POSIX_FADV_DONTNEED)] * (2 + SMALL_FILES)


def test_the_file_is_no_larger_than_asked_for(tmp_path, monkeypatch):
    sizes = []
    read = storage._read
    monkeypatch.setattr(storage, "_read", lambda file: sizes.append(file.stat().st_size) or read(file))
    measure_storage(tmp_path, file_bytes=5 * BLOCK_BYTES + 17, repeats=1)
    assert sizes == [5 * BLOCK_BYTES]


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("file_bytes", {"file_bytes": 2**10}),
        ("file_bytes", {"file_bytes": 2**40}),
        ("repeats", {"repeats": 0}),
        ("repeats", {"repeats": 2.5}),
    ],
)
def test_sizes_out_of_range_are_refused(tmp_path, field, arguments):
    with pytest.raises(InputError, match=field):
        measure_storage(tmp_path, **arguments)


def test_no_folder_and_no_room_are_refused(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="folder"):
        measure_storage(tmp_path / "none")
    room = os.statvfs(tmp_path)
    full = os.statvfs_result((room.f_bsize, room.f_frsize, room.f_blocks, 0, 0, *list(room)[5:10]))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    with pytest.raises(InputError, match="half"):
        measure_storage(tmp_path)
    assert list(tmp_path.iterdir()) == []
