"""Measured traces: known distortions are found again, and what is wrong is refused with one clear error."""

import gzip
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.distributed.pipelining import schedules as torch_schedules

from sim.engine.path import run_path
from sim.engine.timeline import Durations, Timeline
from sim.report import figures
from sim.schedules import Kind, Shape, build
from sim.specs import InputError
from sim.validation.traces import PREFIX, join, measured_times, read_trace

FACTOR = {"F": 1.25, "B": 0.8}
CLOCKS_US = (5e9, -3_000.0)


def timeline(name: str = "1f1b", chunks: int = 1) -> Timeline:
    """Return two ranks' timeline; F 1 ms, B 2 ms."""
    shape = Shape(2, 4, chunks)
    times = {Kind.F: 1_000_000, Kind.B: 2_000_000, Kind.I: 1_000_000, Kind.W: 1_000_000}
    return run_path(build(name, shape), Durations.uniform(2 * chunks, times, 10_000))


def texts(run: Timeline) -> dict[int, str]:
    """Return the actions as torch writes them, those of a pair as one."""
    fused = np.append(run.graph.second[1:], False)
    return {
        i: f"({run.action(i)};{run.action(i + 1)})OVERLAP_F_B" if fused[i] else str(run.action(i))
        for i in range(len(run.start))
        if not run.graph.second[i]
    }


def events(run: Timeline, rank: int, late_us: float = 0.0, pid: int = 7) -> list[dict[str, Any]]:
    """Return one rank's slices with its clock off and its durations wrong by kind."""
    return [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": PREFIX + text,
            "pid": pid,
            "tid": 1,
            "ts": run.start[i] / 1e3 + CLOCKS_US[rank] + late_us,
            "dur": (run.end[i] - run.start[i]) / 1e3 / FACTOR.get(run.action(i).kind.name, 1.0),
        }
        for i, text in texts(run).items()
        if run.graph.rank[i] == rank
    ]


def written(folder: Path, name: str, held: Any) -> Path:
    """Write a trace."""
    data = json.dumps(held).encode()
    target = folder / name
    target.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return target


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """A file per rank, one packed; rank 1 first."""
    run = timeline()
    other = [{"ph": "M", "name": "process_name", "pid": 7}, {"ph": "X", "name": "aten::mm", "ts": 0, "dur": 1}]
    return [
        written(tmp_path, "b.json.gz", {"traceEvents": [*other, *events(run, 1)]}),
        written(tmp_path, "a.json", {"schemaVersion": 1, "traceEvents": events(run, 0)}),
    ]


def test_distortions_and_clocks_are_found_again(paths: list[Path]) -> None:
    joined = join(timeline(), paths)
    assert len(joined.pairs) == 16
    assert joined.not_measured == joined.not_simulated == ()
    assert joined.steps == 1
    assert [joined.offset_s[r] * 1e6 for r in (0, 1)] == pytest.approx(CLOCKS_US)
    backward, forward = joined.errors()
    assert (forward.kind, forward.n) == ("F", 8)
    assert (forward.bias_percent, forward.mape) == pytest.approx((25, 25))
    assert (backward.bias_percent, backward.mape) == pytest.approx((-20, 20))
    assert max(abs(p.start_error_s) for p in joined.pairs) < 1e-6


def test_one_file_may_hold_all_ranks(tmp_path: Path) -> None:
    run = timeline()
    path = written(tmp_path, "all.json", events(run, 0, pid=3) + events(run, 1, pid=4))
    assert set(read_trace(path)) == {3, 4}
    assert len(join(run, [path]).pairs) == 16


def test_time_on_the_device_counts_where_there_is_any(tmp_path: Path) -> None:
    run = timeline()
    host = events(run, 0)
    device = [e | {"cat": "gpu_user_annotation", "pid": 0, "dur": 3 * e["dur"]} for e in host]
    joined = join(run, [written(tmp_path, "a.json", host + device)])
    assert {round(p.duration_error, 6) for p in joined.pairs if p.kind == "F"} == {round(1.25 / 3 - 1, 6)}


def test_a_step_is_chosen_and_what_has_no_partner_is_listed(tmp_path: Path) -> None:
    run = timeline()
    first, last = events(run, 0), events(run, 0, late_us=50_000)
    sends = {**first[0], "name": "PP:0SEND_F0"}
    path = written(tmp_path, "a.json", [*first, *last, sends])
    joined = join(run, [path], step=1)
    assert joined.steps == 2
    assert joined.offset_s[0] * 1e6 == pytest.approx(CLOCKS_US[0] + 50_000)
    assert join(run, [path], step=0).not_simulated == ("rank 0: 0SEND_F0",)
    assert [t.split(":")[0] for t in joined.not_measured] == ["rank 1"] * 8


