"""Measures recurrent layers on one core, for the notebook about them: picks of the costs, ratios to torch's layer.

    python -m calibration.layers.evidence --out notebooks/data/recurrent.json [--layers 20]

Every choice of every layer is measured, so that one sees what the pick loses; none of the sizes is one of those that
the costs are learned from. It takes about a minute.
"""

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Annotated

import torch
import typer

from calibration.host import HostStopwatch, cpu_name
from calibration.kernels.family import Machine
from calibration.layers.layouts import CHOICES
from calibration.layers.lstm_bench import GATES, LayerBench, Where, drawn, learned, probes
from calibration.layers.lstm_cost import HOST
from calibration.layers.lstm_results import CellCosts, Recurrences, layer_of, write_recurrences
from sim.report.numbers import tenths
from sim.specs.fields import InputError

COMMAND = "python -m calibration.layers.evidence --out notebooks/data/recurrent.json"
Told = Callable[[str], object]


def gather(out: Path, number: int, where: Where, told: Told) -> Recurrences:
    """Return everything measured; the file is written after each layer."""
    torch.set_num_threads(where.machine.threads)
    made = Recurrences(
        command=COMMAND, date=f"{datetime.now(UTC):%Y-%m-%d}", machine=f"one core of an {cpu_name()[1]}",
        software=f"{where.dtype}, torch {version('torch')}", choices=[choice.name for choice in CHOICES],
        costs=[], layers=[],
    )  # fmt: skip
    costs = {}
    for cell in GATES:
        found = costs[cell] = learned(where, cell, probes(cell, gpu=False), HOST)
        made.costs.append(CellCosts(cell=cell, fitted=dict(found.fitted), sigma_log=found.sigma_log))  # type: ignore[arg-type]
        told(f"{cell}: costs learned, errors of {tenths(found.sigma_log)}")
    for cell, sizes in islice(drawn(number, gpu=False), number):
        layer = layer_of(LayerBench(where, cell, sizes), costs[cell])
        made.layers.append(layer)
        write_recurrences(out, made)
        told(f"{cell} {sizes}: pick {CHOICES[layer.picked].name} loses {tenths(layer.lost)}")
    return made


def main(
    out: Annotated[Path, typer.Option("--out", help="File that is written.")],
    number: Annotated[int, typer.Option("--layers", help="Layers that are measured, from 1.")] = 20,
) -> None:
    """Measure; progress goes to stderr."""
    if number < 1:
        raise InputError("--layers", number, "a whole number from 1")

    def told(text: str) -> None:
        sys.stderr.write(text + "\n")

    for line in gather(out, number, Where(Machine("cpu", 2**30), HostStopwatch()), told).lines():
        told(line)


if __name__ == "__main__":
    typer.run(main)
