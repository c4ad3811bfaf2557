"""One calibration from the first check of the machine to the profile folder."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from calibration import collectives, neighbours
from calibration.cuda import Cuda
from calibration.device import Fingerprint, Kind, cpu_fingerprint, cuda_fingerprint, device_file, highest_rates, machine
from calibration.folder import made
from calibration.guards import MOST_OTHERS, BusyError, admit, interruptible, settled
from calibration.host import host_instruments
from calibration.instruments import Instruments, usable_cores
from calibration.kernels.family import Family, Suite
from calibration.measure import Progress, Sampler, order
from calibration.store import SAMPLES, SESSION, Session, Store, load_session, new_session
from calibration.timing import METHODS
from sim.specs.fields import InputError
from sim.specs.files import DRAFT, write_atomically

DEVICE_FILE = "device.json"
LINKS_S = 20.0
"""Seconds for collectives, and again for kernels side by side, beyond the budget of the kernels."""

THREADS = 1
"""Threads of a CPU kernel (spec: with two, the times of a shared machine mean nothing)."""


@dataclass(frozen=True)
class Bench:
    """A device that is ready to be measured.

    `links` returns rows of its collectives, and kernels of several of its processes at a time, in so many seconds each.
    """

    fingerprint: Fingerprint
    tools: Instruments
    links: Callable[[float], Sequence[Mapping[str, Any]]] = lambda seconds: ()


@dataclass(frozen=True)
class Request:
    """What to measure into the folder `out`: `resume` goes on with the session in it, within another `budget_s`.

    seed: of a new session, 0 by default; one that goes on keeps its own.
    """

    device: Kind
    out: Path
    suite: Suite = "smoke"
    budget_s: float = 300.0
    seed: int | None = None
    resume: bool = False
    despite_load: bool = False


def open_bench(device: Kind) -> Bench:
    """Return the CPU, held to one thread, or CUDA device 0.

    Raises:
        InputError: torch finds no CUDA device.
    """
    if device == "cpu":
        present = cpu_fingerprint(THREADS)
        return Bench(present, host_instruments(THREADS), side_by_side if usable_cores() > 1 else lambda seconds: ())
    if not torch.cuda.is_available():
        raise InputError("--device", device, "cpu; torch finds no CUDA device here")
    cuda = Cuda()
    torch.cuda.set_stream(torch.cuda.Stream())  # type: ignore[no-untyped-call] # the default one cannot be captured
    return Bench(cuda_fingerprint(cuda), cuda.instruments())


def measured(request: Request, families: Sequence[Family], bench: Bench, progress: Progress) -> Session:
    """Measure `families` into `request.out` (samples, session and device file) and return the session.

    Raises:
        InputError: the folder holds samples and nothing says to resume, or those of another machine or seed.
        BusyError: others use the machine, and `despite_load` is not set.
        LostError: the device fails case after case.
        KeyboardInterrupt: also on SIGTERM; what was measured is in the folder, whole.
    """
    with interruptible():
        session = _opened(request, bench.fingerprint)
        busy = _busy(bench.tools, request.despite_load)
        made(request.out)
        for draft in request.out.glob(f"{DRAFT}*"):  # of a session that was killed while it wrote
            draft.unlink()
        store = Store(request.out)
        if any(row["session"] != session.session for row in store.rows.values()):
            raise InputError(
                "--resume", str(request.out / SAMPLES), f"samples of the session that {SESSION} is of alone"
            )
        warm_s = settled(bench.tools)
        session = replace(session, sentinel_s=session.sentinel_s or warm_s, despite_load=session.despite_load or busy)
        session.save(request.out)
        held = machine(bench.fingerprint)
        sampler = Sampler(
            machine=held,
            method=METHODS[held.kind],
            tools=bench.tools,
            store=store,
            stamp={"session": session.session, "commit": session.commit},
            budget_s=request.budget_s,
            reference_s=session.sentinel_s,
            seed=session.seed,
            flag_all=busy,
            fixed=session.despite_load,
            progress=progress,
            settled=lambda seconds: replace(session, sentinel_s=seconds).save(request.out),
        )
        tasks = order(families, held, request.suite, session.seed)
        try:
            sampler.run(tasks)
            _add_links(store, bench, {"session": session.session, "commit": session.commit}, session.despite_load)
        finally:  # what an interruption leaves is counted too
            found = sampler.outcome(tasks)
            session = replace(
                session,
                sentinel_s=sampler.reference_s,
                measured=len(store.rows),
                flagged=store.flagged,
                left=found.left,
                skipped=found.skipped,
            )
            session.save(request.out)
        rates = highest_rates(store.rows.values(), bench.fingerprint.l2_bytes)
        write_atomically(
            request.out / DEVICE_FILE, json.dumps(device_file(bench.fingerprint, rates, session.date), indent=1)
        )
    return session


def side_by_side(seconds: float) -> list[dict[str, Any]]:
    """Return gloo's collectives between two processes of this machine, and kernels on all cores, as rows of samples."""
    found = [made.row for made in collectives.measure(2, budget_s=seconds)[0]]
    return found + [made.row for made in neighbours.measure(usable_cores(), budget_s=seconds)]


def _add_links(store: Store, bench: Bench, stamp: Mapping[str, str], busy: bool) -> None:
    """Measure collectives once a session, and again where all that is held is flagged."""
    if any(row["op"] == "collective" and not row["flagged"] for row in store.rows.values()):
        return
    flagged = busy or bench.tools.load.others() > MOST_OTHERS  # before: the processes to be measured are others too
    rows = bench.links(LINKS_S)
    readings = asdict(bench.tools.sensors.read())
    for row in rows:
        at = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        store.add({**row, **readings, **stamp, "sentinel_ratio": 1.0, "flagged": flagged, "at": at})
    store.write()


def _opened(request: Request, present: Fingerprint) -> Session:
    """Return the session that the folder holds, or a new one."""
    if not request.resume:
        taken = [name for name in (SESSION, SAMPLES) if (request.out / name).exists()]
        if taken:
            raise InputError("--out", str(request.out), f"a folder without {taken[0]}; --resume goes on with one")
        return new_session(
            fingerprint=present,
            method=METHODS[present.kind].text,
            suite=request.suite,
            seed=request.seed or 0,
            budget_s=request.budget_s,
        )
    session = load_session(request.out)
    apart = session.fingerprint.differences(present)
    if apart:
        was, now = (getattr(f, apart[0]) for f in (session.fingerprint, present))
        wanted = f"a session of this machine and software; {', '.join(apart)} differ: {apart[0]} was {was}, is {now}"
        raise InputError("--resume", str(request.out), wanted)
    if request.seed not in (None, session.seed):
        raise InputError("--seed", request.seed, f"{session.seed}, as of the session in --out, or left out")
    return replace(session, suite=request.suite, budget_s=session.budget_s + request.budget_s)


def _busy(tools: Instruments, despite_load: bool) -> bool:
    """Return whether others use the machine; refuse where that was not asked for."""
    try:
        admit(tools)
    except BusyError:
        if not despite_load:
            raise
        return True
    return False
