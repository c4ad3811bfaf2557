"""`trainsim calibrate`: profiles from measurements."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from calibration.published.profiles import DATE, build, write
from calibration.published.run_level import ALL, fit_sets, write_sets
from calibration.published.tables import read_public
from sim.costs.profile import KernelModel, Profile
from sim.specs.fields import InputError
from sim.validation.table import is_runs, read_runs

MEASURES = ("mape", "median", "p90", "coverage90")

app = typer.Typer(help="Fit device profiles.", add_completion=False, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True, context_settings={"allow_interspersed_args": True})
def calibrate(
    *,
    files: Annotated[list[Path] | None, typer.Argument(help="Further files for --from.")] = None,
    first: Annotated[list[Path] | None, typer.Option("--from", help="CSV files of measurements.")] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of the profile folders.")] = Path("profiles"),
    only: Annotated[str | None, typer.Option("--only", help="Write this device's profile only.")] = None,
    date: Annotated[str, typer.Option("--date", help="Date that is recorded in the profiles.")] = DATE,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Fit public measurements (formats are recognised by header) and write a profile folder per device.

    Tables of measured training runs give run-level parameters instead.
    """
    progress = Console(stderr=True)
    paths = [*(first or []), *(files or [])]
    if not paths:
        raise InputError("--from", None, "one or more CSV files")
    if is_runs(paths[0]):
        _run_level(paths, out, as_json, progress)
        return
    with progress.status("reading"):
        public = read_public(paths)
    for name, why in public.set_aside.items():
        progress.print(f"{name}: not used, {why}", markup=False, soft_wrap=True)
    with progress.status("fitting"):
        profiles = build(public, only, date)
    written = write(profiles, out)
    if as_json:
        typer.echo(json.dumps(summary(profiles, written)))
    else:
        Console().print(table(profiles))


def _run_level(paths: list[Path], out: Path, as_json: bool, progress: Console) -> None:
    with progress.status("fitting run-level parameters, once without each source"):
        sets = fit_sets([row for path in paths for row in read_runs(path)])
    written = write_sets(sets, out)
    if as_json:
        typer.echo(json.dumps({"path": str(written), "sets": {name: asdict(held) for name, held in sets.items()}}))
        return
    names = list(asdict(sets[ALL].parameters))
    made = Table("parameter", *sets, box=box.SIMPLE, padding=(0, 1, 0, 0), caption=f"{written}; without each source")
    for name in names:
        made.add_row(name, *(f"{getattr(held.parameters, name):.3g}" for held in sets.values()))
    made.add_row("spread (log)", *(f"{held.sigma_log:.3g}" for held in sets.values()))
    Console().print(made)


def summary(profiles: list[Profile], paths: list[Path]) -> dict[str, Any]:
    """Return the command's JSON: every profile's path and the errors of its families."""
    return {
        "profiles": [
            {
                "name": p.name,
                "path": str(path),
                "estimate": p.estimate,
                "kernel_sigma_log": p.kernel_sigma_log,
                "scaling_sigma_log": p.scaling_sigma_log,
                "families": [_family(m) for m in p.models],
                "contention": [{k: getattr(c, k) for k in ("n_in", "n_out", "mape", "n")} for c in p.contention],
            }
            for p, path in zip(profiles, paths, strict=True)
        ]
    }


def _family(model: KernelModel) -> dict[str, Any]:
    errors = model.cross_validation
    return {
        "op": model.op,
        "direction": model.direction,
        "status": model.status,
        **{key: getattr(errors, key) if errors else None for key in MEASURES},
        "n": model.n_test,
    }


def table(profiles: list[Profile]) -> Table:
    """Return the errors of all families as a table."""
    headings = ("device", "kernel", "status", "mape %", "median", "p90", "cover90", "n")
    made = Table(*headings, box=box.SIMPLE, padding=(0, 1, 0, 0), caption="cross-validated errors in percent")
    for profile in profiles:
        for model in profile.models:
            row = _family(model)
            shown = [f"{row[k]:.2f}" if row[k] is not None else "-" for k in MEASURES]
            kernel = f"{model.op} {model.direction}"
            made.add_row(profile.name, kernel, model.status, *shown, str(model.n_test))
        for held in profile.contention:
            what = f"contention {held.n_in} x {held.n_out}"
            made.add_row(profile.name, what, "fitted", f"{held.mape:.2f}", "-", "-", "-", str(held.n))
    return made
