"""`trainsim lab`: local and quiet, and in a home that cannot be written as in any other."""

import os
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from sim.cli.lab import lab_arguments, moved_folders
from tests.browser.lab import free_port, wait_for
from tests.oracle import ROOT

FOLDERS = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")


@pytest.fixture
def home(tmp_path, monkeypatch):
    for name in FOLDERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path / "home"


def test_lab_is_local_and_quiet():
    arguments = " ".join(lab_arguments(ROOT / "notebooks", 8888, browser=False))
    assert "--ServerApp.ip=127.0.0.1" in arguments
    assert "NeverCheckForUpdate" in arguments
    assert "token" not in arguments  # the server's default: a random one that it prints


def test_a_home_that_can_be_written_is_used(home):
    home.mkdir()
    assert moved_folders() == {}


def test_folders_that_cannot_be_made_become_temporary_ones(home):
    home.write_text("a file: nobody, not even root, makes a folder in it")
    moved = moved_folders()
    assert set(moved) == set(FOLDERS)
    assert len({Path(folder).parent for folder in moved.values()}) == 1
    assert Path(moved["IPYTHONDIR"]).parent.stat().st_mode & 0o777 == 0o700


def test_folders_that_the_user_has_set_are_left(home, monkeypatch, tmp_path):
    home.write_text("")
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "mine"))
    assert set(moved_folders()) == {"JUPYTER_CONFIG_DIR", "IPYTHONDIR"}  # the runtime's is below the data's


@pytest.mark.slow
def test_lab_serves_a_notebook_from_a_home_that_cannot_be_written(home, tmp_path):
    home.write_text("")
    port, log = free_port(), tmp_path / "lab.log"
    command = [sys.executable, "-m", "sim", "lab", "--no-browser", "--port", str(port)]
    env = os.environ | {"PYTHONPATH": str(ROOT), "JUPYTER_TOKEN": "known"}
    with log.open("w") as said, subprocess.Popen(command, cwd=ROOT, env=env, stdout=said, stderr=said) as server:
        try:
            wait_for(f"http://127.0.0.1:{port}/api?token=known", server, log)
            with urlopen(f"http://127.0.0.1:{port}/api/contents/00-tour.ipynb?token=known", timeout=60) as answer:
                assert answer.status == 200
        finally:
            server.kill()
    assert log.read_text().startswith("the home cannot be written: settings and open tabs of JupyterLab are kept in ")
