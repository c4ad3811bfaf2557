"""Measures how well the simulation of shared clusters says what jobs take here, for the notebook about it.

    python -m calibration.cluster.evidence --out notebooks/data/cluster-real.json [--budget 200]

Three policies, twice each; throughputs are measured anew before every run. A run beside which others used too much of
the machine is made again, up to twice, and the quietest counts. What the file holds already is left as it is, so
measuring that its budget ended goes on. All of it takes some five minutes.
"""

from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer

from calibration.cluster.compare import compared
from calibration.cluster.measure import measured
from calibration.cluster.results import Case, Evidence, read_evidence, write_evidence
from calibration.guards import MOST_OTHERS, TRIES
from calibration.host import made
from calibration.measuring import tell_evidence
from sim.units import percent

COMMAND = "python -m calibration.cluster.evidence --out notebooks/data/cluster-real.json"
POLICIES = ("max_min_fairness_perf", "fifo_perf", "finish_time_fairness_perf")
REPETITIONS = 2

Told = Callable[[str], object]


def gather(out: Path, budget_s: float, told: Told) -> Evidence:
    """Return everything measured so far; the file is written after each run, until the budget is spent."""
    begin = monotonic()
    made = read_evidence(out) if out.exists() else _empty()
    done = [(case.policy, case.repetition) for case in made.cases]
    for repetition in range(1, REPETITIONS + 1):
        for rule in POLICIES:
            if (rule, repetition) not in done and monotonic() - begin < budget_s:
                made.cases.append(quietest(rule, repetition, told))
                write_evidence(out, made)
    return made


def quietest(rule: str, repetition: int, told: Told) -> Case:
    """Return the first run that others left alone, of a few else the one with the least load."""
    cases: list[Case] = []
    while len(cases) < TRIES and not any(case.load <= MOST_OTHERS for case in cases):
        cases.append(compared(measured(rule, told=told), repetition))
        said = f"errors {cases[-1].mean_error_percent:.1f} % in the mean, others used {percent(cases[-1].load)}"
        told(f"{rule}, run {repetition}: {said}")
    return min(cases, key=lambda case: case.load)


def _empty() -> Evidence:
    return Evidence(
        **made(COMMAND, "one thread a slot"),
        cases=[],
    )


def main(
    out: Annotated[Path, typer.Option("--out", help="File that is written, and gone on with.")],
    budget: Annotated[float, typer.Option("--budget", help="Seconds after which nothing more is begun.")] = 3600.0,
) -> None:
    """Measure; progress goes to stderr."""
    tell_evidence(gather, out, budget)


if __name__ == "__main__":
    typer.run(main)
