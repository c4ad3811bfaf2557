"""Damaged files of every kind but jobs (`test_fuzz`): each loads or is refused with one `InputError`, and soon."""

import json
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest

import sim
from calibration.federated.journal import read_journal
from sim.cluster.importers.kueue import read_kueue
from sim.cluster.importers.slurm import read_sacct
from sim.cluster.predicted import read_workload
from sim.cluster.throughput_files import read_throughputs
from sim.cluster.trace import read_trace as read_jobs
from sim.decentralized.accuracy import read_runs as read_short_runs
from sim.market.price_files import read_prices
from sim.market.rates import read_rates
from sim.plans import emit
from sim.plans.importing import read_plan
from sim.plans.plan_file import load_plan, plan_data
from sim.schedules.custom import read_order
from sim.specs import InputError
from sim.validation.table import read_runs
from sim.validation.traces import read_trace
from tests.cluster import test_trace
from tests.cluster.importers import test_kueue, test_slurm
from tests.full import FULL
from tests.market.test_price_files import EXAMPLES
from tests.oracle import ROOT
from tests.properties.mutations import damaged

FILES = 5_000 if FULL else 40
MOST_S = 1.0
TRIES = 3
DATA = ROOT / "notebooks" / "data"
LINES = 30


@cache
def step() -> Any:
    """Return a step that every target can run."""
    plan = sim.Plan(tp=2, pp=2, global_batch=32)
    return sim.simulate(sim.models["llama3-8b"], sim.Cluster.of("h100-sxm-80gb", nodes=1), plan)


def head(name: str) -> str:
    """Return the first lines of a file of the notebooks."""
    return "\n".join((DATA / name).read_text("utf-8").splitlines()[:LINES]) + "\n"


def settings(target: str) -> tuple[str, Callable[[], str], Callable[[Path], object]]:
    """Return the file of a target's settings, how it is made and how it is read."""
    return (
        "settings.txt",
        lambda: emit(step(), target),
        lambda path: read_plan(path.read_text("utf-8", "replace"), target),
    )


READERS: Mapping[str, tuple[str, Callable[[], str], Callable[[Path], object]]] = {
    **{f"prices {n}": (n, lambda n=n: EXAMPLES[n][0], read_prices) for n in EXAMPLES if not n.endswith(".gz")},
    "rates": ("rates.csv", lambda: head("market-rates.csv"), read_rates),
    "throughputs": ("t.yaml", lambda: head("gavel-throughputs.yaml"), read_throughputs),
    "workload": ("w.yaml", lambda: (DATA / "cluster-workload.yaml").read_text("utf-8"), read_workload),
    "jobs": ("jobs.trace", lambda: test_trace.LINE + "\n", read_jobs),
    "slurm": ("s.txt", lambda: "\n".join((test_slurm.HEAD, *test_slurm.LINES)), read_sacct),
    "kueue": ("k.csv", lambda: "\n".join((test_kueue.HEAD, *test_kueue.LINES)), read_kueue),
    "megatron": settings("megatron"),
    "torchtitan": settings("torchtitan"),
    "order": ("o.csv", lambda: emit(step(), "torch-csv"), read_order),
    "plan": ("p.json", lambda: json.dumps(plan_data(step())), load_plan),
    "short runs": ("r.csv", lambda: head("decentralized-grid.csv"), read_short_runs),
    "journal": ("j.jsonl", lambda: '{"name": "a", "seconds": 1.5}\n{"name": "b", "seconds": 2}\n', read_journal),
    "runs": ("r.csv", lambda: head("ptdp.csv"), read_runs),
    "profiler": ("t.json", lambda: (DATA / "hardware-trace-0.json").read_text("utf-8"), read_trace),
}
"""Name of the file, a text that loads, and what reads the file, by what is read."""


@pytest.mark.parametrize("kind", READERS)
def test_damaged_files_of_every_reader(tmp_path, kind):
    name, made, read = READERS[kind]
    text, random, file = made(), Random(kind), tmp_path / name
    file.write_text(text, "utf-8")
    read(file)
    for number in range(FILES):
        raw = damaged(random, text) if number else b"[" * 30_000
        file.write_bytes(raw)
        where = f"file {number}: {raw[:300]!r}"
        assert any(_seconds(read, file, where) < MOST_S for _ in range(TRIES)), where


def _seconds(read: Callable[[Path], object], file: Path, where: str) -> float:
    """Return the CPU seconds of reading a file, which gives something or one InputError."""
    begin = time.process_time()
    try:
        read(file)
    except InputError as error:
        assert "\n" not in str(error), where
        assert len(str(error)) < 2_000, where
    except Exception as other:  # any other class is what this test looks for
        pytest.fail(f"{where}: {type(other).__name__}: {other}")
    return time.process_time() - begin