def test_fused_pairs_are_joined_as_one(tmp_path: Path) -> None:
    shape = Shape(2, 6, 2)
    times = {Kind.F: 1_000_000, Kind.B: 2_000_000, Kind.I: 1_000_000, Kind.W: 1_000_000}
    run = run_path(build("dualpipev", shape), Durations.uniform(4, times))
    joined = join(run, [written(tmp_path, f"{r}.json", events(run, r)) for r in (0, 1)])
    assert len(joined.pairs) == len(texts(run))
    assert "OVERLAP_F_B" in {e.kind for e in joined.errors()}
    assert measured_times(joined)[2].all()


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ("{", "text that is not JSON"),
        ("3", "traceEvents"),
        ('{"traceEvents": 3}', "traceEvents: got 'int'; allowed: a list of events"),
        ("[1]", r"traceEvents\[0\]: got 'int'; allowed: an object"),
        ("[]", "without pipeline actions'; allowed: slices PP:<action>"),
        ('[{"ph":"X","name":"PP:0F0","ts":NaN,"dur":1}]', r"traceEvents\[0\].ts: got nan"),
        ('[{"ph":"X","name":"PP:0F0","ts":"0","dur":1}]', r"traceEvents\[0\].ts"),
        ('[{"ph":"X","name":"PP:0F0","ts":1,"dur":-1}]', r"traceEvents\[0\].dur: got -1; allowed: .* >= 0"),
        ('[{"ph":"X","name":"PP:0F0","ts":1}]', r"traceEvents\[0\].dur: got None"),
        ('[{"ph":"X","name":"PP:9F0","ts":1,"dur":1}]', "stages 9'; allowed: the stages of one rank, of 2"),
        ('[{"ph":"X","name":"PP:nonsense","ts":1,"dur":1}]', "no stages"),
        (
            '[{"ph":"X","name":"PP:0F0","ts":1,"dur":1},{"ph":"X","name":"PP:1F0","ts":1,"dur":1}]',
            "stages 0, 1'; allowed: the stages of one rank",
        ),
        ('[{"ph":"X","name":"PP:0I0","ts":1,"dur":1}]', "no action that was simulated'; allowed: actions of 1f1b"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_what_is_wrong_is_said_once(tmp_path: Path, held: str, message: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(held)
    with pytest.raises(InputError, match=message):
        join(timeline(), [path])


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paths: list[Path]) -> None:
    torn = tmp_path / "torn.json.gz"
    torn.write_bytes(paths[0].read_bytes()[:-20])
    for path, message in ((torn, "damaged archive"), (tmp_path / "none.json", "no such file"), (tmp_path, "directory")):
        with pytest.raises(InputError, match=message):
            read_trace(path)
    monkeypatch.setattr("sim.validation.traces.MAX_BYTES", 100)
    with pytest.raises(InputError, match="more than 100 bytes"):
        read_trace(paths[0])


def test_two_traces_of_one_rank_and_a_step_too_many(paths: list[Path]) -> None:
    with pytest.raises(InputError, match="allowed: one trace of it"):
        join(timeline(), [paths[1], paths[1]])
    with pytest.raises(InputError, match="paths"):
        join(timeline(), [])
    with pytest.raises(InputError, match="step: got 1; allowed: -1 to 0"):
        join(timeline(), paths, step=1)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_figure_shows_both(paths: list[Path], theme: str) -> None:
    figure = figures.measured(join(timeline(), paths), theme=theme)  # type: ignore[arg-type]
    shown = [t for t in figure.data if t.type == "bar" and t.name and t.x is not None and t.x[0] is not None]
    above = sum(len(t.x) for t in shown if t.yaxis in (None, "y"))
    below = sum(len(t.x) for t in shown if t.yaxis == "y2")
    assert above == below == 16
    assert [a.text for a in figure.layout.annotations] == ["simulated", "measured"]


def test_names_are_those_of_pytorch() -> None:
    """The text of an action, and the prefix of the slice, against torch's own functions."""
    for text in (*texts(timeline()).values(), *texts(timeline("zb-h1")).values(), "(0F7;3B0)OVERLAP_F_B"):
        action = torch_schedules._Action.from_str(text)
        assert torch_schedules._get_profiler_function_name(action) == PREFIX + text


@pytest.mark.slow
def test_a_trace_of_pytorch_itself(tmp_path: Path) -> None:
    """Two gloo ranks run torch's interleaved 1F1B; every simulated action is found, in both recorded steps."""
    environment = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    command = [sys.executable, str(Path(__file__).with_name("torch_pipeline.py")), str(tmp_path)]
    ranks = [
        subprocess.Popen(command, env=environment | {"RANK": str(r)}, stderr=subprocess.PIPE, text=True) for r in (0, 1)
    ]
    try:
        errors = [r.communicate(timeout=120)[1] for r in ranks]
    finally:
        for r in ranks:
            r.kill()
    assert [r.returncode for r in ranks] == [0, 0], errors
    times = {Kind.F: 1_000_000, Kind.B: 2_000_000}
    run = run_path(build("interleaved", Shape(2, 4, 2, variant="torch")), Durations.uniform(4, times, 1))
    joined = join(run, [tmp_path / "rank1.json.gz", tmp_path / "rank0.json.gz"])
    assert joined.steps == 2
    assert joined.not_measured == ()
    assert len(joined.pairs) == 2 * 2 * 2 * 4
    for rank in (0, 1):
        own = [p for p in joined.pairs if p.rank == rank]
        assert [p.action for p in sorted(own, key=lambda p: p.measured_start_s)] == run.schedule.texts()[rank].split()
    assert joined.not_simulated
    assert not [a for a in joined.not_simulated if re.fullmatch(r"rank \d: \d+[FBIW]\d+", a)]


def free_port() -> int:
    """Return a port of this machine that nobody uses."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
