"""Places to write to are refused before any work is done."""

import os

import pytest

from sim.specs import InputError
from sim.specs.files import checked_folder, checked_target
from sim.specs.locks import lock_file
from sim.sweep.writer import locked


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A folder that may be read only, also to who may write everywhere."""
    folder = tmp_path / "kept"
    folder.mkdir()
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: real(path, mode) and not (mode & os.W_OK and path == folder))
    return folder


def test_a_file_in_a_folder_that_may_not_be_written(kept):
    with pytest.raises(InputError, match=r"--out: got .*; allowed: a place that can be written"):
        checked_target("--out", kept / "a.json")


def test_a_link_counts_where_it_leads_to(kept, tmp_path):
    (tmp_path / "link.json").symlink_to(kept / "a.json")
    with pytest.raises(InputError, match="a place that can be written"):
        checked_target("--out", tmp_path / "link.json")
    checked_target("--out", tmp_path / "a.json")


def test_a_folder_below_one_that_may_not_be_written(kept, tmp_path):
    with pytest.raises(InputError, match="a folder that exists or can be made"):
        checked_folder("--out", kept / "a" / "b")
    checked_folder("--out", tmp_path / "a" / "b")
    checked_folder("--out", None)


def test_a_store_whose_lock_cannot_be_made(tmp_path):
    (tmp_path / "runs.db.lock").mkdir()
    with pytest.raises(InputError, match=r"store: got .*; allowed: a place that can be written"):
        locked(tmp_path / "runs.db")


def test_a_lock_that_cannot_be_written_is_not_left_behind(tmp_path):
    (tmp_path / "lock").symlink_to("/dev/full")
    with pytest.raises(OSError):
        lock_file(tmp_path / "lock", "--out", tmp_path)
    assert not list(tmp_path.iterdir())
