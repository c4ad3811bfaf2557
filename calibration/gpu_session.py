"""Everything that wants a GPU, in one go: `python -m calibration.gpu_session --device cuda --out DIR --lease 25`.

In order: the full calibration, the allocator's constants and the replay of a recorded snapshot, contention, the profile
of all that, plans executed against predictions written beforehand, tuned kernels of task mappings beside the vendor's
library, fused recurrent layers beside cuDNN's, Tempo's layers beside torch's, products in 8 bits and of experts, what
Megatron-Core's layers take to issue, and the networks of the benchmark, measured and predicted. Each step runs in a
process of its own under a time limit; what it returns is written to DIR/NAME.json and what it prints to DIR/NAME.log.
DIR/state.json says what is done: the same command again goes on from there, so that a lease of 25 minutes may also be
three calls of `--minutes 8`, one after the other. In a shorter lease every step gets less, in proportion: fewer samples
and some executed plans tell more than all samples and no plan. A step that fails, is missing or takes too long is
recorded, and the next one runs. At the end DIR/results.zip holds everything (at most 16 MiB).

To go on with a profile that is shipped, copy its folder to DIR/profile first.

A bare machine needs, beside Python 3.11 and what usually comes with torch on it (torch >= 2.11, numpy, scipy, sympy,
pyarrow, psutil, numba, typer, pyyaml, rich), only `pip install pydantic simpy`, and this checkout as the working
directory; nvidia-ml-py, where it is there, adds clocks, power and temperature. To add a step: one line in `STEPS`.
"""

import io
import json
import subprocess
import sys
import time
import traceback
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import uuid4

import psutil
import typer

from calibration.folder import LOCK, alone
from calibration.guards import interruptible
from sim.specs.fields import InputError, read, real, spec
from sim.specs.files import load_mapping, print_json, write_atomically, write_json

STATE, RESULTS, PROFILE = "state.json", "results.zip", "profile"
MOST_ZIP_BYTES = 16 * 2**20
LEAST_S = 20.0
"""With less time no step is started."""

LEASE = 25.0
"""Minutes of a machine for which the times of `STEPS` are meant: the first five fill it, the others come if these end
early."""

CLOSING_S = 15.0
"""Kept of a step's limit for starting Python and for writing what it measured; a step that is stopped has it to end."""

MISSING = 3
"""Exit status of a step whose code is not there."""

Status = Literal["done", "unfinished", "timed out", "failed", "missing", "left"]


@dataclass(frozen=True)
class Place:
    """Where a step works and how long it may: `limit_s` is the wall time it has."""

    device: Literal["cpu", "cuda"]
    folder: Path
    suite: Literal["smoke", "full"] = "full"
    limit_s: float = 0.0
    despite_load: bool = False

    @property
    def profile(self) -> Path:
        """The profile folder that the calibration fills."""
        return self.folder / PROFILE


@dataclass(frozen=True)
class Step:
    """One step: `run(place)` returns plain data; `minutes` of a lease of `LEASE` are its own, over several calls too.

    A result with a true `left` means that more time would give more. What `needs` other steps' results is done again
    when one of these has run since.
    """

    name: str
    minutes: float
    run: Callable[[Place], Any]
    needs: tuple[str, ...] = ()


def measure(place: Place) -> dict[str, Any]:
    """Measure the kernels of libraries (resumes) and return the counts."""
    return _measured(place, tuned=False)


def tuned(place: Place) -> dict[str, Any]:
    """Measure the kernels that are compiled and tuned for each size, which takes long, into the same samples."""
    return _measured(place, tuned=True)


def _measured(place: Place, tuned: bool) -> dict[str, Any]:
    session = import_module("calibration.session")
    links_s = 2 * session.LINKS_S if place.device == "cpu" else 0.0
    request = session.Request(
        device=place.device,
        out=place.profile,
        suite=place.suite,
        budget_s=max(place.limit_s - CLOSING_S - links_s, 1.0),
        resume=(place.profile / "session.json").exists(),
        despite_load=place.despite_load,
    )
    every = import_module("calibration.kernels.registry").FAMILIES
    families = [
        family for family in every if isinstance(family, import_module("calibration.kernels.gemm").TaskMapped) == tuned
    ]
    made = session.measured(request, families, session.open_bench(place.device), lambda *_: None)
    return {name: getattr(made, name) for name in ("session", "measured", "flagged", "left", "skipped")}


