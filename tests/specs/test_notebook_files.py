"""Files of the notebooks: the nearest folder first, then the package's own, from anywhere."""

import pytest

import sim
from sim.specs import InputError
from tests.oracle import ROOT


def test_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sim.notebook_file("data/accuracy.csv") == ROOT / "notebooks/data/accuracy.csv"
    own = tmp_path / "notebooks/data/accuracy.csv"
    own.parent.mkdir(parents=True)
    own.write_text("mine")
    monkeypatch.chdir(own.parent)
    assert sim.notebook_file("data/accuracy.csv") == own


def test_what_is_not_there_is_said():
    with pytest.raises(InputError, match="below notebooks/"):
        sim.notebook_file("data/nothing.csv")
