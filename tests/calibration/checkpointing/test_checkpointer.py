"""Saving and resuming: what is written, in which order, what waits for what, and what is left after damage."""

import errno
import os
import resource
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from calibration.checkpointing.checkpointer import Checkpointer, CheckpointError, checkpoints, latest_valid
from calibration.checkpointing.engine import TorchSave
from calibration.checkpointing.manifest import DATA, FILE, Progress
from calibration.checkpointing.store import Store
from calibration.guards import OutOfTime, within
from sim.specs.fields import InputError
from tests.calibration.checkpointing.conftest import Told
from tests.oracle import ROOT


def state(value=0.0, n=1_000):
    """Return a state as an optimizer's is: tensors, numbers as keys, tuples, None."""
    weights = {"w": torch.full((n,), value), "n": torch.tensor(3)}
    group = {"lr": 0.1, "betas": (0.9, 0.999), "params": [0, 1], "foreach": None, "amsgrad": False}
    return {"model": weights, "optimizer": {"state": {0: {"m": torch.full((n,), value + 1)}}, "param_groups": [group]}}


def same(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return one == other and type(one) is type(other)


def saved(folder, engine, steps, **options):
    with Checkpointer(folder, engine, **options) as checkpointer:
        for step in steps:
            checkpointer.save(state(float(step)), Progress(step=step, epoch=1, consumed=step * 10))
        checkpointer.wait()
        return checkpointer


def test_what_is_saved_is_loaded(tmp_path, engine):
    saved(tmp_path, engine(), [3])
    with Checkpointer(tmp_path, engine()) as checkpointer:
        found, progress = checkpointer.resume()
    assert same(found, state(3.0))
    assert progress == Progress(step=3, epoch=1, consumed=30)
    manifest = latest_valid(tmp_path).manifest
    assert manifest.torch == torch.__version__ and manifest.format == engine().format
    assert {(t.name, t.dtype, tuple(t.shape)) for t in manifest.tensors} == {
        ("model.w", "float32", (1000,)),
        ("model.n", "int64", ()),
        ("optimizer.state.0.m", "float32", (1000,)),
    }
    assert manifest.bytes == (latest_valid(tmp_path).folder / DATA).stat().st_size
    assert not list(tmp_path.rglob("*metadata*")), "DCP's pickled index is not written"


def test_the_order_of_things(tmp_path, engine):
    """Nothing is in its place before it is on the disk, and nothing old goes before the new is there."""
    made = engine()
    names = []
    told = made.phase = Told("remove", lambda: names.extend(step for step, _ in checkpoints(tmp_path)))
    saved(tmp_path, made, [1, 2, 3])
    assert told.phases == ["snapshot", "write", "fsync", "rename", "remove", "done"] * 3
    assert names == [1, 2, 1, 3, 2, 1]
    assert [step for step, _ in checkpoints(tmp_path)] == [3, 2]
    assert sorted(p.name[:5] for p in tmp_path.iterdir()) == [".lock", "step-", "step-"]


def test_the_copy_is_of_the_moment(tmp_path, engine):
    """Weights that change once `before_update` returns are not in the checkpoint, however long the writing takes."""
    made, held = engine(), threading.Event()
    made.phase = Told("write", lambda: held.wait(10))
    weights = state(5.0)
    with Checkpointer(tmp_path, made) as checkpointer:
        checkpointer.save(weights, Progress(step=1))
        checkpointer.before_update()
        assert checkpointer.persisting
        weights["model"]["w"].zero_()
        held.set()
        assert same(checkpointer.resume()[0], state(5.0))
        kinds = [(span.kind, span.step) for span in checkpointer.spans]
    assert kinds == [("snapshot", 1), ("persist", 1)]


def test_one_whose_wait_is_interrupted_is_still_on_its_way(tmp_path, engine):
    """The next one waits for it: both are written from the same buffers."""
    made, held = engine(), threading.Event()
    made.phase = Told("write", lambda: held.wait(10))
    with Checkpointer(tmp_path, made) as checkpointer:
        checkpointer.save(state(1.0), Progress(step=1))
        with pytest.raises(OutOfTime), within(0.1):
            checkpointer.wait()
        persisting = checkpointer.persisting
        held.set()
        checkpointer.save(state(2.0), Progress(step=2))
    assert persisting
    assert [step for step, _ in checkpoints(tmp_path)] == [2, 1]


def test_no_update_waits_for_a_snapshot_that_was_interrupted(tmp_path, monkeypatch, engine):
    made = engine()

    def interrupted(job):
        raise KeyboardInterrupt

    with Checkpointer(tmp_path, made) as checkpointer:
        monkeypatch.setattr(made, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            checkpointer.save(state(), Progress(step=1))
        with within(1.0):
            checkpointer.before_update()
    assert not checkpoints(tmp_path)


def test_the_update_waits_for_the_copy(tmp_path):
    begun, go_on, updated = threading.Event(), threading.Event(), threading.Event()
    made = TorchSave(phase=Told("snapshot", lambda: (begun.set(), go_on.wait(10))))
    with Checkpointer(tmp_path, made) as checkpointer:
        checkpointer.save(state(), Progress(step=1))
        trainer = threading.Thread(target=lambda: (checkpointer.before_update(), updated.set()))
        begun.wait(10)
        trainer.start()
        assert not updated.wait(0.05)
        go_on.set()
        assert updated.wait(10)
        trainer.join()


def test_what_forward_passes_change_is_copied_in_the_call(tmp_path):
    go_on = threading.Event()
    made = TorchSave(phase=Told("snapshot", lambda: go_on.wait(10)))
    given = state(1.0)
    with Checkpointer(tmp_path, made) as checkpointer:
        checkpointer.save(given, Progress(step=1), now=["model.w"])
        given["model"]["w"].zero_()
        go_on.set()
        assert same(checkpointer.resume()[0], state(1.0))


def test_one_on_its_way_at_a_time(tmp_path, engine):
    made, flying, most = engine(), [], []
    made.phase = lambda phase: {
        "write": lambda: flying or (flying.append(1), most.append(len(flying))),
        "done": flying.clear,
    }.get(phase, lambda: None)()
    saved(tmp_path, made, range(1, 6))
    assert most == [1] * 5


@pytest.mark.parametrize("damage", ["flip", "cut", "manifest", "no data", "lie"])
def test_a_damaged_latest_falls_back(tmp_path, engine, damage):
    saved(tmp_path, engine(), [1, 2])
    last = latest_valid(tmp_path).folder
    data = last / DATA
    match damage:
        case "flip":
            raw = bytearray(data.read_bytes())
            raw[len(raw) // 2] ^= 1
            data.write_bytes(raw)
        case "cut":
            os.truncate(data, data.stat().st_size - 1)
        case "manifest":
            (last / FILE).write_text((last / FILE).read_text()[:-20])
        case "no data":
            data.unlink()
        case "lie":
            (last / FILE).write_text((last / FILE).read_text().replace('"consumed": 20', '"consumed": 21'))
    with Checkpointer(tmp_path, engine()) as checkpointer:
        assert checkpointer.resume()[1].step == 1
        assert [step for step, _ in checkpoints(tmp_path)] == [1], "the damaged one makes room for its step"
        checkpointer.save(state(), Progress(step=2))
        checkpointer.wait()
    assert latest_valid(tmp_path).manifest.progress.step == 2


@pytest.mark.parametrize(("owner", "reads"), [(Path, "open"), (Store, "crc32")], ids=["manifest", "data"])
def test_what_cannot_be_read_now_is_not_taken_for_damaged(tmp_path, monkeypatch, owner, reads):
    saved(tmp_path, TorchSave(), [1, 2])
    with Checkpointer(tmp_path, TorchSave()) as checkpointer, monkeypatch.context() as patch:
        patch.setattr(owner, reads, Mock(side_effect=PermissionError(errno.EACCES, "denied")))
        with pytest.raises(PermissionError):
            checkpointer.resume()
    assert [step for step, _ in checkpoints(tmp_path)] == [2, 1]


def test_nothing_valid(tmp_path, engine):
    with Checkpointer(tmp_path, engine()) as checkpointer:
        assert checkpointer.resume() is None
    saved(tmp_path, engine(), [1])
    (latest_valid(tmp_path).folder / DATA).write_bytes(b"")
    assert latest_valid(tmp_path) is None


def test_strays_of_dead_runs_go(tmp_path, engine):
    saved(tmp_path, engine(), [1])
    shutil.copytree(latest_valid(tmp_path).folder, tmp_path / ".draft-2-1-0")
    (tmp_path / ".gone-0").mkdir()
    (tmp_path / "notes").mkdir()
    with Checkpointer(tmp_path, engine()):
        assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", "notes", "step-000000000001"]


class FullDisk(Store):
    """Storage on which there is no room after some bytes."""

    def wait(self, count):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_one_error_and_the_last_checkpoint_stays(tmp_path, engine):
    made = engine()
    with Checkpointer(tmp_path, made) as checkpointer:
        checkpointer.save(state(), Progress(step=1))
        checkpointer.wait()
        whole, made.store = made.store, FullDisk()
        checkpointer.save(state(), Progress(step=2))
        with pytest.raises(CheckpointError) as error:
            checkpointer.save(state(), Progress(step=3))
        said = f"step 2 is not saved in {tmp_path}: No space left on device; the last is of step 1"
        assert str(error.value) == said
        assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", "step-000000000001"]
        made.store = whole
        checkpointer.save(state(), Progress(step=3))
    assert latest_valid(tmp_path).manifest.progress.step == 3


def test_a_limit_of_the_system_is_that_error_too(tmp_path):
    """No injected error: the kernel refuses a file beyond the process's limit."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, before[1]))
    try:
        with Checkpointer(tmp_path) as checkpointer:
            checkpointer.save(state(n=2**19), Progress(step=1))
            with pytest.raises(CheckpointError, match="File too large; none is saved"):
                checkpointer.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_folder_that_is_gone(tmp_path):
    folder = tmp_path / "f"
    folder.mkdir()
    checkpointer = Checkpointer(folder)
    shutil.rmtree(folder)
    with pytest.raises(CheckpointError, match="No such file"):
        checkpointer.save(state(), Progress(step=1))
    checkpointer.before_update()
    checkpointer.close()


def test_bad_input(tmp_path, engine):
    with pytest.raises(InputError, match=r"folder: got .*; allowed: an existing folder that can be written"):
        Checkpointer(tmp_path / "none")
    with pytest.raises(InputError, match="keep: got 1"):
        Checkpointer(tmp_path, keep=1)
    with Checkpointer(tmp_path, engine()) as checkpointer:
        with pytest.raises(InputError, match=r"model\.x: got 'object'"):
            checkpointer.save({"model": {"x": object()}}, Progress(step=1))
        with pytest.raises(InputError, match="one tensor of a name"):
            checkpointer.save({"a.b": torch.ones(1), "a": {"b": torch.ones(1)}}, Progress(step=1))
        checkpointer.save(state(), Progress(step=2))
        with pytest.raises(InputError, match=r"progress.step: got 2; allowed: a step after 2"):
            checkpointer.save(state(), Progress(step=2))


def test_formats_are_not_mixed(tmp_path, engine):
    saved(tmp_path, TorchSave(), [1])
    with Checkpointer(tmp_path, engine()) as checkpointer:
        if engine is TorchSave:
            assert checkpointer.resume()
        else:
            with pytest.raises(InputError, match=r"format: got 'torch.save'"):
                checkpointer.resume()


@pytest.mark.slow
def test_one_process_saves_to_a_folder(tmp_path):
    code = (
        "import sys; from pathlib import Path; from calibration.checkpointing.checkpointer import Checkpointer\n"
        "try: Checkpointer(Path(sys.argv[1]))\n"
        "except ValueError as error: sys.stdout.write(str(error))"
    )
    with Checkpointer(tmp_path):
        found = subprocess.run(
            [sys.executable, "-c", code, tmp_path],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    assert "a folder to which no other process saves" in found.stdout


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("place", ["host", "device"])
def test_copies_on_a_gpu(tmp_path, place):
    weights = torch.full((2**24,), 7.0, device="cuda")
    with Checkpointer(tmp_path, TorchSave(place=place)) as checkpointer:
        checkpointer.save({"w": weights}, Progress(step=1))
        checkpointer.before_update()
        weights.zero_()
        found, _ = checkpointer.resume()
    assert found["w"].eq(7).all() and not found["w"].is_cuda
