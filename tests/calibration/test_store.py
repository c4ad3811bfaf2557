"""Samples on disk: one schema, whole files, and what is wrong with a file said in one error."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calibration.store import SAMPLES, SCHEMA, SESSION, Skip, Store, commit, load_session, parquet, read_samples
from sim.specs.fields import InputError
from tests.calibration.fakes import session


def row(name="a", **given):
    texts = {f.name: "x" for f in SCHEMA if f.type == pa.string()}
    numbers = {f.name: 1 for f in SCHEMA if f.type != pa.string() and f.name != "flagged"}
    return {**texts, **numbers, "id": name, "flagged": False, "error": None, "power_w": None, **given}


def test_columns_are_those_of_the_contract():
    assert " ".join(SCHEMA.names) == (
        "op direction dtype layout implementation group use id calls t_s t_min_s t_p10_s t_p90_s n launches flop bytes "
        "shape sm_clock_hz memory_clock_hz power_w temperature_c sentinel_ratio flagged error at session commit"
    )


def test_rows_come_back(tmp_path):
    store = Store(tmp_path)
    for name in ("a", "b"):
        store.add(row(name, t_s=0.5))
    store.write()
    assert Store(tmp_path).rows == {name: row(name, t_s=0.5) for name in ("a", "b")}
    assert [p.name for p in tmp_path.iterdir()] == [SAMPLES]


def test_it_is_written_every_three_seconds(tmp_path):
    times = iter([0.0, 2.9, 3.1, 3.1, 4.0])
    store = Store(tmp_path, lambda: next(times))
    store.add(row("a"))
    store.write_if_due()
    assert not (tmp_path / SAMPLES).exists()
    store.write_if_due()
    assert len(read_samples(tmp_path / SAMPLES)) == 1
    store.add(row("b"))
    store.write_if_due()
    assert len(read_samples(tmp_path / SAMPLES)) == 1


def test_a_flagged_sample_is_replaced_by_a_better_one_only(tmp_path):
    store = Store(tmp_path)
    store.add(row("a", flagged=True, t_s=3.0))
    store.add(row("a", flagged=True, t_s=2.0))
    assert (store.rows["a"]["t_s"], store.flagged) == (3.0, 1)
    store.add(row("a", t_s=1.0))
    assert (store.rows["a"]["t_s"], store.flagged) == (1.0, 0)


def test_samples_of_a_case_on_several_hosts_stay(tmp_path):
    held = [row("a", t_s=0.5), row("a", t_s=0.7), row("b")]
    (tmp_path / SAMPLES).write_bytes(parquet(held))
    store = Store(tmp_path)
    assert len(store.rows) == 2
    store.add(row("a", t_s=0.6))
    store.write()
    assert sorted(r["t_s"] for r in read_samples(tmp_path / SAMPLES) if r["id"] == "a") == [0.5, 0.6]


def test_a_broken_write_leaves_the_old_file(tmp_path, monkeypatch):
    store = Store(tmp_path)
    store.add(row("a"))
    store.write()
    store.rows["b"] = {"t_s": "not a number"}
    with pytest.raises(pa.ArrowInvalid):
        store.write()
    assert [held["id"] for held in read_samples(tmp_path / SAMPLES)] == ["a"]
    assert [p.name for p in tmp_path.iterdir()] == [SAMPLES]


@pytest.mark.parametrize("content", [b"", b"PAR1 and nothing else", b"\0" * 1000])
def test_what_is_no_parquet_file_is_one_error(tmp_path, content):
    (tmp_path / SAMPLES).write_bytes(content)
    with pytest.raises(InputError, match="a whole Parquet file of samples"):
        Store(tmp_path)


def test_a_truncated_file_is_one_error(tmp_path):
    store = Store(tmp_path)
    store.add(row())
    store.write()
    whole = (tmp_path / SAMPLES).read_bytes()
    (tmp_path / SAMPLES).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="a whole Parquet file of samples"):
        Store(tmp_path)


def test_text_that_is_none_is_one_error(tmp_path):
    held = pa.table({f.name: pa.array([row()[f.name]], f.type) for f in SCHEMA}, schema=SCHEMA)
    place = SCHEMA.get_field_index("op")
    bad = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff"))
    pq.write_table(held.set_column(place, SCHEMA.field("op"), bad), tmp_path / SAMPLES)
    with pytest.raises(InputError, match="a whole Parquet file"):
        read_samples(tmp_path / SAMPLES)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"t_s": None}, "t_s"), ({"sentinel_ratio": 0.0}, "sentinel_ratio"), ({"flagged": None}, "flagged"),
        ({"sentinel_ratio": float("nan")}, "sentinel_ratio"), ({"sentinel_ratio": None, "flagged": True}, "sentinel"),
        ({"use": None}, "use"), ({"sentinel_ratio": None}, "no sentinel_ratio"),
    ],
)  # fmt: skip
def test_a_session_goes_on_with_whole_samples_only(tmp_path, change, told):
    pq.write_table(pa.Table.from_pylist([row(t_s=1.0) | change], schema=SCHEMA), tmp_path / SAMPLES)
    with pytest.raises(InputError, match=told):
        Store(tmp_path)


def test_other_columns_are_one_error(tmp_path):
    pq.write_table(pa.table({"op": ["gemm"]}), tmp_path / SAMPLES)
    with pytest.raises(InputError, match="the columns op, direction, dtype"):
        Store(tmp_path)


def test_too_large_a_file_is_not_read(tmp_path, monkeypatch):
    (tmp_path / SAMPLES).write_bytes(b"1234")
    monkeypatch.setattr("calibration.store.MOST_BYTES", 3)
    with pytest.raises(InputError, match="at most 3 bytes"):
        read_samples(tmp_path / SAMPLES)


def test_a_session_comes_back(tmp_path):
    made = session(skipped=(Skip(id="gemm", reason="out of memory"),), sentinel_s=0.25, measured=3)
    made.save(tmp_path)
    assert load_session(tmp_path) == made
    held = json.loads((tmp_path / SESSION).read_text())
    assert held["fingerprint"]["versions"] == {"python": "3.11.0", "torch": "2.13.0"}
    assert held["units"]["time"] == "s"


def test_sessions_are_told_apart():
    assert session().session != session().session


def test_a_wrong_session_names_the_field(tmp_path):
    made = session()
    made.save(tmp_path)
    held = json.loads((tmp_path / SESSION).read_text())
    (tmp_path / SESSION).write_text(json.dumps(held | {"seed": -1}))
    with pytest.raises(InputError, match=r"session.json.seed: got -1"):
        load_session(tmp_path)
    (tmp_path / SESSION).write_text(json.dumps(held | {"schema_version": 2}))
    with pytest.raises(InputError, match="schema_version"):
        load_session(tmp_path)


def test_the_commit_is_known_in_a_checkout(monkeypatch):
    assert len(commit().rstrip("+")) in (0, 40)
    monkeypatch.setenv("PATH", "")
    assert commit() == ""
