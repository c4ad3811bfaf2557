"""The published evaluation done again: what is stored, how it is read, and that it goes on where the file ends."""

import csv
import json

import pytest

from sim.cluster import read_throughputs
from sim.specs.fields import InputError
from sim.validation import gavel_study
from sim.validation.gavel import CELLS, published_runs
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
    assert {row.jobs for row in held.sizes} == {5_000, 50_000}


def test_published_figures_are_those_of_the_reference():
    assert read_study(STORED).published == gavel_study.published(reference("cluster"))


def test_another_file_is_refused(tmp_path):
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(InputError, match=r"a file that sim\.validation\.gavel_study has written"):
        read_study(tmp_path / "x.json")
    with pytest.raises(InputError, match="a file that was written here"):
        gavel_study.main(tmp_path, tmp_path / "x.json")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"cases": {"load: a": {"policy": "fifo"}}}, r"load\.0\.rate: missing"),
        ({"cases": {"other: a": {}}}, "names that begin with one of load, makespan, runs, sizes"),
        ({"published": {}}, "published: got .*avg_JCT_hours and makespan_agnostic_over_aware"),
        ({"published": {"avg_JCT_hours": {"fifo": {"x": 1.0}}}}, r"published: got \['x'\]"),
    ],
)
def test_another_study_is_refused(tmp_path, changed, told):
    (tmp_path / "x.json").write_text(json.dumps(json.loads(STORED.read_text()) | changed))
    with pytest.raises(InputError, match=told):
        read_study(tmp_path / "x.json")


def test_a_study_without_runs_says_so(tmp_path):
    (tmp_path / "x.json").write_text(json.dumps(json.loads(STORED.read_text()) | {"cases": {}}))
    assert list(read_study(tmp_path / "x.json").lines()) == [
        "0 of 0 published runs end within 1 % of the makespan and 2 % of the completion time, 0 within 0.01 %."
    ]


@pytest.mark.parametrize(
    ("column", "cell"),
    [("wall_s", "fast"), ("wall_s", "nan"),
     ("wall_s", "0"), ("gen", "[" * 9_000), ("gen", "{"), ("gen", '{"lam": "x"}'),
     ("window", "[1]"), ("cluster_v100_p100_k80", "2:2"), ("seed", "x")],
)  # fmt: skip
def test_a_recorded_run_that_is_none_is_refused(tmp_path, column, cell):
    run = {"tag": "a", "policy": "fifo", "seed": 0, "solver": "ECOS", "cluster_v100_p100_k80": "2:2:2", "gen": "",
           "throughputs": "t.json", "trace": "a.trace", "window": "", "makespan_s": 9, "avg_jct_s": 5, "wall_s": 0.1,
           "error": ""}  # fmt: skip
    file = tmp_path / "runs_summary.csv"
    for held in (run, run | {column: cell}):
        with file.open("w", newline="") as out:
            writer = csv.DictWriter(out, run)
            writer.writeheader()
            writer.writerow(held)
        if held == run:
            (found,) = published_runs(tmp_path)
            assert (found.name, found.devices) == ("a, fifo, seed 0", {"v100": 2, "p100": 2, "k80": 2})
    with pytest.raises(InputError, match=rf"runs_summary\.csv:2\.{column}: "):
        list(published_runs(tmp_path))


def test_jobs_that_are_drawn_need_a_rate(tmp_path):
    (tmp_path / "runs_summary.csv").write_text(f"{','.join((*CELLS, 'error'))}\n")
    assert not list(published_runs(tmp_path))
    text = "a,fifo,ECOS,t.json,,9,5,0.1,0,2:2:2,,,\n"
    with (tmp_path / "runs_summary.csv").open("a") as file:
        file.write(text)
    with pytest.raises(InputError, match="lam, the mean seconds between jobs"):
        list(published_runs(tmp_path))


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
