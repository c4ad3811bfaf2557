"""Run-level parameters of the user's own cluster, from a few earlier runs on it, beside the profile of its kernels."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from calibration.folder import alone
from sim.catalog import names
from sim.costs.learned import FILE as LEARNED
from sim.costs.profile import load_profile, profile_name, profile_text
from sim.costs.run_level import SITE, RunLevelSet, Site, on_own_links, read_site, run_level
from sim.specs.fields import InputError
from sim.specs.files import json_text, print_json, write_all
from sim.units import many
from sim.validation.jobs import read_cases
from sim.validation.metrics import Floats
from sim.validation.predict import by_halves, fit_site, log_errors
from sim.validation.validate import Reason

ENOUGH = 3
"""Runs that told others of their site better than other sites' did; of one alone SimuMax's were told worse (README)."""


@dataclass(frozen=True)
class Fitted:
    """What was fitted, and what speaks for it.

    runs: of them fitted; before: log errors by the run-level parameters so far, a number a run; left_out: of each half
    by those fitted to the other, empty where all runs are of one group; skipped: runs that cannot be predicted.
    """

    site: RunLevelSet
    before: Floats
    left_out: Floats
    skipped: tuple[Reason, ...]
    device: str


def calibrate_site(tables: Sequence[Path], out: Path, base: str) -> Fitted:
    """Write `out`/site.json: run-level parameters that fit the runs of `read_cases`, beside the profile `base`.

    Whatever takes `out` as its profile then predicts with them; `out` may be the folder `base` itself.

    Raises:
        InputError: no run with a step time that can be predicted; runs of several devices, or of a processor; `base` is
            no profile; `out` holds another profile, or cannot be written.
    """
    try:
        profile = load_profile(base)
    except InputError as error:
        raise InputError("--base", base, error.allowed) from None
    held, skipped = read_cases(tables, base)
    cases = [case for case in held if "time" in case.row.uses]
    devices = sorted({case.cluster.device for case in cases})
    if len(devices) != 1:
        told = ", ".join(devices) or (f"{len(skipped)} runs that cannot be predicted" if skipped else "no run")
        why = f" ({skipped[0].reason})" if skipped else ""
        raise InputError("--from", told, f"runs of one cluster with use_for = time and a step time{why}")
    if cases[0].cluster.hardware.on_host:
        allowed = "runs on GPUs: those on a processor are predicted by its kernels (execute --learn corrects them)"
        raise InputError("--from", devices[0], allowed)
    found = fit_site(cases)
    # The runs have tested this profile, whatever its cluster's device file calls the device.
    found = replace(found, devices=tuple(sorted({*found.devices, profile.name})))
    before = log_errors(cases, _so_far(base, cases[0].row.source).parameters)
    left_out = np.concatenate([*by_halves(cases), np.zeros(0)])
    with alone(out):
        _write(out, base, profile_text(profile), found, tuple(sorted({case.digest for case in cases})))
    return Fitted(found, before, left_out, tuple(skipped), devices[0])


def _so_far(base: str, source: str) -> RunLevelSet:
    try:
        held = read_site(base)
    except InputError:  # damaged, or of another profile: what is fitted now takes its place
        held = None
    return held or on_own_links(run_level(source), [base])


def _write(out: Path, base: str, profile: str, found: RunLevelSet, runs: tuple[str, ...]) -> None:
    """Write the profile, what executed plans have taught the base, with which the runs were predicted, and the site."""
    held, own = out / "profile.json", Path(base) / "profile.json"
    try:
        of_folder = base not in names("profiles") and own.exists()
        text = own.read_bytes() if of_folder else profile.encode()  # as it is: corrections are of its very fields
        learned = _bytes(own.with_name(LEARNED)) if of_folder else None
        if held.exists() and not (of_folder and held.samefile(own)):
            now = held.read_bytes()
            if now not in (text, profile.encode()):
                raise InputError("--out", str(out), f"a folder without another profile than {base} (or --base {out})")
            if _bytes(out / LEARNED) not in (None, learned):
                allowed = f"a folder without another {LEARNED} than {base} has (or --base {out})"
                raise InputError("--out", str(out), allowed)
        site = Site(profile_sha256=sha256(text).hexdigest(), run_level=found, runs=runs)
        taught = {} if learned is None else {out / LEARNED: learned}
        write_all({held: text, **taught, out / SITE: json_text(asdict(site))})
    except OSError as error:
        raise InputError("--out", str(out), f"a folder that can be written ({error.strerror})") from None


def _bytes(file: Path) -> bytes | None:
    return file.read_bytes() if file.exists() else None


def left_behind(out: Path, base: str) -> list[str]:
    """Return what was fitted to or learned from `base` and says nothing of another profile just written to `out`."""
    return [line for line in (_to_fit_again(out, base), _to_learn_again(out, base)) if line]


def _to_learn_again(out: Path, base: str) -> str:
    try:
        taught = load_profile(profile_name(out)).learned
        folders = [out] if not base or base in names("profiles") else [out, Path(base)]
    except InputError:
        taught, folders = None, [out]
    held = [folder / LEARNED for folder in folders if (folder / LEARNED).is_file()]
    if not held or (taught and not taught.off):
        return ""
    return f"{held[0]} was learned from another profile, and corrects no prediction of this one"


def _to_fit_again(out: Path, base: str) -> str:
    name = profile_name(out)
    try:
        if read_site(name):
            return ""
        held = Path(base) / SITE if base and base not in names("profiles") else Path()
    except InputError:
        held = out / SITE
    if not held.is_file():
        return ""
    again = f"trainsim calibrate --from RUNS.csv --base {name} --out {out}"
    return f"{held} was fitted to another profile: `{again}` fits the runs to this one"


def _percent(logs: Floats) -> float:
    return 100 * float(np.mean(np.abs(np.exp(logs) - 1)))


def site_command(tables: Sequence[Path], out: Path, base: str, as_json: bool) -> None:
    """Do what `trainsim calibrate --from RUNS --base PROFILE` does: fit, write, and tell how far the runs are off."""
    progress = Console(stderr=True)
    with progress.status("fitting run-level parameters"):
        found = calibrate_site(tables, out, base)
    of = many(len(found.before) + len(found.skipped), "run")
    for reason, runs in Counter(each.reason for each in found.skipped).most_common():
        progress.print(f"{runs} of {of} not used: {reason}", markup=False, soft_wrap=True)
    errors: dict[str, Any] = {
        "runs": len(found.before),
        "before_mape": _percent(found.before),
        "other_half_mape": _percent(found.left_out) if len(found.left_out) else None,
    }
    if as_json:
        print_json({"path": str(out / SITE), "device": found.device, "site": asdict(found.site), "errors": errors})
        return
    made = Table("parameter", "shipped", "site", box=box.SIMPLE, padding=(0, 1, 0, 0), caption=str(out / SITE))
    shipped = asdict(run_level().parameters)
    for name, value in asdict(found.site.parameters).items():
        made.add_row(name, f"{shipped[name]:.3g}", f"{value:.3g}")
    made.add_row("spread (log)", f"{run_level().sigma_log:.3g}", f"{found.site.sigma_log:.3g}")
    Console(markup=False, emoji=False).print(made)
    halves = f", {errors['other_half_mape']:.1f} % by those fitted to the other half" if len(found.left_out) else ""
    told = f"{many(len(found.before), 'run')}: {errors['before_mape']:.1f} % off by the parameters so far{halves}"
    progress.print(told, markup=False, highlight=False, soft_wrap=True)
    if len(found.before) < ENOUGH:
        progress.print(f"fewer than {ENOUGH} runs may mislead: one of them may be odd", markup=False)
    job = f"cluster: {{device: {found.device}, profile: {profile_name(out)}}}"
    progress.print(job, markup=False, highlight=False, soft_wrap=True)
