"""The errors of a profile's kernel families, as JSON and as a table."""

from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from sim.costs.profile import KernelModel, Profile

MEASURES = ("mape", "median", "p90", "coverage90")


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
