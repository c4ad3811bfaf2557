"""Runs of the published cluster simulator beside ours: the same jobs, devices, policy and seed."""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from sim.cluster import Rounds, generate, policy, read_throughputs, read_trace
from sim.cluster.simulate import simulate
from sim.specs.fields import InputError

TYPES = ("v100", "p100", "k80")


@dataclass(frozen=True)
class Published:
    """A run that was recorded: what was run, and what came out; `wall_s` of its simulator, in Python."""

    tag: str
    policy: str
    seed: int
    solver: str
    devices: dict[str, int]
    throughputs: Path
    trace: Path | None
    drawn: dict[str, Any]
    window: tuple[int, int] | None
    makespan_s: float
    average_jct_s: float
    wall_s: float

    @property
    def name(self) -> str:
        """What it is called in tables."""
        return f"{self.tag}, {self.policy}, seed {self.seed}"


@dataclass(frozen=True)
class Compared:
    """Ours against a published run: errors in percent, and the seconds that ours took."""

    published: Published
    makespan_error_percent: float
    jct_error_percent: float
    seconds: float

    @property
    def speedup(self) -> float:
        """How many times as fast ours is."""
        return self.published.wall_s / self.seconds


def published_runs(folder: Path) -> Iterator[Published]:
    """Yield the runs of `runs_summary.csv` in `folder` that ended; its inputs are in `folder/inputs`.

    Raises:
        InputError: there is no such file.
    """
    path = folder / "runs_summary.csv"
    if not path.is_file():
        raise InputError("folder", str(folder), "a folder with runs_summary.csv")
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["error"] or not row["makespan_s"]:
                continue
            yield Published(
                tag=row["tag"],
                policy=row["policy"],
                seed=int(row["seed"]),
                solver=row["solver"],
                devices=dict(zip(TYPES, map(int, row["cluster_v100_p100_k80"].split(":")), strict=True)),
                throughputs=folder / "inputs" / f"{row['throughputs']}.gz",
                trace=folder / "inputs" / row["trace"] if row["trace"] else None,
                drawn=json.loads(row["gen"]) if row["gen"] else {},
                window=tuple(json.loads(row["window"])) if row["window"] else None,
                makespan_s=float(row["makespan_s"]),
                average_jct_s=float(row["avg_jct_s"]),
                wall_s=float(row["wall_s"]),
            )


def compared(run: Published, gavel_parity: bool = True) -> Compared:
    """Run what was recorded here, by default as the published simulator does it."""
    known = read_throughputs(run.throughputs)
    count = run.drawn.get("num_total")
    window = None if run.trace or count else run.window
    began = perf_counter()
    if run.trace:
        jobs = iter(read_trace(run.trace))
    else:
        jobs = generate(count, run.drawn["lam"], run.seed, known, multi_gpu=bool(run.drawn.get("multi")))
    found = simulate(
        jobs, known, run.devices, policy(run.policy, run.seed, gavel_parity), Rounds(gavel_parity=gavel_parity),
        seed=run.seed, window=window,
    )  # fmt: skip
    seconds = perf_counter() - began
    off = 100 * (found.makespan_s / run.makespan_s - 1)
    return Compared(run, off, 100 * (found.average_jct_s / run.average_jct_s - 1), seconds)