def profile(place: Place) -> dict[str, Any]:
    """Fit the samples and return the errors of every family."""
    made = import_module("calibration.measured").build_profile(place.profile)
    return dict(import_module("calibration.errors").summary([made], [place.profile / "profile.json"]))


def hold_out(place: Place) -> Any:
    """Execute small plans on the device against predictions that are written before; goes on with what is there, and
    with the other plans where one fails."""
    rows, lost = list[Any](), list[str]()

    def keep(row: Any) -> None:
        rows.append(row.data())
        write_result(place, "hold_out", {"result": rows})

    run = import_module("calibration.execute.holdout").hold_out
    told = {"done": keep, "failed": lambda case, error: lost.append(f"{case.name}: {error}")}
    run(place.profile, place.device, steps=20, resume=True, **told)
    if lost:
        raise RuntimeError("; ".join(lost))
    return rows


def contention(place: Place) -> Any:
    """Measure and fit how compute, collectives and copies slow each other down (`contention.csv` of the profile)."""
    profiled = place.profile / "session.json"
    session = load_mapping(profiled)["session"] if profiled.exists() else uuid4().hex[:16]
    seconds = place.limit_s - CLOSING_S
    place.profile.mkdir(exist_ok=True)
    made = import_module("calibration.concurrent").measure(place.profile, session, seconds, place.device)
    form = import_module("calibration.contention")
    return {"rows": len(made), "fitted": form.fit(made) if form.usable(made) else None}


def allocator(place: Place) -> Any:
    """Measure the allocator's constants (`memory.json` of the profile), and compare a replayed snapshot's peaks."""
    form = import_module("calibration.memory")
    found = form.session(place.device, place.folder / "allocator-trace.jsonl")
    place.profile.mkdir(exist_ok=True)
    write_json(place.profile / form.FILE, found)
    return found


def kernel_schedules(place: Place) -> Any:
    """Tune kernels of task mappings for shapes of training; compare with the vendor's library and all schedules."""

    def keep(found: Any) -> None:
        write_result(place, "kernel_schedules", {"result": found})

    return import_module("calibration.taskmap.gpu_check").check(place.device, place.limit_s - CLOSING_S, keep)


def recurrent_layers(place: Place) -> Any:
    """Hold fused recurrent layers against torch's: equality, choice of the layout, time beside cuDNN's."""

    def keep(found: Any) -> None:
        write_result(place, "recurrent_layers", {"result": found})

    return import_module("calibration.layers.lstm_check").check(place.device, place.limit_s - CLOSING_S, keep)


def tempo_layers(place: Place) -> Any:
    """Hold Tempo's layers against torch's: kernels and gradients beside fp64, bytes saved, time of a layer."""

    def keep(found: Any) -> None:
        write_result(place, "tempo_layers", {"result": found})

    return import_module("calibration.layers.tempo_check").check(place.device, place.limit_s - CLOSING_S, keep)


def products(place: Place) -> Any:
    """Time products in 8 bits beside 16, and those of experts in one kernel beside one after the other."""

    def keep(found: Any) -> None:
        write_result(place, "products", {"result": found})

    return import_module("calibration.products_check").check(place.device, place.limit_s - CLOSING_S, keep)


def issue_ratios(place: Place) -> Any:
    """Measure how much longer Megatron-Core's and compiled layers take to issue than plain ones, by this host."""
    form = import_module("calibration.issue_ratios")
    found: dict[str, Any] = {}
    for network in form.NETWORKS:
        try:
            found[network] = form.measure(network, place.device)
        except (InputError, RuntimeError) as error:  # Megatron-Core is not everywhere, nor what compiles
            found[network] = f"{type(error).__name__}: {error}"
        write_result(place, "issue_ratios", {"result": found})
    return found


def workloads(place: Place) -> Any:
    """Measure and predict the benchmark's networks (`tbd.json` of the profile); goes on with what is there."""
    suite = import_module("calibration.workloads.suite")
    session = import_module("calibration.session")
    request = suite.Request(
        out=place.profile,
        budget_s=max(place.limit_s - CLOSING_S, 1.0),
        resume=True,
        despite_load=place.despite_load,
        size="full" if place.suite == "full" else "tiny",
    )
    results, left = suite.run(request, session.open_bench(place.device), lambda *_: None)
    return {"results": results, "left": left}


