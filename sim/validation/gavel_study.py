"""Gavel's evaluation done again (arXiv 2008.09213, section 7), beside what was published; results for the notebook.

python -m sim.validation.gavel_study REFERENCE/cluster --out notebooks/data/cluster.json

goes on where the file ends.
"""

import platform
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from sim.cluster import Pop, Rounds, Throughputs, generate, policy, read_throughputs
from sim.cluster.simulate import simulate
from sim.specs.csv_rows import read_specs
from sim.specs.fields import InputError, real, spec
from sim.specs.files import load_mapping, write_json
from sim.units import HOUR_S
from sim.validation.gavel import Published, compared, published_runs

RATES = (0.8, 2.0, 3.2, 4.0, 4.4, 4.8, 5.2, 5.6)
LOADED = ("fifo", "fifo_perf", "max_min_fairness", "max_min_fairness_perf", "allox", "gandiva")
WINDOW = (4_000, 5_000)
EACH = dict.fromkeys(("v100", "p100", "k80"), 36)
FRACTIONS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
STATIC_JOBS, STATIC_DEVICES, SEEDS = (100, 300), 100, 3
"""Of the makespan study; how many jobs came in the published one is not known: assumptions."""

SIZES = (("fifo_perf", 1, 5_000, 1_000), ("fifo_perf", 1, 50_000, 10_000), ("max_min_fairness_perf", 1, 5_000, 1_000),
         ("max_min_fairness_perf", 8, 5_000, 1_000), ("max_min_fairness_perf", 32, 50_000, 10_000))  # fmt: skip
"""Policy, parts, jobs, devices; so many jobs come in eleven days."""

Case = tuple[str, Callable[[], dict[str, Any]]]


def load(known: Throughputs, name: str, rate: float) -> dict[str, Any]:
    """Return the average completion time of jobs 4,000 to 4,999 of so many an hour, as published simulators do."""
    jobs = generate(None, HOUR_S / rate, 0, known)
    made = policy(name, 0, gavel_parity=True)
    found = simulate(jobs, known, EACH, made, Rounds(gavel_parity=True), seed=0, window=WINDOW)
    return {"policy": name, "rate": rate, "jct_h": found.average_jct_s / HOUR_S, "rho": found.mean_fairness,
            "seconds": found.seconds}  # fmt: skip


def makespan(known: Throughputs, count: int, fraction: float, seed: int) -> dict[str, Any]:
    """Return how much longer jobs that come at once take where the policy takes V100 and K80 for alike."""
    fast = round(fraction * STATIC_DEVICES)
    devices = {"v100": fast, "k80": STATIC_DEVICES - fast}
    jobs = tuple(generate(count, 0.0, seed, known))
    ends = [
        simulate(jobs, known, devices, policy(name, seed), Rounds(switch_s=0.0), seed=seed).makespan_s
        for name in ("min_total_duration", "min_total_duration_perf")
    ]
    return {"jobs": count, "fraction": fraction, "seed": seed, "ratio": ends[0] / ends[1]}


def size(known: Throughputs, name: str, parts: int, jobs: int, devices: int) -> dict[str, Any]:
    """Return how long a large cluster takes to simulate."""
    third = devices // 3
    made = policy(name) if parts == 1 else Pop(name, parts)
    drawn = tuple(generate(jobs, 1e6 / jobs, 0, known, multi_gpu=True))
    counts = {"v100": devices - 2 * third, "p100": third, "k80": third}
    found = simulate(drawn, known, counts, made, Rounds(gpus_per_server=8))
    return {"policy": name, "parts": parts, "jobs": jobs, "devices": devices, "seconds": found.seconds,
            "allocation_seconds": found.allocation_seconds, "rounds": found.rounds,
            "jct_h": found.average_jct_s / HOUR_S, "makespan_h": found.makespan_s / HOUR_S}  # fmt: skip


def again(run: Published, parity: bool) -> dict[str, Any]:
    """Return what a published run is here."""
    found = compared(run, parity)
    return {"tag": run.tag, "policy": run.policy, "seed": run.seed, "solver": run.solver, "parity": parity,
            "makespan_percent": found.makespan_error_percent, "jct_percent": found.jct_error_percent,
            "seconds": found.seconds, "published_seconds": run.wall_s}  # fmt: skip


def cases(folder: Path) -> Iterator[Case]:
    """Yield everything that is done, by name."""
    known = read_throughputs(folder / "inputs" / "simulation_throughputs.json.gz")
    for run, parity in product(published_runs(folder), (True, False)):
        name = f"runs: {run.name} ({run.solver}, {len(run.drawn)}){', parity' if parity else ''}"
        yield name, partial(again, run, parity)
    for count, fraction, seed in product(STATIC_JOBS, FRACTIONS, range(SEEDS)):
        yield f"makespan: {count} jobs, {fraction}, seed {seed}", partial(makespan, known, count, fraction, seed)
    for row in SIZES:
        yield "sizes: " + ", ".join(map(str, row)), partial(size, known, *row)
    for rate in RATES:
        for name in LOADED:
            yield f"load: {name}, {rate}", partial(load, known, name, rate)


@spec
class Figure:
    """A point of a published figure; `metric` names the figure."""

    metric: str
    policy: str
    x: Annotated[float, real(0.0, 1e9)]
    value: Annotated[float, real(0.0, 1e9)]


def published(folder: Path) -> dict[str, Any]:
    """Return the published figures beside which ours stand: means where several runs are given."""
    held: dict[str, dict[str, dict[str, list[float]]]] = {}
    for point in read_specs(folder / "published_results.csv", Figure):
        points = held.setdefault(point.metric, {}).setdefault(point.policy, {})
        points.setdefault(f"{point.x:g}", []).append(point.value)
    return {
        metric: {name: {x: float(np.mean(values)) for x, values in points.items()} for name, points in by.items()}
        for metric, by in held.items()
    }


def main(
    folder: Annotated[Path, typer.Argument(help="The reference data of clusters.")],
    out: Annotated[Path, typer.Option(help="The file to write, or to go on with.")],
    only: Annotated[str, typer.Option(help="Only cases whose names begin so.")] = "",
) -> None:
    """Do Gavel's evaluation again, case by case."""
    console = Console(stderr=True)
    held: dict[str, Any] = {"cases": {}}
    if out.exists():
        held = load_mapping(out)
        if not isinstance(held.get("cases"), dict):
            raise InputError(str(out), sorted(held), "a file that was written here")
    done: dict[str, Mapping[str, Any]] = held["cases"]
    for name, run in cases(folder):
        if name in done or not name.startswith(only):
            continue
        console.print(name, highlight=False)
        done[name] = run()
        held |= {
            "source": "published: arXiv 2008.09213 and stanford-futuredata/gavel c4fa400 (MIT)",
            "date": datetime.now(UTC).date().isoformat(),
            "machine": platform.processor() or platform.machine(),
            "versions": {name: version(name) for name in ("numpy", "scipy", "numba", "clarabel")},
            "published": published(folder),
        }
        write_json(out, held)


if __name__ == "__main__":
    typer.run(main)
