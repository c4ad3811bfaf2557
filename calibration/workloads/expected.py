"""What is expected of the benchmark's networks on devices that are not at hand, as a file holds it."""

from collections.abc import Mapping
from dataclasses import asdict, field
from pathlib import Path
from typing import Annotated, get_args

from pydantic import Field

from calibration.workloads.results import Amount, Metrics, Part, Text
from sim.costs.fitted import short
from sim.specs.fields import InputError, read, spec, whole
from sim.specs.files import load_mapping, write_listed


@spec
class Expected:
    """One network on devices of one kind; links: what joins them; samples: of a process's step; fits: its memory."""

    workload: Text
    links: Text
    processes: Annotated[int, whole(1, 10**6)]
    samples: Annotated[int, whole(1, 10**6)]
    fits: bool
    metrics: Metrics


@spec
class Expectations:
    """All that a command expects of a device of the catalog."""

    command: Text
    device: Text
    peak_flop_per_s: Amount
    rows: Annotated[list[Expected], Field(max_length=1_000, description="at most 1000 rows")] = field(
        default_factory=list
    )

    def __post_init__(self) -> None:
        alone = {(row.workload, row.samples) for row in self.rows if row.processes == 1}
        for place, row in enumerate(self.rows):
            if (row.workload, row.samples) not in alone:
                raise InputError(f"rows.{place}.samples", row.samples, f"a batch of {row.workload} on one device too")

    def alone(self, workload: str) -> list[Expected]:
        """Return a network's rows of one device that fit, by batch."""
        return [row for row in self.rows if (row.workload, row.processes, row.fits) == (workload, 1, True)]

    def saturation(self, workload: str) -> dict[str, float]:
        """Return a network's throughput on one device by batch, in percent of its highest."""
        rates = {f"{row.samples}": row.metrics.samples_per_s for row in self.alone(workload)}
        return {batch: 100 * rate / max(rates.values()) for batch, rate in rates.items()}

    def own(self, workload: str) -> Expected:
        """Return a network's row of one device whose batch is nearest its own."""
        samples = next(row.samples for row in self.rows if row.workload == workload and row.processes > 1)
        return min(self.alone(workload), key=lambda row: abs(row.samples - samples))

    def memory(self) -> dict[str, dict[str, float]]:
        """Return the parts of the peak of one device in bytes, of every network with its own batch."""
        names = dict.fromkeys(row.workload for row in self.rows)
        rows = [self.own(name) for name in names]
        return {
            f"{row.workload}, {row.samples}": {str(part): row.metrics.memory_bytes[part] for part in get_args(Part)}
            for row in rows
        }

    def utilisation(self, workload: str) -> dict[str, dict[str, float]]:
        """Return by batch how busy one device is and what it does of its peak while it is, in percent."""
        names = {"compute": "compute_utilisation", "arithmetic units": "tensor_utilisation"}
        rows = self.alone(workload)
        return {
            name: {f"{row.samples}": 100 * (getattr(row.metrics, held) or 0.0) for row in rows}
            for name, held in names.items()
        }

    def percent_of_linear(self) -> dict[str, dict[str, float]]:
        """Return `scaling` in percent."""
        return {links: {name: 100 * share for name, share in by.items()} for links, by in self.scaling.items()}

    @property
    def scaling(self) -> Mapping[str, Mapping[str, float]]:
        """By links, and network: throughput of all devices over that of as many alone."""
        own = {(r.workload, r.samples): r.metrics.samples_per_s for r in self.rows if r.processes == 1}
        found: dict[str, dict[str, float]] = {}
        for row in self.rows:
            if row.processes > 1:
                share = row.metrics.samples_per_s / row.processes / own[row.workload, row.samples]
                found.setdefault(row.links, {})[row.workload] = share
        return found


def read_expectations(path: Path) -> Expectations:
    """Return the expectations of a file; raises InputError for a wrong one."""
    return read(Expectations, load_mapping(path), str(path))


def write_expectations(path: Path, found: Expectations) -> None:
    """Write expectations whole or not at all, one a line, numbers with six digits."""
    write_listed(path, short(asdict(found)), "rows")
