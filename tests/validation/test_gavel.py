"""The published evaluation done again: what is stored, how it is read, and that it goes on where the file ends."""

import json

import pytest

from sim.cluster import read_throughputs
from sim.specs.fields import InputError
from sim.validation import gavel_study
from sim.validation.gavel_results import read_study
from tests.oracle import ROOT, reference

STORED = ROOT / "notebooks" / "data" / "cluster.json"
KNOWN = ROOT / "notebooks" / "data" / "gavel-throughputs.yaml"


def test_what_is_stored_stands_beside_what_was_published():
    held = read_study(STORED)
    for name in ("max_min_fairness", "max_min_fairness_perf"):
        ours, theirs = held.loads[name], held.published_loads[name]
        assert ours.keys() == theirs.keys() and list(ours) == sorted(ours)
        assert all(abs(ours[rate] / theirs[rate] - 1) < 0.07 for rate in ours)
    assert {"100 jobs", "300 jobs", "published"} == set(held.makespans)
    assert len(held.parity()) == len(held.default()) == 119
    first, *speeds = held.lines()
    assert first.startswith("111 of 119 published runs") and len(speeds) == 2
    assert {row["jobs"] for row in held.rows("sizes")} == {5_000, 50_000}


def test_published_figures_are_those_of_the_reference():
    assert read_study(STORED).published == gavel_study.published(reference("cluster"))


def test_another_file_is_refused(tmp_path):
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(InputError, match=r"a file that sim\.validation\.gavel_study has written"):
        read_study(tmp_path / "x.json")


def test_a_makespan_is_longer_where_types_are_taken_for_alike(monkeypatch):
    monkeypatch.setattr(gavel_study, "STATIC_DEVICES", 8)
    assert gavel_study.makespan(read_throughputs(KNOWN), 12, 0.5, 0)["ratio"] > 1


def test_a_load_is_the_published_window(monkeypatch):
    monkeypatch.setattr(gavel_study, "WINDOW", (3, 6))
    found = gavel_study.load(read_throughputs(KNOWN), "fifo_perf", 1.0)
    assert found["jct_h"] > 0 and found["rate"] == 1.0


def test_it_goes_on_where_the_file_ends(tmp_path, monkeypatch):
    ran = []
    every = [(f"load: {n}", lambda n=n: ran.append(n) or {"rate": float(n)}) for n in range(4)]
    monkeypatch.setattr(gavel_study, "cases", lambda _: iter(every))
    monkeypatch.setattr(gavel_study, "published", lambda _: {})
    out = tmp_path / "out.json"
    gavel_study.main(tmp_path, out, only="load: 1")
    gavel_study.main(tmp_path, out, only="")
    assert ran == [1, 0, 2, 3]
    assert len(json.loads(out.read_text())["cases"]) == 4
