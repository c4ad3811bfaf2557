"""`trainsim calibrate --suite tbd`: options in, the benchmark's results as a table or one JSON object out."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from calibration.folder import alone
from calibration.guards import BusyError
from calibration.measuring import KINDS, bar, budget_s, checked_seed, one_of, results_console
from calibration.session import open_bench
from calibration.spot_check import spot_check
from calibration.workloads.results import FILE, Metrics, Results, counts, largest
from calibration.workloads.suite import Request, run
from calibration.workloads.workload import SIZES, Size
from sim.report.numbers import change
from sim.specs.fields import InputError
from sim.specs.files import print_json
from sim.units import digits3, percent, si

BUDGET = "8m"
MOST_SAMPLES = 4_096


def measure_workloads(
    device: str,
    out: Path,
    budget: str | None,
    seed: int | None,
    resume: bool,
    despite_load: bool,
    base: str | None,
    as_json: bool,
    size: str | None = None,
    samples: int | None = None,
) -> None:
    """Run the benchmark on `device` and print it; `base` names the profile that predicts.

    size: tiny or full, by default the device's; samples: of a process's step, by default each network's own.

    Raises:
        InputError: an option is wrong, or the folder holds other results, or another process measures into it.
        typer.Exit: with 1, the machine is busy; the reason stands on stderr.
    """
    kind = one_of("--device", device, KINDS)
    chosen = None if size is None else cast(Size, one_of("--size", size, SIZES))
    if samples is not None and not 1 <= samples <= MOST_SAMPLES:
        raise InputError("--samples", samples, f"1 to {MOST_SAMPLES}")
    drawn = None if seed is None else checked_seed(seed)
    request = Request(out, budget_s(budget or BUDGET), drawn, resume, despite_load, base, chosen, samples)
    progress = Console(stderr=True)
    try:
        with alone(out), bar(progress) as shown:
            results, left = run(request, open_bench("cuda" if kind == "cuda" else "cpu"), shown)
    except BusyError as error:
        progress.print(f"not measured: {error}", markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        progress.print(f"{out} holds what was measured; --resume goes on", markup=False, soft_wrap=True)
        raise
    checked = spot_check(results.profile) if kind == "cpu" and results.profile else None
    if as_json:
        print_json(summary(results, out, left) | {"spot_check": checked.data() if checked else None})
        return
    results_console().print(table(results))
    for row in results.rows:
        if row.reason:
            name = f"{row.workload}, {row.framework}, {row.processes}: {row.status}"
            progress.print(f"{name}, {row.reason}", markup=False, soft_wrap=True)
    for line in checked.lines("--base") if checked else ():
        progress.print(line, markup=False, soft_wrap=True)
    told = ", ".join(f"{n} {status}" for status, n in counts(results.rows).items())
    progress.print(f"{told}, {left} left by the budget; {out / FILE}", markup=False, soft_wrap=True)


def summary(results: Results, folder: Path, left: int) -> dict[str, Any]:
    """Return the command's JSON: where the results are, all of them, and how many rows ended how."""
    plain = asdict(results) | {"fingerprint": results.fingerprint.plain()}
    return {"path": str(folder / FILE), **plain, **counts(results.rows), "left": left}


def table(results: Results) -> Table:
    """Return every row that was measured: rates with their predictions, utilisations, and the memory at the peak."""
    headings = (
        "workload",
        "framework",
        "samples/s",
        "predicted",
        "off",
        "compute",
        "tensor",
        "cpu",
        "peak",
        "predicted",
        "largest part",
    )
    caption = f"{results.size} sizes on {results.fingerprint.name}; predicted by {results.profile or 'no profile'}"
    made = Table(*headings, box=box.SIMPLE, padding=(0, 1, 0, 0), caption=caption)
    for row in results.rows:
        if row.measured is None:
            continue
        found, said = row.measured, row.predicted
        name = row.framework + (f" x{row.processes}" if row.processes > 1 else "")
        rates = (digits3(found.samples_per_s), digits3(said.samples_per_s) if said else "-")
        error = change(row.off["samples_per_s"], 0) if "samples_per_s" in row.off else "-"
        shares = (found.compute_utilisation, found.tensor_utilisation, found.cpu_utilisation)
        used = ("-" if share is None else percent(share) for share in shares)
        part = largest(found.memory_bytes)
        part = f"{part} {percent(found.memory_bytes[part] / (found.peak_bytes or 1))}" if part else "-"  # type: ignore[index]
        made.add_row(row.workload, name, *rates, error, *used, _peak(found), _peak(said if part != "-" else None), part)
    return made


def _peak(found: Metrics | None) -> str:
    return si(found.peak_bytes, "B") if found and found.peak_bytes else "-"
