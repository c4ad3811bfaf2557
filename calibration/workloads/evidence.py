"""Predicts the benchmark's full networks on GPUs, for the notebook about them: over the batch, and over the links.

    python -m calibration.workloads.evidence --out notebooks/data/workloads.json

Nothing is measured; what takes the time, about three minutes, is to trace the networks.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from calibration.workloads.expected import Expectations, Expected, write_expectations
from calibration.workloads.predicted import batch_bytes, predict_traced, table
from calibration.workloads.registry import WORKLOADS
from calibration.workloads.workload import Workload
from sim.specs import Cluster, LayerTable
from sim.specs.catalog import device

COMMAND = "python -m calibration.workloads.evidence --out notebooks/data/workloads.json"
DEVICE = "a100-sxm-80gb"
BATCHES = tuple(2**n for n in range(10))
DEVICES = 8
ETHERNET_BYTES_PER_S = 1.25e9
"""10 Gbit/s, beside the 100 Gbit/s of InfiniBand that the paper has too (section 3.4)."""

Told = Callable[[str], object]


@dataclass(frozen=True)
class Traced:
    """A full network as a table of layers, with all that a prediction of it wants."""

    workload: Workload
    table: LayerTable

    def on(self, name: str, cluster: Cluster, processes: int, samples: int) -> Expected:
        """Return what is expected of `samples` a process on devices whose links have a name."""
        peak = cluster.hardware.peak_bf16_flop_per_s.value
        held = batch_bytes(self.workload, "full", "cuda", samples)
        found = predict_traced(self.table, cluster, peak, processes, samples, held)
        fits = (found.peak_bytes or 0.0) <= cluster.memory_bytes
        return Expected(
            workload=self.workload.name, links=name, processes=processes, samples=samples, fits=fits, metrics=found
        )


def alone(traced: Traced) -> Iterator[Expected]:
    """Yield what is expected of one device at all batches, up to the first that does not fit."""
    cluster = Cluster.of(DEVICE, nodes=1, gpus_per_node=1)
    for samples in BATCHES:
        found = traced.on("one device", cluster, 1, samples)
        yield found
        if not found.fits:
            return


def together(traced: Traced) -> Iterator[Expected]:
    """Yield what is expected of several devices at the network's own batch, by what joins them."""
    wires = {
        "NVLink": Cluster.of(DEVICE, nodes=1, gpus_per_node=DEVICES),
        "InfiniBand": Cluster.of(DEVICE, nodes=DEVICES, gpus_per_node=1, links={"inter_bytes_per_s_per_node": 1e10}),
        "Ethernet": Cluster.of(
            DEVICE, nodes=DEVICES, gpus_per_node=1, links={"inter_bytes_per_s_per_node": ETHERNET_BYTES_PER_S}
        ),
    }
    for name, cluster in wires.items():
        yield traced.on(name, cluster, DEVICES, traced.workload.samples["full"])


def gather(out: Path, names: tuple[str, ...], told: Told) -> Expectations:
    """Return everything expected; the file is written after each network."""
    rows: list[Expected] = []
    for name in names:
        traced = Traced(WORKLOADS[name], table(WORKLOADS[name], "full", "cuda"))
        rows += [*alone(traced), *together(traced)]
        write_expectations(out, expectations(rows))
        told(name)
    return expectations(rows)


def expectations(rows: Sequence[Expected]) -> Expectations:
    """Return what is expected as a file holds it."""
    peak = device(DEVICE).peak_bf16_flop_per_s.value
    return Expectations(command=COMMAND, device=DEVICE, peak_flop_per_s=peak, rows=[*rows])


def main(out: Annotated[Path, typer.Option("--out", help="File that is written.")]) -> None:
    """Predict; progress goes to stderr."""
    gather(out, tuple(WORKLOADS), lambda text: sys.stderr.write(text + "\n"))


if __name__ == "__main__":
    typer.run(main)
