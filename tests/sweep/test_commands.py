"""`trainsim sweep` and `trainsim report` as a user calls them."""

import csv
import json
import re
from html.parser import HTMLParser

import jsonschema
import numpy as np
import pytest
from plotly.offline import get_plotlyjs
from pyarrow import parquet

import sim
from sim.report.figures import swept_axis, swept_points
from sim.report.swept import swept
from sim.report.swept_files import save_csv, save_parquet
from sim.specs.files import load_mapping
from sim.sweep.grid import Grid
from sim.sweep.run import sweep
from sim.sweep.runners import RUNNERS, Here
from sim.sweep.store import Store
from tests.oracle import ROOT
from tests.sweep.conftest import AXES, BASE, SMALL

ENDS = ("", ".lock", "-wal", "-shm")
HOSTILE = '=cmd|"</script><img src=x onerror=alert(1)>'


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch):
    monkeypatch.setitem(RUNNERS, "pool", Here)


@pytest.fixture
def grid(tmp_path):
    (tmp_path / "grid.json").write_text(json.dumps(BASE | {"axes": AXES}))
    return tmp_path / "grid.json"


@pytest.fixture
def store(tmp_path):
    """A store with hostile text in it, of rows that are predicted, impossible and left out."""
    model = SMALL | {"name": HOSTILE}
    axes = {"model": [model, "llama3-8b"], "plan.tp": [1, 3, 4], "plan.pp": [1, 2], "model.seq": [512, 1024]}
    axes |= {"cluster.links.latency_s": {"min": 1e-6, "max": 1e-4, "count": 60, "scale": "log"}}
    filters = [{"field": "model.seq", "divides": 512}] * 0 + [{"field": "plan.pp", "at_most": 1}]
    made = Grid(cluster=BASE["cluster"], plan=BASE["plan"], axes=axes, filters=filters)
    sweep(made, tmp_path / "runs.db", "here")
    return tmp_path / "runs.db"


def test_a_sweep_and_its_json(trainsim, grid, tmp_path):
    code, out, _ = trainsim("sweep", grid, "--store", tmp_path / "a.db", "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["total"], found["done"], found["left"]) == (540, 540, 0)
    assert found["ok"] + found["impossible"] == 540 and found["failed"] == found["filtered"] == 0
    assert found["seconds"] > 0 and found["rate_per_s"] > 0
    assert set(found["best"]["configuration"]) == set(AXES)
    code, out, _ = trainsim("sweep", grid, "--store", tmp_path / "a.db", "--resume")
    assert code == 0
    assert re.match(r"540 of 540 configurations done \(\d+ ok, \d+ impossible\), 0 left; ", out)
    assert "best: " in out and "with plan.tp" in out


def test_the_best_and_the_reasons_are_said(trainsim, grid, store, tmp_path):
    code, out, _ = trainsim("report", store)
    found = swept(Store(store))
    (_, first), times = max(found.reasons.items(), key=lambda item: (item[1], item[0]))
    lines = out.splitlines()
    assert code == 0 and lines[1].startswith("best: ") and "with model " in lines[1]
    assert lines[-1] == f"impossible: {times} x {first}"
    told = [line for line in lines if "do not surely fit" in line]
    assert told == [f"{found.misfits} of the predicted configurations do not surely fit"] and found.misfits
    _, swept_out, _ = trainsim("sweep", grid, "--store", tmp_path / "a.db")
    _, again, _ = trainsim("report", tmp_path / "a.db")
    assert swept_out.splitlines()[1:-1] == again.splitlines()[1:]  # the counts' line says how fast, too


def test_a_sweep_of_what_does_not_fit_says_so(trainsim, tmp_path):
    large = {"model": "llama3-405b", "cluster": {"device": "l4"}, "plan": {"global_batch": 8}}
    (tmp_path / "grid.json").write_text(json.dumps(large | {"axes": {"plan.recompute": ["none", "full"]}}))
    code, out, _ = trainsim("sweep", tmp_path / "grid.json", "--store", tmp_path / "a.db")
    assert code == 0 and "best: none, as no predicted configuration fits" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--runner", "threads"], "runner: got 'threads'; allowed: one of pool, ray, here"),
        (["--workers", "0"], "workers: got 0"),
        (["--address", "10.0.0.1:6379"], "address: got '10.0.0.1:6379'"),
    ],
)
def test_bad_options_are_refused_and_leave_no_rows(trainsim, grid, tmp_path, arguments, message):
    code, out, err = trainsim("sweep", grid, "--store", tmp_path / "a.db", *arguments)
    assert (code, out) == (2, "")
    assert message in err and err.count("\n") == 1 and "allowed: " in err


