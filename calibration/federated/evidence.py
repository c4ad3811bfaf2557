"""Measures what accuracy decentralised training loses on skewed data, for the notebook about it.

    python -m calibration.federated.evidence --out notebooks/data/decentralized-grid.csv [--budget 900]

Rows are kept beside the table, with the suffix .jsonl, as they come: measuring that its budget ended goes on. All of it
takes some fifteen minutes on one core. What was measured when, where and with what stands in a JSON file of the name.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer
from rich.console import Console

from calibration.federated.grid import Case, Row, Short, accuracy_grid, cases
from calibration.federated.setting import Setting
from calibration.host import made
from calibration.measuring import bar
from sim.costs.fitted import six_digits
from sim.specs.csv_rows import write_rows
from sim.specs.files import write_json

COMMAND = "python -m calibration.federated.evidence --out notebooks/data/decentralized-grid.csv"
STEPS, STEPS_GENERATED = 200, 300


def wanted() -> list[Case]:
    """Return the cases: digits with group norm in full; the other norms and generated images for every second theta."""
    main = [Setting(skew=skew, seed=seed, steps=STEPS) for seed in range(3) for skew in (0.0, 0.25, 0.5, 0.75, 1.0)]
    norms = [
        Setting(skew=skew, seed=seed, steps=STEPS, norm=norm)
        for seed in range(2)
        for norm in ("batch", "none")
        for skew in (0.0, 1.0)
    ]
    images = [
        Setting(skew=skew, seed=seed, steps=STEPS_GENERATED, data="generated")
        for seed in range(2)
        for skew in (0.0, 1.0)
    ]
    return cases(main) + cases(norms + images, every=2)


def ordered_share(rows: Sequence[Short]) -> dict[str, float]:
    """Return by algorithm the share of pairs of thetas, within a skew above 0, a network and data, of which the one
    that sends less loses no less accuracy by travelling, in the mean over seeds.

    Algorithms whose partitions always have the same model (none loses anything) are left out.
    """
    losses: dict[tuple[object, ...], dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.skew > 0:
            losses[row.algorithm, row.skew, row.norm, row.data, row.steps][row.theta].append(row.accuracy_loss)
    found: dict[str, list[bool]] = defaultdict(list)
    for (algorithm, *_), by_theta in losses.items():
        means = [fmean(by_theta[theta]) for theta in sorted(by_theta)]
        if any(means):
            found[str(algorithm)] += [tight <= loose for tight, loose in combinations(means, 2)]
    return {algorithm: six_digits(fmean(held)) for algorithm, held in found.items() if held}


def iid_losses(rows: Sequence[Short]) -> dict[str, dict[str, float]]:
    """Return by data the mean and the largest accuracy loss without skew.

    It is not zero: models are tried on samples that those at home have trained on.
    """
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.skew == 0:
            found[row.data].append(row.accuracy_loss)
    return {data: {"mean": six_digits(fmean(held)), "largest": six_digits(max(held))} for data, held in found.items()}


def means(rows: Sequence[Short]) -> list[dict[str, Any]]:
    """Return the mean accuracy and accuracy loss over thetas and seeds by data, norm, skew and algorithm."""
    groups: dict[tuple[str, str, float, str], list[Short]] = defaultdict(list)
    for row in rows:
        groups[row.data, row.norm, row.skew, row.algorithm].append(row)
    return [
        {
            "data": data,
            "norm": norm,
            "skew": skew,
            "algorithm": algorithm,
            "accuracy": six_digits(fmean(row.accuracy for row in group)),
            "partition_accuracy": six_digits(fmean(row.partition_accuracy for row in group)),
            "accuracy_loss": six_digits(fmean(row.accuracy_loss for row in group)),
            "runs": len(group),
        }
        for (data, norm, skew, algorithm), group in groups.items()
    ]


def provenance(rows: Sequence[Short]) -> dict[str, Any]:
    """Return when, where and with what the rows were measured, and what they come to."""
    at = Setting()
    fixed = ("partitions", "batch", "lr", "momentum", "outer_lr", "outer_momentum", "clip_norm", "travel_every")
    return {
        **made(COMMAND, "one thread", "scikit-learn"),
        "setting": {name: getattr(at, name) for name in fixed},
        "rows": len(rows),
        "ordered_pairs": ordered_share(rows),
        "iid_accuracy_loss": iid_losses(rows),
        "means": means(rows),
    }


def main(
    out: Annotated[Path, typer.Option("--out", help="Table that is written.")],
    budget: Annotated[float, typer.Option("--budget", help="Seconds after which nothing more is begun.")] = 3600.0,
) -> None:
    """Measure; progress goes to stderr."""
    console = Console(stderr=True)
    with bar(console) as shown:
        rows = accuracy_grid(wanted(), out.with_suffix(".jsonl"), budget, shown)
    write_rows(rows, Row, out, lambda cell: six_digits(cell) if isinstance(cell, float) else cell)
    told = provenance(rows)
    write_json(out.with_suffix(".json"), told)
    console.print(f"{len(rows)} of {len(wanted())} runs; ordered pairs: {told['ordered_pairs']}", markup=False)


if __name__ == "__main__":
    typer.run(main)
