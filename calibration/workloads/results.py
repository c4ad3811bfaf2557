"""What the benchmark found, as `tbd.json` holds it: every workload measured, predicted, and how far off that is."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from calibration.device import Fingerprint
from sim.costs.fitted import short
from sim.plans.plan_file import Hash
from sim.specs.fields import InputError, read, real, spec, version_one, whole
from sim.specs.files import load_mapping, write_json

FILE = "tbd.json"
Text = Annotated[str, Field(max_length=2_000, description="text of at most 2000 characters")]
Seconds = Annotated[float, real(0.0, 1e6, "s")]
Share = Annotated[float, real(0.0, 1.0)]
Amount = Annotated[float, real(0.0, 1e18)]
Part = Literal["weights", "gradients", "activations", "workspace", "dynamic", "optimizer"]
Status = Literal["done", "skipped", "failed"]
SCALARS = (
    "step_time_s",
    "samples_per_s",
    "compute_utilisation",
    "tensor_utilisation",
    "cpu_utilisation",
    "flop",
    "peak_bytes",
)


@spec
class Metrics:
    """Of one training step, measured or predicted; None or empty: not known there.

    compute_utilisation: share of the time in which at least one kernel runs. tensor_utilisation: FLOP over what the
    device's peak would do in that time. cpu_utilisation: share of all cores. peak_bytes: of one process, what for in
    `memory_bytes`, which add up to it.
    """

    step_time_s: Seconds
    samples_per_s: Amount
    compute_utilisation: Share | None = None
    tensor_utilisation: Annotated[float, real(0.0, 100.0)] | None = None
    cpu_utilisation: Share | None = None
    flop: Amount | None = None
    peak_bytes: Amount | None = None
    memory_bytes: dict[Part, Amount] = field(default_factory=dict)

    @property
    def flop_per_s(self) -> float:
        """FLOP over the time of the step, 0 where they are not known."""
        return (self.flop or 0.0) / self.step_time_s

    def __post_init__(self) -> None:
        total = sum(self.memory_bytes.values())
        if self.memory_bytes and abs(total - (self.peak_bytes or 0.0)) > 1e-5 * total:
            raise InputError("memory_bytes", total, f"parts that add up to peak_bytes, {self.peak_bytes}")


@spec
class Row:
    """One workload under one framework (torch as it runs by itself, or compiled) on one or two processes.

    off: predicted over measured, less 1, by name; of memory `memory_bytes.PART`. reason: why there is no measurement.
    """

    workload: Text
    domain: Text
    paper: Text
    size: Literal["tiny", "full"]
    framework: Literal["eager", "compiled"]
    processes: Annotated[int, whole(1, 2)]
    parameters: Annotated[int, whole(1, 10**12)]
    samples: Annotated[int, whole(1, 10**9)]
    status: Status
    reason: Text = ""
    measured: Metrics | None = None
    predicted: Metrics | None = None
    off: dict[str, float] = field(default_factory=dict)

    @property
    def metrics(self) -> Metrics:
        """What was measured; raises ValueError where nothing was."""
        if self.measured is None:
            raise ValueError(f"{self.workload}: {self.reason or self.status}")
        return self.measured

    @property
    def key(self) -> tuple[str, str, int]:
        """What tells rows apart."""
        return self.workload, self.framework, self.processes


@spec
class Results:
    """The benchmark on one device.

    samples: of a process's step, None for each workload's own; seed: of weights and inputs; peak_source: where the peak
    rate is from; profile: what predicts, empty for none; profile_sha256: of the numbers in it, which a new fit changes.
    """

    schema_version: Annotated[int, version_one()] = 1
    date: Text
    commit: Text
    fingerprint: Fingerprint
    size: Literal["tiny", "full"]
    samples: Annotated[int, whole(1, 10**6)] | None = None
    seed: Annotated[int, whole(0, 2**32 - 1)] = 0
    peak_flop_per_s: Amount
    peak_source: Text
    profile: Text = ""
    profile_sha256: Hash | Literal[""] = ""
    despite_load: bool = False
    rows: Annotated[list[Row], Field(max_length=1_000, description="at most 1000 rows")] = field(default_factory=list)

    def done(self, key: tuple[str, str, int]) -> bool:
        """Return whether a row need not be run again: it is measured, or cannot be here."""
        return any(row.key == key and row.status != "failed" for row in self.rows)

    def having(self, row: Row) -> "Results":
        """Return the results with a row, in place of one of its key."""
        return replace(self, rows=list({**{r.key: r for r in self.rows}, row.key: row}.values()))

    def predicted_by(self, profile: str, sha256: str) -> "Results":
        """Return the results with the predictions of this profile, without any where another one made them."""
        if (self.profile, self.profile_sha256) == (profile, sha256):
            return self
        rows = [replace(row, predicted=None, off={}, reason="") if row.measured else row for row in self.rows]
        return replace(self, profile=profile, profile_sha256=sha256, rows=rows)

    def measured(self, framework: str = "eager", processes: int = 1) -> dict[str, Row]:
        """Return the measured rows of a kind by network."""
        kind = framework, processes
        return {r.workload: r for r in self.rows if (r.framework, r.processes) == kind and r.measured}

    def over(self, name: str) -> dict[str, float]:
        """Return a predicted number over the measured one by network, one process without a compiler."""
        return {workload: 1 + row.off[name] for workload, row in self.measured().items() if name in row.off}

    def gains(self) -> dict[str, dict[str, float]]:
        """Return the throughput of compiled networks and of two processes over that of one without a compiler."""
        plain, kinds = self.measured(), {"compiled": ("compiled", 1), "two processes": ("eager", 2)}
        return {
            kind: {
                name: row.metrics.samples_per_s / plain[name].metrics.samples_per_s
                for name, row in self.measured(*which).items()
                if name in plain
            }
            for kind, which in kinds.items()
        }

    def utilisations(self) -> dict[str, dict[str, float]]:
        """Return the three measured utilisations by network, in percent."""
        names = {"compute": "compute_utilisation", "arithmetic units": "tensor_utilisation", "cores": "cpu_utilisation"}
        return {
            name: {workload: 100 * (getattr(row.metrics, field) or 0.0) for workload, row in self.measured().items()}
            for name, field in names.items()
        }

    def memory(self) -> dict[str, dict[str, float]]:
        """Return the parts of the peaks in bytes, measured and predicted, those of a network one after the other."""
        return {
            f"{workload}, {told}": {part: found.memory_bytes.get(part, 0.0) for part in get_args(Part)}
            for workload, row in self.measured().items()
            for told, found in (("measured", row.measured), ("predicted", row.predicted))
            if found and found.memory_bytes
        }


def off(measured: Metrics, predicted: Metrics) -> dict[str, float]:
    """Return predicted over measured, less 1, of everything that both know."""
    pairs = {name: (getattr(measured, name), getattr(predicted, name)) for name in SCALARS}
    parts: Mapping[Any, float] = predicted.memory_bytes
    pairs |= {f"memory_bytes.{part}": (size, parts.get(part)) for part, size in measured.memory_bytes.items()}
    return {name: here[1] / here[0] - 1 for name, here in pairs.items() if here[0] and here[1] is not None}


def load_results(folder: Path) -> Results:
    """Return the results in a folder.

    Raises:
        InputError: there are none, or a field of them is wrong.
    """
    return read(Results, load_mapping(folder / FILE), FILE)


def save_results(folder: Path, results: Results) -> None:
    """Write `tbd.json` whole, numbers with six digits."""
    plain = asdict(results) | {"fingerprint": results.fingerprint.plain()}
    write_json(folder / FILE, short(plain))


def largest(memory: Mapping[Any, float]) -> str:
    """Return the part that takes the most bytes; empty where none is known."""
    return str(max(memory, key=lambda part: memory[part])) if memory else ""


def counts(rows: Sequence[Row]) -> dict[str, int]:
    """Return how many rows ended how."""
    return {status: sum(row.status == status for row in rows) for status in ("done", "skipped", "failed")}
