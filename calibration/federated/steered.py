"""Measures what controllers of theta cost beside the best theta that stays, in real runs, for the notebook about it.

    python -m calibration.federated.steered --out notebooks/data/decentralized-steered.json

The best fixed theta of a case is the loosest that loses no more than is borne in the later half of its run. Measuring
that was interrupted goes on. All of it takes a quarter of an hour on two cores.
"""

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from calibration.federated.data import DataName
from calibration.federated.setting import Setting
from calibration.federated.train import train
from calibration.host import made
from calibration.journal import read_journal, write_journal
from calibration.measuring import bar
from sim.costs.fitted import six_digits
from sim.decentralized.communication import KNOBS, LOCAL, AlgorithmName, Communication, whole_bytes
from sim.decentralized.controllers import controller
from sim.decentralized.objective import Objective
from sim.specs.files import write_json

COMMAND = "python -m calibration.federated.steered --out notebooks/data/decentralized-steered.json"
CONTROLLER = "hill_climbing"
ALGORITHMS: tuple[AlgorithmName, ...] = ("fedavg", "diloco", "gaia")
STEPS, TRAVEL_EVERY = 3000, 200
SEEDS = range(20, 25)
"""Others than that by which the controllers' constants were chosen. That they take the latest traffic of a theta, which
changes nothing but with Gaia, was decided after runs of the first two."""


@dataclass(frozen=True)
class Case:
    """A training whose theta is controlled, and what it is held against."""

    algorithm: AlgorithmName
    skew: float
    seed: int
    data: DataName = "digits"

    @property
    def thetas(self) -> tuple[float, ...]:
        """Those of which two exchanges or more lie between travels."""
        usual = KNOBS[self.algorithm].thetas
        return tuple(theta for theta in usual if self.algorithm not in LOCAL or 2 * theta <= TRAVEL_EVERY)

    @property
    def setting(self) -> Setting:
        """What is trained."""
        return Setting(data=self.data, skew=self.skew, seed=self.seed, steps=STEPS, travel_every=TRAVEL_EVERY)

    @property
    def key(self) -> str:
        """What names it."""
        return f"{self.algorithm}, {self.data}, skew {self.skew:g}, seed {self.seed}"


def wanted() -> list[Case]:
    """Return the cases, seed after seed."""
    return [Case(name, skew, seed) for seed, skew, name in product(SEEDS, (0.5, 1.0), ALGORITHMS)]


def told(case: Case) -> dict[str, Any]:
    """Return what the controlled run and the best fixed theta of a case come to; None where no theta is borne."""
    objective = Objective()
    moves = controller(CONTROLLER, case.thetas, objective, case.seed)
    run = train(case.setting, Communication(algorithm=case.algorithm, theta=moves.theta), moves)
    row = {
        "algorithm": case.algorithm,
        "data": case.data,
        "skew": case.skew,
        "seed": case.seed,
        "ends_with": moves.settled,
        "accuracy_loss": run.accuracy_loss,
        "accuracy": run.accuracy,
        "update_bytes": run.traffic_bytes - run.travel_bytes,
        "travel_bytes": run.travel_bytes,
        "bsp_bytes": len(run.partitions) * (len(run.partitions) - 1) * whole_bytes(run.values) * run.steps,
        "thetas": [travel.theta for travel in run.travels],
        "losses": [six_digits(travel.accuracy_loss) for travel in run.travels],
    }
    for theta in reversed(case.thetas):
        fixed = train(case.setting, Communication(algorithm=case.algorithm, theta=theta))
        if fixed.accuracy_loss <= objective.tolerated:
            best = {"best_theta": theta, "best_bytes": fixed.traffic_bytes - fixed.travel_bytes}
            return row | best | {"best_accuracy": fixed.accuracy, "best_accuracy_loss": fixed.accuracy_loss}
    return row | dict.fromkeys(("best_theta", "best_bytes", "best_accuracy", "best_accuracy_loss"))


def measured(cases: Sequence[Case], journal: Path, processes: int) -> Iterator[dict[str, Any]]:
    """Yield a line for each case: those of `journal` first, then new ones, which are added to it as they come."""
    lines = read_journal(journal)
    known = {line["key"] for line in lines}
    left = [case for case in cases if case.key not in known]
    yield from map(dict, lines)
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for case, row in zip(left, pool.map(told, left), strict=True):
            lines.append({"key": case.key, **row})
            write_journal(journal, lines)
            yield dict(lines[-1])


def main(
    out: Annotated[Path, typer.Option("--out", help="JSON file that is written.")],
    processes: Annotated[int, typer.Option("--processes", help="Runs at a time.", min=1)] = 2,
) -> None:
    """Measure; progress goes to stderr."""
    cases = wanted()
    by_key: dict[str, dict[str, Any]] = {}
    with bar(Console(stderr=True)) as shown:
        for line in measured(cases, out.with_suffix(".jsonl"), processes):
            by_key[line.pop("key")] = line
            shown(len(by_key), len(cases), f"real runs by {CONTROLLER}")
    found = {
        **made(COMMAND),
        "controller": CONTROLLER,
        "partitions": Setting().partitions,
        "steps": STEPS,
        "travel_every": TRAVEL_EVERY,
        "rows": [{name: rounded(value) for name, value in by_key[case.key].items()} for case in cases],
    }
    write_json(out, found)


def rounded(value: Any) -> Any:
    """Return a number with six digits, anything else as it is."""
    return six_digits(value) if isinstance(value, float) else value


if __name__ == "__main__":
    typer.run(main)