def test_bad_files_are_refused(trainsim, grid, tmp_path):
    (tmp_path / "bad.yaml").write_text("axes: {plan.tp: [1, 2], plan.tp: [4]}")
    for arguments in (
        ("sweep", tmp_path / "none.yaml", "--store", tmp_path / "a.db"),
        ("sweep", tmp_path / "bad.yaml", "--store", tmp_path / "a.db"),
        ("sweep", grid, "--store", tmp_path),
        ("sweep", grid, "--store", tmp_path / "no" / "a.db"),
        ("report", tmp_path / "none.db"),
        ("report", grid, "--html", tmp_path / "a.html"),
    ):
        code, out, err = trainsim(*arguments)
        assert (code, out) == (2, ""), arguments
        assert err.startswith("error: ") and "allowed: " in err
    assert not list(tmp_path.glob("a.*"))


def test_targets_that_cannot_be_written(trainsim, store, tmp_path):
    for option in ("--html", "--parquet", "--csv"):
        for target in (tmp_path, tmp_path / "no" / "a.x", store):
            code, _, err = trainsim("report", store, option, target)
            assert code == 2 and err.startswith(f"error: {option}: ")
    for same in (tmp_path / "a", tmp_path / "sub" / ".." / "a"):
        (tmp_path / "sub").mkdir(exist_ok=True)
        code, _, err = trainsim("report", store, "--csv", tmp_path / "a", "--parquet", same)
        assert code == 2 and "another file than that of" in err
    assert Store(store).counts.left == 0


def test_tables_hold_every_row(trainsim, store, tmp_path):
    code, out, _ = trainsim("report", store, "--parquet", tmp_path / "a.parquet", "--csv", tmp_path / "a.csv")
    assert code == 0 and "1\u2009440 of 1\u2009440" in out
    table = parquet.read_table(tmp_path / "a.parquet")
    with (tmp_path / "a.csv").open(newline="") as file:
        listed = list(csv.DictReader(file))
    assert table.num_rows == len(listed) == 1440
    assert table.column("number").to_pylist() == [int(row["number"]) for row in listed] == list(range(1440))
    assert set(table.column("outcome").to_pylist()) == {"ok", "impossible", "filtered"}
    for row, line in zip(table.to_pylist(), listed, strict=True):
        assert line["outcome"] == row["outcome"]
        assert (row["step_time_s"] is None) == (line["step_time_s"] == "") == (row["outcome"] != "ok")
        assert row["outcome"] != "ok" or float(line["step_time_s"]) == row["step_time_s"]
        assert (row["reason"] is not None) == (row["outcome"] == "impossible")
    assert {f.name for f in tmp_path.iterdir()} <= {"a.parquet", "a.csv", *(f"runs.db{end}" for end in ENDS)}


def test_tables_tell_how_many_rows_are_written(store, tmp_path):
    for save in (save_parquet, save_csv):
        told = []
        with Store(store) as held:
            save(held, tmp_path / "a", told.append)
            assert sum(told) == held.counts.done


def test_tables_in_a_missing_folder_are_refused(store, tmp_path):
    for save in (save_parquet, save_csv):
        with Store(store) as held, pytest.raises(sim.InputError, match=r"^path: got .*; allowed: a file in"):
            save(held, tmp_path / "missing" / "a")


def test_csv_text_is_no_formula(trainsim, tmp_path):
    sample = {"method": "random", "count": 30, "seed": 0}
    made = Grid(
        **(BASE | {"model": None}), axes={"model": ["gpt3-175b", "llama3-8b"], "plan.tp": [3, 8]}, sample=sample
    )
    sweep(made, tmp_path / "runs.db", "here")
    with Store(tmp_path / "runs.db") as store:
        found = store.outcome(0)
    from dataclasses import replace  # noqa: PLC0415

    evil = replace(found, reasons=tuple(f"{sign}1+1" for sign in "=+-@")[: len(found.reasons)] or ("=1",))
    import sqlite3  # noqa: PLC0415

    db = sqlite3.connect(tmp_path / "runs.db")
    db.execute("UPDATE blocks SET payload = ?", (evil.packed(),))
    db.commit()
    db.close()
    assert trainsim("report", tmp_path / "runs.db", "--csv", tmp_path / "a.csv", "--parquet", tmp_path / "a.pq")[0] == 0
    with (tmp_path / "a.csv").open(newline="") as file:
        reasons = {row["reason"] for row in csv.DictReader(file)} - {""}
    assert reasons == {"'=1+1", "'+1+1"}
    assert set(parquet.read_table(tmp_path / "a.pq").column("reason").to_pylist()) - {None} == {"=1+1", "+1+1"}


