"""Kernels of several processes at a time: what a neighbour adds, and processes that are really started and ended."""

import json
import subprocess
import time
from typing import Any

import psutil
import pytest

from calibration import neighbours
from calibration.guards import within
from calibration.neighbours import KINDS, Beside, _window, measure, shares
from sim.specs import InputError


def sample(kind: str, processes: int, number: int, t_s: float) -> dict[str, Any]:
    made = Beside(kind, processes, number, t_s, 10).row
    return made | {"shape": json.loads(made["shape"])}


def test_a_neighbour_adds_what_the_rounds_agree_on() -> None:
    """Four processes, memory 2.5 times as long in two rounds of three; the machine itself is slower in one."""
    rows = []
    for number, (alone, ratio) in enumerate([(1.0, 2.5), (1.4, 2.5), (1.0, 7.0)]):
        rows += [sample("memory", 1, number, alone), sample("memory", 4, number, alone * ratio)]
        rows += [sample("product", 1, number, 1.0), sample("product", 4, number, 0.98)]
    assert shares(rows) == pytest.approx({"memory": 0.5, "product": 0.0})
    assert shares([]) == {}
    assert shares([r for r in rows if r["shape"]["processes"] > 1]) == {}
    assert shares([sample("memory", 1, 0, 1e-9), sample("memory", 2, 0, 1e6)]) == {"memory": 100.0}


def test_what_others_have_of_a_core_is_no_time_of_the_kernel() -> None:
    assert max(_window(lambda: time.sleep(0.01), 0.03)) < 0.005
    assert min(_window(lambda: sum(range(300_000)), 0.0)) > 5e-4


@pytest.mark.slow
def test_two_processes_side_by_side() -> None:
    found = measure(2, rounds=2, window_s=0.02)
    assert [(b.kind, b.processes, b.round) for b in found[:4]] == [(k, n, 0) for k in KINDS for n in (1, 2)]
    assert len(found) == 8
    assert all(0 < b.t_s < 10 and b.n > 0 for b in found)
    children = psutil.Process().children(recursive=True)
    assert not [p for p in children if "calibration.neighbours" in " ".join(p.cmdline())]


def instead(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let processes run other code."""
    started = subprocess.Popen

    def other(words: list[str], **how: Any) -> subprocess.Popen[str]:
        return started([words[0], "-c", code], **how)

    monkeypatch.setattr(neighbours.subprocess, "Popen", other)


@pytest.mark.parametrize(
    ("code", "told", "start_s"),
    [
        ("raise SystemExit(3)", "exit code 3", 60.0),
        ("input(); print('MKL_VERBOSE oneMKL'); input()", "MKL_VERBOSE", 60.0),
        ("input(); print('{}'); input()", "{}", 60.0),
        ("import time; time.sleep(60)", "no answer", 0.2),
    ],
)
def test_a_process_that_ends_or_does_not_answer_is_told(
    monkeypatch: pytest.MonkeyPatch, code: str, told: str, start_s: float
) -> None:
    instead(monkeypatch, code)
    monkeypatch.setattr(neighbours, "START_S", start_s)
    with within(20), pytest.raises(InputError, match=f"processes: got .*{told}"):
        measure(2, rounds=1, window_s=0.01)


@pytest.mark.slow
def test_what_libraries_print_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    printing = "dict.fromkeys(neighbours.KINDS, lambda: os.write(1, b'MKL_VERBOSE \\xff\\n'))"
    code = f"import os; from calibration import neighbours; neighbours._kernels = lambda: {printing}; neighbours.main()"
    instead(monkeypatch, code)
    assert len(measure(2, rounds=1, window_s=0.0)) == 4
