"""Whole blocks and training steps that no fit has seen: predicted first, then measured, then compared."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

from rich import box
from rich.table import Table

from calibration.execute.busy import Busy, Drift, beside, drift_since, idle, nobody, steady
from calibration.execute.limits import Device, as_executed
from calibration.execute.measure import LEAST_STEPS, Measured, measure, measure_block
from calibration.execute.predict import Predicted, predict, predict_block
from calibration.execute.processes import ExecutionError
from calibration.guards import busy_words, drift, moved
from sim.costs.profile import profile_name
from sim.report.numbers import change
from sim.specs import Cluster, InputError, Model, Plan
from sim.specs.files import load_mapping, write_json
from sim.specs.plan import Offload
from sim.units import percent, seconds

if TYPE_CHECKING:
    from calibration.spot_check import SpotCheck

FILE = "hold-out.json"
SPAN_S: dict[Device, float] = {"cpu": 3.0, "cuda": 1.0}
MOST_STEPS = 200
"""Steps are measured for about so long: a neighbour on the same host disturbs a processor for a second or two, and the
shortest step should not be one of those."""
TRIES = 4
"""Measurements of a case on a machine that is not as it was; the one with the least drift counts."""
AGAIN_S = 120.0
"""Seconds after which no case is measured again: who has a machine that never rests should not wait for it."""


@dataclass(frozen=True)
class Case:
    """A block or a step of a small network under a plan."""

    name: str
    what: Literal["block", "step"]
    model: Model
    plan: Plan


@dataclass(frozen=True)
class Row:
    """A case's prediction beside its measurement.

    sentinel_ratio: how slow the machine was, by the calibration's; checked: kernels of the profile timed again just
    before (None: they were not); load: the share of the machine that others used meanwhile.
    """

    case: Case
    predicted: Predicted
    measured: Measured
    sentinel_ratio: float = 1.0
    checked: "SpotCheck | None" = None
    load: float = 0.0

    @property
    def interval_s(self) -> tuple[float, float]:
        """The 80 % interval (s), wider where the profile is of another machine."""
        return self.checked.widened(self.predicted.interval_s) if self.checked else self.predicted.interval_s

    @property
    def error(self) -> float:
        """Predicted over measured time, less 1."""
        return self.predicted.step_time_s / self.measured.step_time_s - 1

    @property
    def inside(self) -> bool:
        """Whether the measured time lies in the 80 % interval."""
        low, high = self.interval_s
        return low <= self.measured.step_time_s <= high

    @property
    def memory_error(self) -> float | None:
        """Predicted over measured peak of the fullest rank, less 1; None of a block."""
        if not (self.predicted.peak_memory_bytes and self.measured.peak_memory_bytes):
            return None
        return max(self.predicted.peak_memory_bytes) / max(self.measured.peak_memory_bytes) - 1

    @property
    def order_matches(self) -> bool:
        """Whether every process ran its passes in the order of the plan."""
        return self.predicted.order == self.measured.order

    def data(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return {
            "name": self.case.name,
            "predicted": self.predicted.figures(),
            "measured": asdict(self.measured),
            "error": self.error,
            "inside": self.inside,
            "memory_error": self.memory_error,
            "sentinel_ratio": self.sentinel_ratio,
            "load": self.load,
        }


SIZES: dict[Device, dict[str, tuple[tuple[int, ...], ...]]] = {
    "cpu": {  # hidden, layers, seq, vocab, micro-batch, global batch, processes
        "block": ((128, 1, 64, 1000, 8, 8, 1), (256, 1, 128, 1000, 4, 4, 1), (512, 1, 256, 1000, 2, 2, 1)),
        "step": (
            (128, 2, 64, 1000, 8, 8, 1),
            (256, 4, 128, 4000, 2, 4, 1),
            (512, 2, 64, 8000, 4, 8, 1),
            (512, 4, 256, 8000, 2, 2, 1),
            (128, 4, 128, 2000, 4, 8, 2),
            (256, 2, 128, 4000, 2, 8, 2),
        ),
    },
    "cuda": {
        "block": (
            (1024, 1, 1024, 32_000, 8, 8, 1),
            (2048, 1, 1024, 32_000, 8, 8, 1),
            (4096, 1, 2048, 32_000, 2, 2, 1),
            (1536, 1, 2048, 32_000, 4, 4, 1),
            (8192, 1, 1024, 32_000, 2, 2, 1),
        ),
        "step": (
            (512, 4, 512, 32_000, 8, 16, 1),
            (1024, 4, 1024, 32_000, 8, 8, 1),
            (2048, 4, 1024, 32_000, 4, 8, 1),
            (768, 12, 1024, 50_304, 8, 32, 1),
            (1024, 24, 1024, 50_304, 8, 16, 1),
            (4096, 2, 4096, 8_000, 2, 4, 1),
            (512, 16, 512, 50_304, 32, 32, 1),
            (1280, 6, 512, 32_000, 1, 8, 1),
            (1536, 8, 2048, 32_000, 4, 8, 1),
            (2048, 24, 1024, 50_304, 4, 16, 1),
            (3072, 4, 4096, 50_304, 1, 4, 1),
            (8192, 2, 2048, 8_000, 2, 4, 1),
        ),
    },
}
KNOBS: dict[Device, tuple[tuple[int, dict[str, Any]], ...]] = {
    "cpu": (),
    "cuda": (
        (1, {"recompute": "full"}),
        (1, {"recompute": "selective"}),
        (1, {"tempo": True}),
        (1, {"offload": Offload(optimizer=1.0)}),
        (2, {"offload": Offload(activations=1.0)}),
        (2, {"recompute": "full"}),
        (1, {"compiled": True}),
        (2, {"compiled": True}),
    ),
}
"""What of a plan else is executed, each with one of the sizes of a step, by its place."""
HEAD_DIM: dict[Device, int] = {"cpu": 64, "cuda": 128}


def cases(device: Device) -> Iterator[Case]:
    """Yield the cases of a kind of device: blocks, steps of one process, and on the CPU steps of two."""
    for what, sizes in SIZES[device].items():
        again = [(sizes[n], knobs) for n, knobs in KNOBS[device]] if what == "step" else []
        for (hidden, layers, seq, vocab, micro, batch, ranks), knobs in [*((size, {}) for size in sizes), *again]:
            model = Model(hidden=hidden, layers=layers, heads=hidden // HEAD_DIM[device], seq=seq, vocab=vocab)
            plan = Plan(
                dp=ranks,
                global_batch=batch,
                micro_batch=micro,
                precision="fp32" if device == "cpu" else "bf16",
                overlap_dp=False,
            )
            name = f"{what} h{hidden} s{seq} b{micro}" + (f" l{layers} v{vocab}" if what == "step" else "")
            name += f" x{batch // micro // ranks}" if batch > micro * ranks else ""
            name += f" dp{ranks}" if ranks > 1 else ""
            name += "".join(_worded(k, value) for k, value in knobs.items())
            yield Case(name, "block" if what == "block" else "step", model, as_executed(plan.but(**knobs)))


def _worded(knob: str, value: Any) -> str:
    kind = {"recompute": f" {value}", "offload": " activations" if getattr(value, "activations", 0.0) else ""}
    return f"{kind.get(knob, '')} {knob}"


def cluster_of(profile_folder: Path, device: Device, ranks: int) -> Cluster:
    """Return this machine with `ranks` devices, as the profile folder describes it."""
    described = profile_folder / "device.json"
    name = str(described) if described.is_file() else device
    return Cluster.of(name, nodes=1, gpus_per_node=ranks, domain_gpus=ranks, profile=profile_name(profile_folder))


def hold_out(
    profile_folder: Path,
    device: Device,
    *,
    steps: int = LEAST_STEPS,
    busy: Busy = nobody,
    done: Callable[[Row], None] = lambda row: None,
    failed: Callable[[Case, Exception], None] | None = None,
    resume: bool = False,
) -> list[Row]:
    """Return every case predicted from the profile and then measured over `steps` steps and `SPAN_S` seconds.

    All predictions are written to `hold-out.json` in the folder before anything is measured, and each row when it is
    there; `resume` leaves the rows that the file holds, with their predictions, and executes the other cases. Where a
    CPU's sentinel has moved since the calibration, a case is measured again, for `AGAIN_S` in all. `done` hears of
    every row; `failed` of a case that cannot be run here or whose processes fail, after which the next one is executed.

    Raises:
        InputError: the profile is missing or wrong; without `failed` also: a case cannot be run here.
        ExecutionError: the machine is busy; without `failed` also: a process failed.
    """
    file = profile_folder / FILE
    told, kept = executed(file) if resume and file.exists() else ({}, {})
    held = [case for case in cases(device) if case.name not in kept]
    predictions = [_predicted(case, profile_folder, device) for case in held]
    told |= {case.name: p.figures() for case, p in zip(held, predictions, strict=True)}
    write_json(file, {"predictions": told, "rows": list(kept.values())})
    rows, again = [], monotonic() + AGAIN_S
    drifted = drift_since(profile_folder / "session.json") if device == "cpu" else steady
    for case, predicted in zip(held, predictions, strict=True):
        idle(busy)
        try:
            rows.append(_row(case, predicted, device, steps, drifted, again))
        except (ExecutionError, InputError) as error:
            if failed is None:
                raise
            failed(case, error)
            continue
        write_json(file, {"predictions": told, "rows": [*kept.values(), *(row.data() for row in rows)]})
        done(rows[-1])
    return rows


def executed(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what such a file says of the cases that were executed, by name: their predictions, and their rows.

    Raises:
        InputError: it is no such file.
    """
    held = load_mapping(file)
    told, rows = held.get("predictions"), held.get("rows", [])
    if not isinstance(told, Mapping):
        raise InputError(f"{file.name}: predictions", type(told).__name__, "predictions by the names of cases")
    names = [str(row.get("name")) for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
    if not isinstance(rows, list) or len(names) < len(rows) or not set(names) <= set(told):
        raise InputError(
            f"{file.name}: rows", type(rows).__name__, "a list of rows, each named as one of the predictions"
        )
    return {name: told[name] for name in names}, dict(zip(names, rows, strict=True))


def _row(case: Case, predicted: Predicted, device: Device, steps: int, drifted: Drift, again: float) -> Row:
    """Return a case measured while the machine was as it should be, or with the least drift of `TRIES`; none begins
    after `again` but the first."""
    run = measure_block if case.what == "block" else measure
    enough = max(steps, min(MOST_STEPS, ceil(SPAN_S[device] / predicted.step_time_s)))
    rows: list[Row] = []
    while not rows or (len(rows) < TRIES and moved(rows[-1].sentinel_ratio) and monotonic() < again):
        before = drifted()
        measured, load = beside(lambda: run(case.model, case.plan, device, enough))
        rows.append(Row(case, predicted, measured, drift(1.0, before, drifted()), load=load))
    return min(rows, key=lambda row: abs(row.sentinel_ratio - 1))


def _predicted(case: Case, folder: Path, device: Device) -> Predicted:
    cluster = cluster_of(folder, device, case.plan.dp or 1)
    return (predict_block if case.what == "block" else predict)(case.model, cluster, case.plan, device)


def table(rows: list[Row]) -> Table:
    """Return the rows as a table, with how many measured times are inside their interval, and what others used."""
    headings = ("hold-out", "predicted", "80 % interval", "measured", "error", "inside", "memory error", "others")
    said = f"{sum(row.inside for row in rows)} of {len(rows)} inside; never fitted"
    busy = busy_words(max((row.load for row in rows), default=0.0))
    made = Table(*headings, box=box.SIMPLE, padding=(0, 1, 0, 0), caption=said + busy)
    for row in rows:
        low, high = row.interval_s
        memory = row.memory_error
        made.add_row(
            row.case.name,
            seconds(row.predicted.step_time_s),
            f"{seconds(low)} - {seconds(high)}",
            seconds(row.measured.step_time_s),
            change(row.error),
            "yes" if row.inside else "no",
            "-" if memory is None else change(memory, 2),
            percent(row.load),
        )
    return made
