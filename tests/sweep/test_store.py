"""The store: one writer, whole blocks, nothing foreign."""

import errno
import fcntl
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.specs import InputError
from sim.specs.locks import unlocked
from sim.sweep import store as stores
from sim.sweep.grid import Grid
from sim.sweep.outcome import Damaged, Outcome, Reasons, sealed
from sim.sweep.run import SweepStopped, _Pace, sweep
from sim.sweep.store import Counts, Store
from sim.sweep.writer import Writer, locked
from tests.contracts.runner import rows
from tests.oracle import ROOT
from tests.sweep.conftest import AXES, BASE


@pytest.fixture(autouse=True)
def _short_blocks(monkeypatch):
    monkeypatch.setattr("sim.sweep.writer.BLOCK_ROWS", {"analytic": 64, "path": 4, "events": 2})


@pytest.fixture
def done(small, tmp_path):
    """The path of a finished store of nine blocks."""
    sweep(small, tmp_path / "done.db", "here")
    return tmp_path / "done.db"


def test_what_a_killed_writer_had_begun_is_taken_back(done, tmp_path):
    """Its journal lies beside the store, and a reader that may not write could do nothing with it."""
    before, killed = rows(done), tmp_path / "killed.db"
    writer = sqlite3.connect(done)
    writer.execute("PRAGMA cache_size = 1")
    writer.execute("UPDATE blocks SET payload = randomblob(length(payload))")
    for end in ("", "-journal"):
        shutil.copy(f"{done}{end}", f"{killed}{end}")
    writer.rollback()
    writer.close()
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        stores.opened(killed, "ro").execute("SELECT 1 FROM sqlite_master")
    assert rows(killed) == before


def test_counts_best_and_rows_to_read(small, done):
    with Store(done) as store:
        counts = store.counts
        assert (counts.total, counts.done, counts.left) == (540, 540, 0)
        found = [outcome for _, outcome in store.blocks()]
        assert [len(o) for o in found] == [64] * 8 + [28]
        assert counts.ok == sum(o.counts()[0] for o in found)
        times = np.concatenate([np.where(o.numbers["fits"] == 2, o.numbers["step_time_s"], np.inf) for o in found])
        assert counts.best == (int(np.argmin(times)), float(times.min()))
        assert store.configuration(counts.best[0])["plan.recompute"] == "none"
        points = store.sample(50)
        assert 40 <= len(points["number"]) <= 50
        assert set(points) >= {"plan.tp", "plan.recompute", "step_time_s", "fits"}
        np.testing.assert_array_equal(
            points["step_time_s"], np.concatenate([o.numbers["step_time_s"] for o in found])[points["number"]]
        )
        assert (
            store.sample(10**6)["number"].tolist()
            == np.flatnonzero(np.concatenate([o.outcome for o in found]) == 0).tolist()
        )


def test_a_reader_sees_the_blocks_that_are_written_so_far(small, tmp_path):
    path, seen = tmp_path / "runs.db", []

    def look(now):
        with Store(path) as store:
            seen.append((store.counts.done, now.counts.done, len(store.sample(9)["number"])))

    sweep(small, path, "here", progress=look)
    assert all(read == told for read, told, _ in seen)
    assert seen[-1][0] == 540


def test_a_second_writer_is_refused_by_name(small, tmp_path):
    with (
        Writer(tmp_path / "runs.db", small),
        pytest.raises(InputError, match=f"one that no other process writes; process {os.getpid()} does"),
    ):
        Writer(tmp_path / "runs.db", small)
    Writer(tmp_path / "runs.db", small).close()


@pytest.mark.slow
def test_a_writer_in_another_process_is_refused_too(small, tmp_path):
    code = (
        "import sys; from pathlib import Path; from sim.sweep.writer import locked\n"
        "held = locked(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "runs.db")]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(InputError, match=f"process {other.pid} does"):
            Writer(tmp_path / "runs.db", small)
        other.stdin.close()
    Writer(tmp_path / "runs.db", small).close()


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "9p", "lustre"])
def test_network_file_systems_are_refused(small, tmp_path, monkeypatch, kind):
    part = namedtuple("part", "mountpoint fstype")
    parts = [part("/", "ext4"), part(str(tmp_path), kind)]
    monkeypatch.setattr("sim.sweep.writer.psutil.disk_partitions", lambda all: parts)
    with pytest.raises(InputError, match=f"a file on a local disk: {kind} is a network file system"):
        sweep(small, tmp_path / "runs.db", "here")
    assert not list(tmp_path.iterdir())