class Tags(HTMLParser):
    """Collects the tags and attributes of a page."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


@pytest.mark.slow
def test_the_page_is_whole_and_hostile_names_are_text(trainsim, store, tmp_path):
    code, _, _ = trainsim("report", store, "--html", tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text()
    own = text.replace(get_plotlyjs(), "")
    tags = Tags()
    tags.feed(own)
    assert code == 0 and text.count(get_plotlyjs()) == 1
    assert not [a for _, a in tags.found if {"src", "href", "onerror"} & set(a)]
    assert not [tag for tag, _ in tags.found if tag in ("link", "iframe", "img", "object", "base")]
    assert sum(tag == "script" and "type" not in a for tag, a in tags.found) == 2
    assert "default-src 'none'" in own and "Best configurations" in own
    assert "tp does not divide the attention heads" in own and "240" in own
    assert own.count('class="plot"') == 1 + 5  # time against memory, and the axes of more than one value that is kept


def test_figures_show_what_is_in_the_store(store):
    with Store(store) as held:
        found = swept(held, points=100)
        table = held.sample(10**6)
    assert 50 < len(found.points["number"]) <= 100
    fits = table["fits"] == 2
    time, peak = table["step_time_s"][fits], table["peak_memory_bytes"][fits]
    for t, p in zip(found.front["step_time_s"], found.front["peak_memory_bytes"], strict=True):
        assert not ((time < t) & (peak <= p)).any()
    assert found.top[0].numbers["step_time_s"] == time.min() == found.front["step_time_s"].min()
    tp = next(a for a in found.along if a.path == "plan.tp")
    assert tp.labels == ("1", "3", "4")
    for label, best in zip(tp.labels, tp.best, strict=True):
        mine = table["step_time_s"][fits & (table["plan.tp"] == int(label))]
        assert best == pytest.approx(mine.min()) if len(mine) else np.isnan(best)
    latency = next(a for a in found.along if a.path == "cluster.links.latency_s")
    assert len(latency.labels) == 40
    for theme in ("light", "dark"):
        points = swept_points(found, theme)
        assert sum(len(t.x) for t in points.data if t.mode == "markers") == len(found.points["number"])
        assert len(swept_axis(found, tp, theme).data[0].x) == 3


def test_a_report_of_a_sweep_that_has_only_begun(trainsim, small, tmp_path, monkeypatch):
    from sim.sweep.writer import Writer  # noqa: PLC0415

    Writer(tmp_path / "runs.db", small).close()
    targets = ("--html", tmp_path / "a.html", "--parquet", tmp_path / "a.parquet", "--csv", tmp_path / "a.csv")
    code, out, _ = trainsim("report", tmp_path / "runs.db", *targets, "--json")
    assert code == 0 and json.loads(out)["left"] == 540
    assert "No configuration fits" in (tmp_path / "a.html").read_text()
    assert parquet.read_table(tmp_path / "a.parquet").num_rows == 0
    assert (tmp_path / "a.csv").read_text().startswith('"number","plan.tp"')


def test_check_and_schema_know_grids(trainsim, grid, tmp_path):
    code, out, _ = trainsim("check", grid, "--json")
    assert (code, json.loads(out)["kind"], json.loads(out)["problems"]) == (0, "grid", [])
    (tmp_path / "bad.json").write_text(json.dumps(BASE | {"axes": {"plan.tp": [0], "plan.ppp": [1]}}))
    code, out, _ = trainsim("check", tmp_path / "bad.json", "--json")
    assert code == 2
    assert [p["path"] for p in json.loads(out)["problems"]] == ["axes.plan.tp.0", "axes.plan.ppp.0"]
    code, out, _ = trainsim("schema", "grid")
    schema = jsonschema.Draft202012Validator(json.loads(out))
    assert code == 0
    for path in (ROOT / "notebooks" / "jobs" / "sweeps").glob("*.yaml"):
        schema.validate(load_mapping(path))
    good = BASE | {"axes": {"plan.tp": [1, 2]}}
    assert schema.is_valid(good)
    for wrong in (
        {"axes": {}}, {"axes": {"plan.tp": 3}}, {"axes": {"plan.tp": []}}, {"axes": {"training.steps": [1]}},
        {"axes": {"plan.tp": {"min": 1}}}, {"filters": [{"at_most": 3}]}, {"sample": {"method": "sobol", "count": 1}},
        {"engine": "guess"}, {"cluster": 3}, {"more": 1},
    ):  # fmt: skip
        assert not schema.is_valid(good | wrong), wrong


def test_the_facade(tmp_path):
    """The function stays one, whatever was imported before."""
    assert (sim.Grid, sim.Store) == (Grid, Store)
    grid = sim.Grid(**BASE, axes={"plan.tp": [1, 2]}, engine="path")
    assert sim.sweep(grid, tmp_path / "runs.db", runner="here").counts.ok == 2
    assert sim.sweep.sweep is sweep
    with pytest.raises(sim.InputError, match="store: missing"):
        sim.sweep(grid)
    with pytest.raises(AttributeError, match="nothing"):
        _ = sim.sweep.nothing


@pytest.mark.slow
def test_much_is_sampled_from_some_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("sim.sweep.writer.BLOCK_ROWS", {"analytic": 2})
    made = Grid(**BASE, axes={"cluster.links.latency_s": {"min": 1e-6, "max": 1e-5, "count": 300}})
    sweep(made, tmp_path / "runs.db", "here")
    with Store(tmp_path / "runs.db") as store:
        numbers = store.sample()["number"]
    assert len(numbers) == 128 and numbers[0] == 0 and numbers[-1] == 299
