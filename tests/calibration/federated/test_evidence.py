"""Grids of short runs, what is found in them, and the table that is shipped."""

import json
from dataclasses import asdict, fields, replace

import pytest

from calibration.federated import grid
from calibration.federated.evidence import iid_losses, means, ordered_share, provenance, wanted
from calibration.federated.grid import Case, Row, Short, accuracy_grid, cases, key, read_lines, row_of
from calibration.federated.setting import Setting
from sim.decentralized.communication import KNOBS, Communication
from sim.specs.csv_rows import read_cells
from sim.specs.fields import InputError
from tests.oracle import ROOT

TABLE = ROOT / "notebooks" / "data" / "decentralized-grid.csv"
TINY = Setting(partitions=2, steps=4, travel_every=2, batch=4)


def row(theta: float, loss: float, **changed: object) -> Short:
    what = {"algorithm": "fedavg", "theta": theta, "skew": 1.0, "norm": "group", "data": "digits", "seed": 0}
    sent = {"steps": 10, "sent_bytes": 8.0, "sent_fraction": 1.0}
    return Short(**what | sent | {"accuracy": 0.9, "accuracy_loss": loss, "partition_accuracy": 0.8} | changed)


def test_a_grid_goes_on_where_it_stopped(tmp_path, monkeypatch):
    store, made, shown = tmp_path / "rows.jsonl", [], []
    monkeypatch.setattr(grid, "row_of", lambda case: made.append(case) or row_of(case))
    asked = cases([TINY, replace(TINY, seed=1)], ["fedavg"], every=3)
    assert [case.communication.theta for case in asked] == [5.0, 50.0] * 2
    assert accuracy_grid(asked, store, 0.0) == []
    some = accuracy_grid(asked[:2], store)
    every = accuracy_grid(asked, store, told=lambda *at: shown.append(at))
    assert [key(one) for one in every] == [case.key for case in asked]
    assert every[:2] == read_lines(store)[:2]
    assert [one.theta for one in some] == [5.0, 50.0]
    assert len(made) == 4
    assert [at[:2] for at in shown] == [(2, 4), (3, 4)]
    assert not [path for path in tmp_path.iterdir() if path != store]


def test_a_row_is_what_the_run_comes_to():
    found = row_of(Case(replace(TINY, skew=1.0, norm="batch"), Communication(algorithm="bsp")))
    assert (found.algorithm, found.skew, found.norm, found.steps) == ("bsp", 1.0, "batch", 4)
    assert found.sent_fraction == 1
    assert found.sent_bytes % 4 == 0
    assert 0 <= found.partition_accuracy <= 1


@pytest.mark.parametrize("line", ["no", "[1]", '{"algorithm": "fedavg"}'])
def test_a_wrong_line_is_told(tmp_path, line):
    (tmp_path / "rows.jsonl").write_text(json.dumps(asdict(row(5.0, 0.1))) + "\n" + line + "\n")
    with pytest.raises(InputError, match=r"rows\.jsonl:2"):
        read_lines(tmp_path / "rows.jsonl")


def test_pairs_are_ordered_within_a_skew_by_the_mean_over_seeds():
    rows = [row(5.0, 0.1), row(5.0, 0.3, seed=1), row(10.0, 0.15), row(10.0, 0.35, seed=1), row(20.0, 0.22)]
    assert ordered_share(rows) == {"fedavg": pytest.approx(2 / 3, rel=1e-5)}
    assert ordered_share([*rows, row(5.0, 0.9, skew=0.5), row(1.0, 0.0, algorithm="bsp")]) == ordered_share(rows)
    assert ordered_share([replace(one, skew=0.0) for one in rows]) == {}


def test_what_a_table_comes_to():
    rows = [row(5.0, 0.1), row(10.0, 0.3), row(5.0, 0.02, skew=0.0)]
    assert iid_losses(rows) == {"digits": {"mean": 0.02, "largest": 0.02}}
    assert [(one["skew"], one["accuracy_loss"], one["runs"]) for one in means(rows)] == [(1.0, 0.2, 2), (0.0, 0.02, 1)]


def test_the_shipped_table_is_whole():
    cells = [cells for _, cells in read_cells(TABLE, Row, "the table")]
    assert TABLE.stat().st_size < 100_000
    assert len(cells) == len(wanted())
    told = json.loads(TABLE.with_suffix(".json").read_text())
    assert told["rows"] == len(cells)
    assert {"date", "machine", "software", "setting", "ordered_pairs"} <= set(told)
    assert set(provenance([row(5.0, 0.1)])) == set(told)
    assert {line[0] for line in cells} == set(KNOBS)


@pytest.mark.slow
def test_a_shipped_row_comes_out_again():
    names = [field.name for field in fields(Row)]
    shipped = [dict(zip(names, cells, strict=True)) for _, cells in read_cells(TABLE, Row, "the table")]
    case = next(case for case in wanted() if case.key[:3] == ("fedavg", 20.0, 1.0))
    held = next(one for one in shipped if (one["algorithm"], one["theta"], one["skew"]) == ("fedavg", "20.0", "1.0"))
    found = row_of(case)
    assert float(held["sent_bytes"]) == pytest.approx(found.sent_bytes, rel=1e-5)
    # Another processor rounds otherwise, and training goes its own way from there.
    assert found.accuracy == pytest.approx(float(held["accuracy"]), abs=0.1)
    assert found.accuracy_loss == pytest.approx(float(held["accuracy_loss"]), abs=0.15)