def test_resume_is_asked_for_and_another_grid_refused(small, done):
    before = rows(done)
    with pytest.raises(InputError, match="a new file, or --resume: it has blocks of this grid already"):
        sweep(small, done, "here")
    other = Grid(**(BASE | {"plan": {"global_batch": 128}}), axes=AXES)
    for resume in (False, True):
        with pytest.raises(InputError, match="a new file: it is of another grid"):
            sweep(other, done, "here", resume=resume)
    assert sweep(small, done, "here", resume=True).rate == 0
    assert rows(done) == before


def test_a_change_of_the_program_is_no_resume(small, done, monkeypatch):
    monkeypatch.setattr("sim.sweep.grid.code_digest", lambda: "other code")
    changed = Grid(**BASE, axes=AXES)
    with pytest.raises(InputError, match="since it was made, trainsim, its catalog or a file that the grid names has"):
        sweep(changed, done, "here", resume=True)


@pytest.mark.slow
def test_a_first_axis_of_files_grows_by_a_file_but_not_over_one_that_changed(tmp_path):
    config = '{"model_type": "gpt2", "n_embd": 256, "n_layer": %d, "n_head": 4}'
    (tmp_path / "a.json").write_text(config % 2)
    (tmp_path / "b.json").write_text(config % 4)

    def grid(*names):
        return Grid.read(BASE | {"model": "gpt2", "axes": {"model": list(names), "plan.tp": [1, 2]}}, tmp_path)

    store = tmp_path / "runs.db"
    assert sweep(grid("a.json"), store, "here").counts.ok == 2
    assert sweep(grid("a.json", "b.json"), store, "here", resume=True).counts.ok == 4
    for changed in ("b.json", "a.json"):
        (tmp_path / changed).write_text(config % 6)
        with pytest.raises(InputError, match="since it was made, trainsim, its catalog or a file that the grid names"):
            sweep(grid("a.json", "b.json"), store, "here", resume=True)


def test_a_longer_first_axis_computes_what_is_new_alone(done, tmp_path, monkeypatch):
    longer = Grid(**BASE, axes={**AXES, "plan.tp": [*AXES["plan.tp"], 16]})
    with pytest.raises(InputError, match="or --resume: it is of the beginning of this grid"):
        sweep(longer, done, "here")
    kept, computed = rows(done)[:8], []
    from sim.sweep.evaluate import Evaluate  # noqa: PLC0415 - the class whose calls are counted

    once = Evaluate.__call__
    monkeypatch.setattr(Evaluate, "__call__", lambda self, span: computed.append(span.number) or once(self, span))
    assert sweep(longer, done, "here", resume=True).counts.done == 648
    assert computed == [8, 9, 10]  # the short one of before among them
    assert rows(done)[:8] == kept
    sweep(longer, tmp_path / "whole.db", "here")
    assert rows(done) == rows(tmp_path / "whole.db")


def test_equal_blocks_are_computed_once(tmp_path, monkeypatch):
    monkeypatch.setattr("sim.sweep.writer.BLOCK_ROWS", {"path": 1})
    grid = Grid(**BASE, axes={"plan.tp": [1, 2]}, engine="path", sample={"method": "random", "count": 40, "seed": 1})
    calls = []
    from sim.sweep import simulated  # noqa: PLC0415 - the module whose calls are counted

    once = simulated.simulate
    monkeypatch.setattr(simulated, "simulate", lambda *a: calls.append(a) or once(*a))
    found = sweep(grid, tmp_path / "runs.db", "here")
    assert found.counts.ok == 40
    assert len(calls) == 2
    with Store(tmp_path / "runs.db") as store:
        times = np.array([o.numbers["step_time_s"][0] for _, o in store.blocks()])
        assert times[found.counts.best[0]] == times.min() == found.counts.best[1]
        assert store.counts == found.counts


AXES_OF_NUMBERS = json.dumps({"axes": [{"path": 3}], "method": None, "count": 0, "seed": 0})