STEPS = (
    Step("measure", 12.0, measure),
    Step("allocator", 2.0, allocator),
    Step("contention", 3.0, contention),
    Step("profile", 2.0, profile, needs=("measure", "allocator", "contention")),
    Step("hold_out", 6.0, hold_out),
    Step("kernel_schedules", 5.0, kernel_schedules),
    Step("recurrent_layers", 3.0, recurrent_layers),
    Step("tempo_layers", 2.0, tempo_layers),
    Step("products", 1.0, products),
    Step("issue_ratios", 1.0, issue_ratios),
    Step("tuned", 3.0, tuned),
    Step("workloads", 8.0, workloads),
)


@spec
class Record:
    """What came of a step so far; `seconds` over all calls."""

    status: Status
    seconds: Annotated[float, real(0.0, 1e6, "s")] = 0.0
    reason: str = ""
    at: str = ""


def shared_out(steps: Sequence[Step], lease: float) -> list[Step]:
    """Return the steps with their time of a lease of so many minutes, all calls together; a minute at least."""
    share = min(lease / LEASE, 1.0)
    return [replace(step, minutes=max(step.minutes * share, 1.0)) for step in steps]


Execute = Callable[[Step, Place], Record]
"""Runs one step within `place.limit_s`."""


def perform(
    steps: Sequence[Step], place: Place, minutes: float, execute: Execute, now: Callable[[], float] = time.monotonic
) -> dict[str, Record]:
    """Run the steps that are not done within `minutes`, keeping `state.json`; return what came of each."""
    end = now() + 60 * minutes - CLOSING_S
    state = load_state(place.folder)
    for step in steps:
        before = state.get(step.name, Record(status="left"))
        own_s = 60 * step.minutes - before.seconds
        limit_s = min(own_s, end - now())
        current = all(state[name].at <= before.at for name in step.needs if name in state)
        if (before.status == "done" and current) or own_s < LEAST_S:
            continue
        if limit_s >= LEAST_S:
            found = execute(step, replace(place, limit_s=limit_s))
            state[step.name] = _settled(found, before, own_s)
        else:
            state.setdefault(step.name, before)
        save_state(place.folder, state)
    return state


def _settled(found: Record, before: Record, own_s: float) -> Record:
    """Return the record of a step after one more run: with time of its own left, what was cut short goes on later."""
    status = found.status
    spare = own_s - found.seconds >= LEAST_S
    if status == "timed out" and spare:
        status = "unfinished"
    if status == "unfinished" and not spare:
        status = "done"
    at = datetime.now(UTC).isoformat()
    return Record(status=status, seconds=before.seconds + found.seconds, reason=found.reason, at=at)


def load_state(folder: Path) -> dict[str, Record]:
    """Return the records of `state.json`, none where there is no such file; raises InputError for a wrong one."""
    if not (folder / STATE).exists():
        return {}
    return {name: read(Record, held, f"{STATE}: {name}") for name, held in load_mapping(folder / STATE).items()}


def save_state(folder: Path, state: Mapping[str, Record]) -> None:
    """Write `state.json` whole."""
    write_json(folder / STATE, {name: asdict(held) for name, held in state.items()})


def in_process(step: Step, place: Place) -> int:
    """Run a step here, write DIR/NAME.json and return the exit status: 0, 1 (failed) or `MISSING`."""
    begin = time.monotonic()
    held: dict[str, Any]
    try:
        held = {"result": step.run(place)}
        status = 0
    except Exception as error:  # whatever goes wrong in a step is its result
        gone = isinstance(error, AttributeError | ModuleNotFoundError) and "calibration" in str(error)
        status = MISSING if gone else 1
        held = {"error": f"{type(error).__name__}: {error}", "where": traceback.format_exc()[-4_000:]}
    held["seconds"] = time.monotonic() - begin
    write_result(place, step.name, held)
    return status


def write_result(place: Place, name: str, held: Mapping[str, Any]) -> None:
    """Write DIR/NAME.json whole: what a step returned, or has so far."""
    write_atomically(place.folder / f"{name}.json", json.dumps(held, indent=1, default=_plain))


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


def command(step: Step, place: Place) -> list[str]:
    """Return the command of a process that runs one step."""
    options = ["--device", place.device, "--out", str(place.folder), "--suite", place.suite]
    limit = ["--only", step.name, "--limit", f"{place.limit_s:.0f}"]
    flags = ["--despite-load"] if place.despite_load else []
    return [sys.executable, "-m", "calibration.gpu_session", *options, *limit, *flags]


