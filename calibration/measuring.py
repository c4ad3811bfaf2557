"""The measuring half of `trainsim calibrate`: options in, a profile folder and its errors out."""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, cast

import typer
from rich import progress as bars
from rich.console import Console

from calibration.device import Kind
from calibration.errors import summary, table
from calibration.execute import holdout
from calibration.execute.busy import nobody, others
from calibration.execute.processes import ExecutionError
from calibration.folder import alone
from calibration.guards import BusyError
from calibration.kernels.family import Suite
from calibration.kernels.registry import FAMILIES
from calibration.measure import LostError, Progress
from calibration.measured import build_profile
from calibration.session import DEVICE_FILE, Request, measured, open_bench
from calibration.store import Session
from sim.costs.profile import Profile, profile_name
from sim.specs.fields import InputError
from sim.specs.files import print_json
from sim.units import many

KINDS = ("cpu", "cuda")
WIDTH = 120
BUDGETS = {"smoke": "300s", "full": "8m"}
WORKLOADS = "tbd"
"""The suite of whole networks, `calibration.workloads`."""

AGAIN = "--resume measures on, and what was disturbed once more"
"""What mends a session of a disturbed machine, or of too short a budget."""

LONGER = "--resume with more --budget measures on"

SCALE_S = {"s": 1.0, "m": 60.0, "h": 3600.0}


def measure_device(
    device: str,
    out: Path,
    suite: str,
    budget: str | None,
    seed: int | None,
    resume: bool,
    despite_load: bool,
    check: bool,
    as_json: bool,
) -> None:
    """Measure `device` into the profile folder `out` and print the errors of its kernel families.

    With `check`, blocks and training steps that no fit has seen are predicted, measured and compared.

    Raises:
        InputError: an option is wrong, or the folder holds another session, or another process measures into it.
        typer.Exit: with 1, the machine is busy or the device lost; the reason stands on stderr.
    """
    kind = cast("Kind", one_of("--device", device, KINDS))
    wanted = cast("Suite", one_of("--suite", suite, (*BUDGETS, WORKLOADS)))
    seconds = budget_s(budget or BUDGETS[wanted])
    chosen = None if seed is None else checked_seed(seed)
    with alone(out):
        _run(Request(kind, out, wanted, seconds, chosen, resume, despite_load), check, as_json)


def results_console() -> Console:
    """Return where tables of results are printed: wide where that is no terminal."""
    return Console(width=None if sys.stdout.isatty() else WIDTH, markup=False, emoji=False)


class Told(Protocol):
    """Results that say in lines what they hold."""

    def lines(self) -> Sequence[str]:
        """Return the lines."""


def tell_evidence(gather: Callable[[Path, float, Callable[[str], object]], Told], out: Path, budget: float) -> None:
    """Gather evidence into a file until the budget (s) is spent, and say on stderr what goes on and what came of it."""
    if budget <= 0:
        raise InputError("--budget", budget, "seconds above 0")

    def told(text: str) -> None:
        sys.stderr.write(text + "\n")

    for line in gather(out, budget, told).lines():
        told(line)


def one_of(option: str, value: str, allowed: tuple[str, ...]) -> str:
    """Return `value`, or raise InputError where it is not allowed."""
    if value not in allowed:
        raise InputError(option, value, "one of " + ", ".join(allowed))
    return value


def budget_s(text: str) -> float:
    """Return the seconds of a time such as `180s`, `8m` or `1.5h`.

    Raises:
        InputError: it is none, or not between a second and a day.
    """
    found = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)([smh])", text)
    seconds = float(found[1]) * SCALE_S[found[2]] if found else 0.0
    if not 1.0 <= seconds <= 86_400.0:
        raise InputError("--budget", text, "a time such as 180s, 8m or 1h, from 1s to 24h")
    return seconds


def checked_seed(seed: int) -> int:
    """Return `seed`, or raise InputError where it is not one."""
    if not 0 <= seed < 2**32:
        raise InputError("--seed", seed, f"a whole number from 0 to {2**32 - 1}")
    return seed