def spoilt(path: Path, how: str) -> None:
    """Damage a store in one of many ways."""
    data = path.read_bytes()
    statements = {
        "application": "PRAGMA application_id = 7",
        "version": "PRAGMA user_version = 99",
        "table": "CREATE TABLE more (a)",
        "trigger": "CREATE TRIGGER t AFTER INSERT ON blocks BEGIN DELETE FROM meta; END",
        "view": "CREATE VIEW v AS SELECT 1",
        "meta": "DELETE FROM meta WHERE key = 'grid'",
        "json": "UPDATE meta SET value = '{' WHERE key = 'numbering'",
        "axes": f"UPDATE meta SET value = '{AXES_OF_NUMBERS}' WHERE key = 'numbering'",
        "rows": "UPDATE meta SET value = '0' WHERE key = 'block_rows'",
        "deep": f"UPDATE meta SET value = '{'[' * 5000}' WHERE key = 'grid'",
        "payload": "UPDATE blocks SET payload = zeroblob(100) WHERE number = 3",
        "text": "UPDATE blocks SET payload = 'text' WHERE number = 3",
        "short": "UPDATE blocks SET payload = (SELECT payload FROM blocks WHERE number = 8) WHERE number = 3",
        "number": "UPDATE blocks SET number = 1000000 WHERE number = 3",
    }  # fmt: skip
    if how in statements:
        db = sqlite3.connect(path)
        db.execute(statements[how])
        db.commit()
        db.close()
    else:
        path.write_bytes(
            {
                "empty": b"",
                "text file": b"number,outcome\n",
                "cut": data[: len(data) // 2],
                "noise": data[:100] + os.urandom(len(data) - 100),
            }[how]
        )


HARM = [
    "application", "version", "table", "trigger", "view", "meta", "json", "axes", "rows", "deep", "payload", "text",
    "short", "number", "empty", "text file", "cut", "noise",
]  # fmt: skip


@pytest.mark.parametrize("how", HARM)
def test_a_foreign_or_damaged_file_is_one_clear_error(small, done, how):
    spoilt(done, how)
    with pytest.raises(InputError) as error, Store(done) as store:
        list(store.blocks())
    assert str(error.value).startswith(str(done))
    assert "allowed: " in str(error.value) and "\n" not in str(error.value)
    if how not in ("payload", "text", "short", "number", "empty", "cut"):
        with pytest.raises(InputError):
            sweep(small, done, "here", resume=True)


def test_no_store_at_all(small, tmp_path):
    for path, words in ((tmp_path, "a directory"), (tmp_path / "none.db", "no such file")):
        with pytest.raises(InputError, match=words):
            Store(path)
    for path in (tmp_path, tmp_path / "no" / "folder.db"):
        with pytest.raises(InputError, match="a file in an existing folder"):
            sweep(small, path, "here")


@given(st.binary(max_size=400), st.integers(0, 100))
def test_noise_is_no_payload(noise, length):
    with pytest.raises(Damaged):
        Outcome.unpacked(noise, length)


@given(st.data())
def test_a_payload_with_a_byte_changed_is_refused(data):
    blank = Outcome.blank(50)
    packed = bytearray(blank.packed())
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Damaged, match="checksum is another"):
        Outcome.unpacked(bytes(packed), 50)


