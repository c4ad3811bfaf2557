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
                "product_rates_flop_per_s": p.product_rates,
                "families": [_family(m) for m in p.models],
                "contention": [{k: getattr(c, k) for k in ("n_in", "n_out", "mape", "n")} for c in p.contention],
            }
            for p, path in zip(profiles, paths, strict=True)
        ]
    }


def _caption(profiles: list[Profile]) -> str:
    return "\n".join(["cross-validated errors in percent", *(f"{p.name}: {p.product_words}" for p in profiles)])


def _family(model: KernelModel) -> dict[str, Any]:
    errors = model.cross_validation
    return {
        "op": model.op,
        "direction": model.direction,
        "implementation": model.implementation,
        "status": model.status,
        **{key: getattr(errors, key) if errors else None for key in MEASURES},
        "n": model.n_test,
    }


def table(profiles: list[Profile]) -> Table:
    """Return the errors of all families as a table; below it how fast large products are."""
    headings = ("device", "kernel", "status", "mape %", "median", "p90", "cover90", "n")
    made = Table(*headings, box=box.SIMPLE, padding=(0, 1, 0, 0), caption=_caption(profiles))
    for profile in profiles:
        for model in profile.models:
            row = _family(model)
            shown = [f"{row[k]:.2f}" if row[k] is not None else "-" for k in MEASURES]
            made.add_row(profile.name, model.name, model.status, *shown, str(model.n_test))
        for held in profile.contention:
            what = f"contention {held.n_in} x {held.n_out}"
            made.add_row(profile.name, what, "fitted", f"{held.mape:.2f}", "-", "-", "-", str(held.n))
    return made
