"""Measures how far simulated times of decentralised training are off real ones, for the notebook about it.

    python -m calibration.federated.timing --out notebooks/data/decentralized-time.json

Wants a quiet machine: the pace of its processes is measured before every run, in turn, and medians of both are
compared. Measuring that was interrupted goes on. All of it takes some twenty minutes on two cores.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console

from calibration.federated.compare import Compared, Pace, compared
from calibration.federated.setting import Setting
from calibration.host import made
from calibration.journal import read_journal, write_journal
from calibration.measuring import bar
from sim.costs.fitted import six_digits
from sim.decentralized.communication import KNOBS, LOCAL, AlgorithmName, Communication
from sim.decentralized.controllers import controller
from sim.decentralized.objective import Objective
from sim.specs.files import write_json

COMMAND = "python -m calibration.federated.timing --out notebooks/data/decentralized-time.json"
ROUNDS = 3
STEPS, LOCAL_STEPS = 150, 1000
BYTES_PER_S, LATENCY_S = 2.5e6, 0.02
"""Of every link; of uneven ones half of it and twice as long towards a partition of a lower number."""
THETAS: tuple[tuple[AlgorithmName, float], ...] = (
    ("bsp", 1.0),
    ("gaia", 0.1),
    ("dgc", 0.99),
    ("fedavg", 20.0),
    ("diloco", 50.0),
)


@dataclass(frozen=True)
class Case:
    """A training over even or uneven links; `controlled`: hill climbing moves theta by travelling models."""

    partitions: int
    algorithm: AlgorithmName
    theta: float
    even: bool = True
    controlled: bool = False

    @property
    def key(self) -> str:
        """What names it."""
        links = "even" if self.even else "uneven"
        moved = ", hill climbing" if self.controlled else ""
        return f"{self.partitions} partitions, {self.algorithm} {self.theta:g}, {links} links{moved}"

    def compared(self) -> Compared:
        """Return one run beside its prediction, at the pace of just before."""
        steps = LOCAL_STEPS if self.algorithm in LOCAL else STEPS
        every = 50 if self.controlled else 10 * steps
        setting = Setting(partitions=self.partitions, skew=1.0, steps=steps, travel_every=every)
        communication = Communication(algorithm=self.algorithm, theta=self.theta)
        thetas = KNOBS[self.algorithm].thetas
        moves = controller("hill_climbing", thetas, Objective(), 0, thetas.index(self.theta))
        each = range(self.partitions)
        slow = [[1.0 if self.even or i < j else 2.0 for j in each] for i in each]
        bytes_per_s = tuple(tuple(BYTES_PER_S / one for one in row) for row in slow)
        latency_s = tuple(tuple(LATENCY_S * one for one in row) for row in slow)
        pace = Pace.measured(setting, communication)
        return compared(setting, communication, bytes_per_s, latency_s, pace, moves if self.controlled else None)


def wanted() -> list[Case]:
    """Return the cases: as many partitions as cores in full, three and five for what they share."""
    two = [Case(2, name, theta, even) for even in (True, False) for name, theta in THETAS]
    moved = [Case(2, "fedavg", 200.0, True, True), Case(2, "diloco", 200.0, True, True)]
    more = [*(Case(3, *one) for one in THETAS), Case(3, "fedavg", 200.0, True, True), Case(5, "bsp", 1.0)]
    return [*two, *moved, *more, Case(5, "fedavg", 20.0)]


def row(case: Case, rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what the rounds of a case come to: medians, and by how much they differ."""
    measured, predicted = (median(one[name] for one in rounds) for name in ("measured_s", "predicted_s"))
    return {
        **asdict(case),
        "measured_s": [six_digits(one["measured_s"]) for one in rounds],
        "predicted_s": [six_digits(one["predicted_s"]) for one in rounds],
        "error_percent": six_digits(100 * (predicted / measured - 1)),
        "bytes_equal": all(one["bytes_equal"] for one in rounds),
        "thetas_equal": all(one["thetas_equal"] for one in rounds),
    }


def told(case: Case) -> dict[str, Any]:
    """Return one round of a case as a line of the journal has it."""
    found = case.compared()
    return {
        "key": case.key,
        "measured_s": found.measured.seconds,
        "predicted_s": found.predicted.seconds,
        "bytes_equal": found.bytes_equal,
        "thetas_equal": found.thetas_equal,
    }


def main(out: Annotated[Path, typer.Option("--out", help="JSON file that is written.")]) -> None:
    """Measure; progress goes to stderr."""
    journal = out.with_suffix(".jsonl")
    lines = read_journal(journal)
    cases = wanted()
    with bar(Console(stderr=True)) as shown:
        for n in range(ROUNDS):
            for at, case in enumerate(cases):
                if sum(line["key"] == case.key for line in lines) > n:
                    continue
                shown(n * len(cases) + at, ROUNDS * len(cases), case.key)
                lines.append(told(case))
                write_journal(journal, lines)
    rows = [row(case, [line for line in lines if line["key"] == case.key]) for case in cases]
    found = {
        **made(COMMAND, "one thread a partition"),
        "rows": rows,
    }
    write_json(out, found)


if __name__ == "__main__":
    typer.run(main)