def test_a_flipped_bit_in_a_block_names_the_store_and_the_block(done):
    db = sqlite3.connect(done)
    payload = bytearray(db.execute("SELECT payload FROM blocks WHERE number = 3").fetchone()[0])
    payload[len(payload) // 2] ^= 1
    db.execute("UPDATE blocks SET payload = ? WHERE number = 3", (bytes(payload),))
    db.commit()
    db.close()
    with Store(done) as store:
        assert store.outcome(2).counts()
        with pytest.raises(InputError, match=r"done\.db: got 'block 3: checksum is another'"):
            store.outcome(3)


def test_payloads_with_codes_that_there_are_not():
    def packed(**columns):
        held = Outcome.blank(2)
        held.outcome[:], held.reason[:] = columns.get("outcome", 0), columns.get("reason", -1)
        return held.packed()

    assert len(Outcome.unpacked(packed(), 2)) == 2
    for wrong in ({"outcome": 4}, {"reason": 0}, {"reason": -2}):
        with pytest.raises(Damaged, match="codes out of range"):
            Outcome.unpacked(packed(**wrong), 2)
    sink = pa.BufferOutputStream()
    for batch in (pa.record_batch({"outcome": [1]}), pa.record_batch({"reasons": [["a"]]})):
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
    with pytest.raises(Damaged, match=r"other columns|reason"):
        Outcome.unpacked(sealed(bytes(sink.getvalue())), 1)


def test_reasons_are_bounded():
    reasons = Reasons()
    assert len({reasons.index(f"reason {n}") for n in range(20_000)}) == 10_000
    assert reasons.index("reason  7\n") == 7
    assert len(next(text for text in [reasons.index("x" * 1000) and list(reasons.known)[-1]])) <= 300


class Cramped(Writer):
    """A writer whose disk is full after some pages."""

    pages = 9

    def _open(self, resume):
        super()._open(resume)
        self.db.execute(f"PRAGMA max_page_count = {self.pages}")


def test_a_full_disk_ends_with_one_message_and_resumes(small, tmp_path, monkeypatch):
    path = tmp_path / "runs.db"
    monkeypatch.setattr("sim.sweep.run.Writer", Cramped)
    with pytest.raises(SweepStopped) as stop:
        sweep(small, path, "here")
    safe = Store(path).counts.done
    assert 0 < safe < 540
    assert (
        str(stop.value)
        == f"{path}: database or disk is full; {safe} of 540 configurations are safe in {path}: go on with --resume"
    )
    monkeypatch.setattr("sim.sweep.run.Writer", Writer)
    assert sweep(small, path, "here", resume=True).counts.left == 0
    sweep(small, tmp_path / "whole.db", "here")
    assert rows(path) == rows(tmp_path / "whole.db")


def test_a_new_store_for_which_there_is_no_room_is_not_left_behind(small, tmp_path, monkeypatch):
    """It was told as a damaged store, and stayed."""
    opened = stores.opened

    def cramped(path, mode):
        db = opened(path, mode)
        db.execute("PRAGMA max_page_count = 2")
        return db

    monkeypatch.setattr(stores, "opened", cramped)
    with pytest.raises(OSError) as full:
        sweep(small, tmp_path / "runs.db", "here")
    assert (full.value.errno, full.value.filename) == (errno.ENOSPC, str(tmp_path / "runs.db"))
    assert not list(tmp_path.iterdir())


def test_a_store_whose_making_was_cut_short_is_made_again(small, tmp_path):
    for name in ("empty.db", "bare.db"):
        path = tmp_path / name
        path.touch()
        if name == "bare.db":
            db = sqlite3.connect(path)
            db.execute("PRAGMA journal_mode = WAL")
            db.close()
        assert sweep(small, path, "here").counts.left == 0


def test_a_sweep_that_has_ended_is_one_file(small, tmp_path):
    path = tmp_path / "runs.db"

    def interrupt(now):
        assert {each.name for each in tmp_path.iterdir()} >= {"runs.db", "runs.db-wal", "runs.db.lock"}
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(SweepStopped):
        patch.setattr("sim.sweep.run.PROGRESS_EVERY_S", 0.0)
        sweep(small, path, "here", progress=interrupt)
    assert list(tmp_path.iterdir()) == [path]
    sweep(small, path, "here", resume=True)
    assert list(tmp_path.iterdir()) == [path]
    with Store(path) as store:
        assert store.counts.left == 0
    with pytest.raises(InputError, match="a new file, or --resume"):
        sweep(small, path, "here")
    assert list(tmp_path.iterdir()) == [path]


def test_who_reads_at_the_end_of_a_sweep_reads_on(small, tmp_path):
    path = tmp_path / "runs.db"
    with Writer(path, small) as writer, Store(path) as store:
        writer.close()  # at once: it waits for no reader
        assert store.counts.done == 0
        assert not path.with_name("runs.db.lock").exists()
        sweep(small, path, "here")
        assert store.counts.left == 0
    sweep(small, path, "here", resume=True)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("taken", [False, True])
def test_a_lock_file_that_was_taken_away_lets_nobody_in(tmp_path, monkeypatch, taken):
    """Between opening it and locking it here, the writer that had it ends, and perhaps another one begins."""
    path, place, others = tmp_path / "runs.db", tmp_path / "runs.db.lock", []

    def flock(file, how):
        monkeypatch.undo()
        place.unlink()
        if taken:
            others.append(locked(path))
        fcntl.flock(file, how)

    monkeypatch.setattr("sim.specs.locks.fcntl", SimpleNamespace(flock=flock, LOCK_EX=2, LOCK_NB=4))
    if taken:
        with pytest.raises(InputError, match=f"process {os.getpid()} does"):
            locked(path)
    else:
        others.append(locked(path))
        with pytest.raises(InputError, match=f"process {os.getpid()} does"):
            locked(path)
    unlocked(others[0])
    assert not place.exists()
    with locked(path):
        unlocked(others[0])  # a second time does nothing
        assert place.exists()


def test_the_time_left_is_told_once_blocks_come_at_a_pace(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("sim.sweep.run.perf_counter", lambda: now[0])
    pace, counts = _Pace(), Counts(1000, 0, 0, 0, 0, 0.0, None)
    assert pace.left_s(counts) is None
    for block in range(1, 21):
        now[0] = 30.0 + block
        counts = replace(counts, ok=10 * block)
        pace.came(counts)
        assert (pace.left_s(counts) is None) == (block < 8)
    assert pace.left_s(counts) == pytest.approx(80.0)  # ten a second, whatever the 30 s of starting


def test_every_commit_reaches_the_disk(small, tmp_path):
    with Writer(tmp_path / "runs.db", small) as held:
        assert held.db.execute("PRAGMA synchronous").fetchone() == (2,)
        assert held.db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert not held.db.execute("PRAGMA trusted_schema").fetchone()[0]
    assert stores.SCHEMA_VERSION == 2