def _run(request: Request, check: bool, as_json: bool) -> None:
    progress = Console(stderr=True)
    try:
        with bar(progress) as shown:
            session = measured(request, FAMILIES, open_bench(request.device), shown)
    except (BusyError, LostError) as error:
        progress.print(f"not measured: {error}", markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        progress.print(f"{request.out} holds what was measured; --resume goes on", markup=False, soft_wrap=True)
        raise
    for skip in session.skipped:
        progress.print(f"{skip.id}: {skip.reason}", markup=False, soft_wrap=True)
    with progress.status("fitting") as status:
        profile = _fitted(request, session, status.update)
    if profile.disturbed_words:
        progress.print(f"{profile.disturbed_words}: {AGAIN}", markup=False, soft_wrap=True)
    rows = _checked(request, progress) if check else []
    if as_json:
        held = {"hold_out": [row.data() for row in rows]}
        print_json(measured_summary(session, profile, request.out) | held)
        return
    console = results_console()
    console.print(table([profile]))
    if rows:
        console.print(holdout.table(rows))
    progress.print(
        f"{many(session.measured, 'kernel')} measured, {session.flagged} of them flagged, "
        f"{len(session.skipped)} skipped, {session.left} left by the budget; "
        f"cluster: {{device: {request.out / DEVICE_FILE}, profile: {profile_name(request.out)}}}",
        markup=False,
        soft_wrap=True,
    )


def _fitted(request: Request, session: Session, told: Callable[[str], object]) -> Profile:
    """Return the profile of the session; where its samples are too few, the error says why they are."""
    try:
        return build_profile(request.out, told)
    except InputError as error:
        if error.path != "samples":
            raise
        why = f"{many(session.measured, 'kernel')} measured, {session.flagged} of them disturbed, {session.left} left"
        out = f"the budget of {session.budget_s:g} s ended first; {LONGER}" if session.left else AGAIN
        raise InputError(error.path, error.value, f"{error.allowed} ({why}): {out}") from None


@contextmanager
def ending(progress: Console, *failures: type[Exception]) -> Iterator[None]:
    """End the command with exit code 1 where what it measures fails for a reason of the machine, told in a line."""
    try:
        yield
    except failures as error:
        progress.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None


def _checked(request: Request, progress: Console) -> list[holdout.Row]:
    """Return hold-outs predicted and then measured; no more where the machine is busy, with the reason on stderr."""
    busy = nobody if request.despite_load else others
    rows: list[holdout.Row] = []
    try:
        with progress.status("hold-outs") as status:

            def done(row: holdout.Row) -> None:
                rows.append(row)
                status.update(f"hold-outs: {row.case.name}")

            def failed(case: holdout.Case, error: Exception) -> None:
                progress.print(f"hold-out {case.name} not measured: {error}", markup=False, soft_wrap=True)

            holdout.hold_out(request.out, request.device, busy=busy, done=done, failed=failed)
    except ExecutionError as error:
        progress.print(f"hold-outs not measured: {error}", markup=False, soft_wrap=True)
    return rows


def measured_summary(session: Session, profile: Profile, folder: Path) -> dict[str, Any]:
    """Return the JSON of a measurement: the profile's path and errors, and the counts of cases."""
    (fit,) = summary([profile], [folder / "profile.json"])["profiles"]
    return {
        **fit,
        "device": str(folder / DEVICE_FILE),
        "session": session.session,
        "measured": session.measured,
        "flagged": session.flagged,
        "skipped": len(session.skipped),
        "left": session.left,
        "skipped_cases": [asdict(skip) for skip in session.skipped],
    }


@contextmanager
def bar(console: Console) -> Iterator[Progress]:
    """Yield what shows the progress of a measurement on `console`."""
    columns = (bars.TextColumn("{task.description}"), bars.BarColumn(), bars.MofNCompleteColumn())
    with bars.Progress(*columns, bars.TimeElapsedColumn(), console=console, transient=True) as shown:
        task = shown.add_task("measuring", total=None)
        yield lambda done, total, text: shown.update(task, completed=done, total=total, description=text)
