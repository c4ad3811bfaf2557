"""Runs of the published cluster simulator beside ours: the same jobs, devices, policy and seed."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from time import perf_counter
from typing import Any

from sim.cluster import Rounds, generate, policy, read_throughputs, read_trace
from sim.cluster.simulate import simulate
from sim.specs.csv_rows import read_records
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
        InputError: no such file, a column is missing, or a cell is not what its column holds (`file:line.column`).
    """
    for place, row in read_records(folder / "runs_summary.csv", (*CELLS, "error")):
        if row["error"] or not row["makespan_s"]:
            continue
        held = {}
        for name, cell in CELLS.items():
            try:
                held[name] = cell(row[name])
            except (ValueError, TypeError, RecursionError):
                raise InputError(f"{place}.{name}", row[name], "what such runs are recorded with") from None
        if not (held["trace"] or "lam" in held["gen"]):
            raise InputError(f"{place}.gen", row["gen"], "lam, the mean seconds between jobs, where no trace is named")
        yield Published(
            tag=held["tag"],
            policy=held["policy"],
            seed=held["seed"],
            solver=held["solver"],
            devices=held["cluster_v100_p100_k80"],
            throughputs=folder / "inputs" / f"{held['throughputs']}.gz",
            trace=folder / "inputs" / held["trace"] if held["trace"] else None,
            drawn=held["gen"],
            window=held["window"],
            makespan_s=held["makespan_s"],
            average_jct_s=held["avg_jct_s"],
            wall_s=held["wall_s"],
        )


def _devices(cell: str) -> dict[str, int]:
    return dict(zip(TYPES, map(int, cell.split(":")), strict=True))


def _window(cell: str) -> tuple[int, int] | None:
    if not cell:
        return None
    first, last = json.loads(cell)
    return int(first), int(last)


def _drawn(cell: str) -> dict[str, float]:
    held = json.loads(cell) if cell else {}
    if not isinstance(held, dict) or not all(isinstance(v, int | float) and isfinite(v) for v in held.values()):
        raise ValueError
    return held


def _positive(cell: str) -> float:
    if not 0 < float(cell) < inf:
        raise ValueError
    return float(cell)


CELLS: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("tag", "policy", "solver", "throughputs", "trace"), str),
    **dict.fromkeys(("makespan_s", "avg_jct_s", "wall_s"), _positive),
    "seed": int,
    "cluster_v100_p100_k80": _devices,
    "gen": _drawn,
    "window": _window,
}
"""What is read of a recorded run, and how."""


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