def separately(step: Step, place: Place, make: Callable[[Step, Place], list[str]] = command) -> Record:
    """Run a step in a process of its own, which is asked to end at the limit and killed `CLOSING_S` later."""
    result = place.folder / f"{step.name}.json"
    result.unlink(missing_ok=True)
    begin = time.monotonic()
    with (place.folder / f"{step.name}.log").open("a+b") as log:
        before = log.tell()
        process = subprocess.Popen(make(step, place), stdout=log, stderr=log)
        try:
            code: int | None = process.wait(place.limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
        log.seek(before)
        said = log.read().decode(errors="replace").strip().rpartition("\n")[2]
    seconds = time.monotonic() - begin
    if code is None:
        return Record(status="timed out", seconds=seconds, reason=f"stopped after {seconds:.0f} s")
    held = load_result(result)
    # A process that is refused, or dies, before its step begins writes no result: its last words say why.
    ended = "" if code == 0 else f"exit status {code}" + (f": {said}" if said else "")
    reason = str(held.get("error", ended))[:400]
    left = isinstance(held.get("result"), dict) and bool(held["result"].get("left"))
    status: Status = "missing" if code == MISSING else "failed" if code else "unfinished" if left else "done"
    return Record(status=status, seconds=seconds, reason=reason)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process that still runs: first asked, then killed."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(CLOSING_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def load_result(path: Path) -> dict[str, Any]:
    """Return what a step wrote, empty where it ended without writing."""
    try:
        return load_mapping(path)
    except InputError:
        return {}


def pack(folder: Path, most_bytes: int = MOST_ZIP_BYTES) -> list[str]:
    """Write `results.zip` with all files of `folder`, small ones first; return those for which there was no room."""
    held = (p for p in folder.rglob("*") if p.is_file() and p.name not in (RESULTS, LOCK))
    files = sorted(held, key=lambda p: p.stat().st_size)
    packed, left_out, room = io.BytesIO(), [], most_bytes - 4_096
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in files:
            name, content = path.relative_to(folder).as_posix(), path.read_bytes()
            room -= len(zlib.compress(content)) + 2 * len(name.encode()) + 200  # headers, in the directory too
            if room < 0:
                left_out.append(name)
            else:
                archive.writestr(name, content)
    write_atomically(folder / RESULTS, packed.getvalue())
    return left_out


def main(
    device: Annotated[str, typer.Option("--device", help="cuda or cpu.")],
    out: Annotated[Path, typer.Option("--out", help="Folder of results; the same again goes on.")],
    minutes: Annotated[float | None, typer.Option("--minutes", help="Wall time of this call, else the lease.")] = None,
    lease: Annotated[float, typer.Option("--lease", help="Minutes of the machine, all calls together.")] = LEASE,
    suite: Annotated[str, typer.Option("--suite", help="smoke or full.")] = "full",
    despite_load: Annotated[bool, typer.Option("--despite-load", help="Measure on a busy machine, flagged.")] = False,
    only: Annotated[str | None, typer.Option("--only", help="Run one step here, without a limit.")] = None,
    limit: Annotated[float, typer.Option("--limit", help="With --only: the seconds that the step has.")] = 600.0,
) -> None:
    """Run everything that wants a GPU; prints what came of each step as one JSON object."""
    if device not in ("cpu", "cuda"):
        raise InputError("--device", device, "one of cpu, cuda")
    if suite not in ("smoke", "full"):
        raise InputError("--suite", suite, "one of smoke, full")
    for option, value in (("--lease", lease), ("--minutes", minutes)):
        if value is not None and not 0 < value <= 1_440:
            raise InputError(option, value, "a number above 0, at most 1440")
    place = Place(device, out, suite, limit, despite_load)  # type: ignore[arg-type]
    if only is not None:
        named = {step.name: step for step in STEPS}
        if only not in named:
            raise InputError("--only", only, "one of " + ", ".join(named))
        started_s = time.time() - psutil.Process().create_time()
        with alone(place.profile):  # the folder itself is kept by the session that started this step
            raise typer.Exit(in_process(named[only], replace(place, limit_s=limit - started_s)))
    with alone(out):
        try:
            with interruptible():
                state = perform(shared_out(STEPS, lease), place, minutes or lease, separately)
        finally:
            left_out = pack(out)
    steps = {name: asdict(held) for name, held in state.items()}
    print_json({"steps": steps, "results": str(out / RESULTS), "left_out": left_out})


if __name__ == "__main__":
    try:
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        app.command()(main)
        app()
    except InputError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
