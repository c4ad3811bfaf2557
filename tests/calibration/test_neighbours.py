"""Kernels of several processes at a time: what a neighbour adds, and processes that are really started and ended."""

import json
import subprocess
from typing import Any

import psutil
import pytest

from calibration import neighbours
from calibration.neighbours import KINDS, Beside, measure, shares
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


def test_two_processes_side_by_side() -> None:
    found = measure(2, rounds=2, window_s=0.02)
    assert [(b.kind, b.processes, b.round) for b in found[:4]] == [(k, n, 0) for k in KINDS for n in (1, 2)]
    assert len(found) == 8
    assert all(0 < b.t_s < 10 and b.n > 0 for b in found)
    children = psutil.Process().children(recursive=True)
    assert not [p for p in children if "calibration.neighbours" in " ".join(p.cmdline())]


def test_a_process_that_ends_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    started = subprocess.Popen

    def failing(words: list[str], **how: Any) -> subprocess.Popen[str]:
        return started([words[0], "-c", "raise SystemExit(3)"], **how)

    monkeypatch.setattr(neighbours.subprocess, "Popen", failing)
    with pytest.raises(InputError, match="exit code 3"):
        measure(2, rounds=1, window_s=0.01)
