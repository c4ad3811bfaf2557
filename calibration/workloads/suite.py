"""The benchmark from the first check of the machine to `tbd.json`: what is run, in which order, within which time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from calibration.device import DRIVER_NAMES, Fingerprint
from calibration.execute.holdout import cluster_of
from calibration.execute.limits import Device, lacking_compiler
from calibration.execute.processes import ExecutionError
from calibration.guards import BusyError, OutOfTime, admit, interruptible, within
from calibration.session import Bench
from calibration.store import commit
from calibration.workloads.metrics import LEAST_STEPS, metrics
from calibration.workloads.parallel import PROCESSES
from calibration.workloads.parallel import measure as measure_together
from calibration.workloads.predicted import predict
from calibration.workloads.registry import WORKLOADS
from calibration.workloads.results import FILE, Metrics, Results, Row, load_results, off, save_results
from calibration.workloads.training import DTYPES, Training
from calibration.workloads.workload import Size, Workload
from sim.costs.profile import load_profile
from sim.plans.facts import fitted_hash
from sim.specs import Cluster
from sim.specs.catalog import device
from sim.specs.fields import InputError

PRODUCT, TRIES = {"cpu": 1024, "cuda": 8192}, 20
"""Rows of the square product that tells an unknown device's peak rate, and how often it is timed."""

IMAGES, CHANNELS, PIXELS = 4, 64, 56
"""Of the convolution of 3 x 3 that tells it too: libraries of processors may be faster at these."""

Told = Callable[[int, int, str], None]
"""Hears how many rows are done, of how many, and which is next."""

Framework = Literal["eager", "compiled"]
Variant = tuple[Workload, Framework, int]


@dataclass(frozen=True)
class Request:
    """What to run into the folder `out`: a CPU runs the tiny sizes, a GPU the full ones (`size` says otherwise).

    samples: of a process's step, by default the workloads' own. seed: by default that of the results that are there, 0
    for new ones.

    base: a profile of the catalog, or a folder, that predicts; by default that in `out`, then the catalog's own.
    """

    out: Path
    budget_s: float = 480.0
    seed: int | None = None
    resume: bool = False
    despite_load: bool = False
    base: str | None = None
    size: Size | None = None
    samples: int | None = None
    workloads: tuple[str, ...] = tuple(WORKLOADS)


def variants(names: tuple[str, ...]) -> Iterator[Variant]:
    """Yield what is run: first every workload by itself, then on two processes, then compiled, which takes longest."""
    kinds: tuple[tuple[Framework, int], ...] = (("eager", 1), ("eager", PROCESSES), ("compiled", 1))
    for framework, processes in kinds:
        for name in names:
            yield WORKLOADS[name], framework, processes


def run(request: Request, bench: Bench, told: Told) -> tuple[Results, int]:
    """Run what is not done yet and return all results, and how many rows the time did not suffice for.

    A row that fails says why, and the next call with `resume` tries it again, as it does one that the end of the time
    cut short: compiling a network may take minutes. Predictions come when all that the time allows is measured: where a
    device is lent, they can wait until it is given back. Those of another profile than the present one are made again.

    Raises:
        InputError: the folder holds results and nothing says to resume, or those of another machine, size or seed.
        BusyError: others use the machine, and `despite_load` is not set.
        KeyboardInterrupt: also on SIGTERM; `tbd.json` holds every row that was done.
    """
    with interruptible():
        results = _opened(request, bench)
        every = list(variants(request.workloads))
        end, left = bench.tools.now() + request.budget_s, 0
        for n, variant in enumerate(every):
            workload, framework, processes = variant
            if results.done((workload.name, framework, processes)):
                continue
            if (time_s := end - bench.tools.now()) <= 0:
                left += 1
                continue
            told(n, len(every), f"{workload.name}, {framework}, {processes} process{'es' * (processes > 1)}")
            try:
                with within(time_s):
                    row = _row(results, variant)
            except OutOfTime:
                left += 1
                continue
            results = results.having(row)
            save_results(request.out, results)
            bench.tools.stopwatch.release()
        for row in results.rows:
            if row.predicted is None and not row.reason:
                results = results.having(_beside(row, request, results))
                save_results(request.out, results)
    return results, left


def _opened(request: Request, bench: Bench) -> Results:
    """Return the results that the folder holds, or new ones, on an idle machine."""
    size: Size = request.size or ("full" if bench.fingerprint.kind == "cuda" else "tiny")
    exists = (request.out / FILE).exists()
    if exists and not request.resume:
        raise InputError("--out", str(request.out), f"a folder without {FILE}; --resume goes on with one")
    held = load_results(request.out) if exists else None
    if held and (apart := held.fingerprint.differences(bench.fingerprint)):
        wanted = f"results of this machine and software; {', '.join(apart)} differ"
        raise InputError("--resume", str(request.out), wanted)
    if held and held.samples != request.samples:
        raise InputError("--samples", request.samples, f"{held.samples or 'left out'}, as for the results in --out")
    if held and held.size != size:
        raise InputError("--resume", str(request.out), f"results of the {size} sizes, not of the {held.size} ones")
    if held and request.seed not in (None, held.seed):
        raise InputError("--seed", request.seed, f"{held.seed}, as of the results in --out, or left out")
    busy = _busy(bench, request.despite_load)
    predictor = predicting(request, bench.fingerprint, 1)
    profile = str(predictor.profile) if predictor else ""
    sha256 = fitted_hash(load_profile(profile)) if profile else ""
    if held:
        return replace(held, despite_load=held.despite_load or busy).predicted_by(profile, sha256)
    try:
        request.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("--out", str(request.out), f"a folder that can be made ({error.strerror})") from None
    peak, source = peak_rate(bench)
    return Results(
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        commit=commit(),
        fingerprint=bench.fingerprint,
        size=size,
        samples=request.samples,
        seed=request.seed or 0,
        peak_flop_per_s=peak,
        peak_source=source,
        profile=profile,
        profile_sha256=sha256,
        despite_load=busy,
    )


def _busy(bench: Bench, despite_load: bool) -> bool:
    try:
        admit(bench.tools)
    except BusyError:
        if not despite_load:
            raise
        return True
    return False


def peak_rate(bench: Bench) -> tuple[float, str]:
    """Return the device's peak in the type that it trains in, FLOP/s, and where it is from.

    For GPUs of the catalog it is the catalog's, else the highest rate of a large product or convolution.
    """
    kind, known = bench.fingerprint.kind, DRIVER_NAMES.get(bench.fingerprint.name)
    if known:
        stated = device(known).peak_bf16_flop_per_s
        return stated.value, f"{known}: {stated.source}"
    n, dtype = PRODUCT[kind], DTYPES[kind]
    a = torch.ones(n, n, device=kind, dtype=dtype)
    images = torch.ones(IMAGES, CHANNELS, PIXELS, PIXELS, device=kind, dtype=dtype)
    weight = torch.ones(CHANNELS, CHANNELS, 3, 3, device=kind, dtype=dtype)
    runs: dict[str, tuple[float, Callable[[], object]]] = {
        f"a product of {n} x {n}": (2 * n**3, lambda: torch.mm(a, a)),
        f"a convolution of {CHANNELS} channels": (
            2 * images.numel() * CHANNELS * 9, lambda: torch.conv2d(images, weight, padding=1)
        ),
    }  # fmt: skip
    seconds = bench.tools.stopwatch.seconds
    rates = {name: work / min(seconds(run) for _ in range(TRIES)) for name, (work, run) in runs.items()}
    best = max(rates, key=lambda name: rates[name])
    return rates[best], f"measured: {best}, {str(dtype).removeprefix('torch.')}, the fastest of {TRIES}"


def predicting(request: Request, present: Fingerprint, processes: int) -> Cluster | None:
    """Return this machine as the simulator sees it: by the profile that is asked for, that in the folder, or the
    catalog's for such a device; None without any."""
    if request.base is None and (request.out / "profile.json").exists():
        return cluster_of(request.out, present.kind, processes)
    name = "cpu" if present.kind == "cpu" else DRIVER_NAMES.get(present.name)
    if name is None and request.base is None:
        return None
    nodes = {"nodes": 1, "gpus_per_node": processes, "domain_gpus": processes}
    return Cluster.of(name or str(request.base), profile=request.base or name, **nodes)


def _row(results: Results, variant: Variant) -> Row:
    """Return a variant measured, or why it is not."""
    workload, framework, processes = variant
    kind = results.fingerprint.kind
    about = Row(
        workload=workload.name,
        domain=workload.domain,
        paper=workload.paper,
        size=results.size,
        framework=framework,
        processes=processes,
        parameters=sum(p.numel() for p in workload.build(results.size).parameters()),
        samples=processes * (results.samples or workload.samples[results.size]),
        status="skipped",
    )
    if lacking := _lacking(kind, framework, processes):
        return replace(about, reason=lacking)
    try:
        found = _measured(results, variant)
    except (RuntimeError, ExecutionError, ValueError) as error:  # no memory, too few samples for a norm, a compiler's
        return replace(about, status="failed", reason=f"{type(error).__name__}: {error}"[:400])
    return replace(about, status="done", measured=found)


def _lacking(kind: Device, framework: str, processes: int) -> str:
    """Return what this machine lacks for a variant; empty for nothing."""
    if processes > 1 and kind == "cuda" and torch.cuda.device_count() < processes:
        return f"{processes} processes need {processes} CUDA devices; {torch.cuda.device_count()} here"
    return lacking_compiler(kind) if framework == "compiled" else ""


def _measured(results: Results, variant: Variant) -> Metrics:
    workload, framework, processes = variant
    kind, size, peak = results.fingerprint.kind, results.size, results.peak_flop_per_s
    if processes > 1:
        return measure_together(workload.name, size, kind, LEAST_STEPS, peak, results.seed, results.samples)
    training = partial(Training, workload, size, kind, results.seed, samples=results.samples)
    plain = training()
    if framework == "eager":
        return metrics(plain, peak)
    try:
        return metrics(training(compiled=True), peak, plain)
    finally:
        torch.compiler.reset()


def _beside(row: Row, request: Request, results: Results) -> Row:
    """Return a measured row with its prediction; without one where the simulator cannot follow, with the reason."""
    cluster = predicting(request, results.fingerprint, row.processes)
    if cluster is None or row.measured is None or row.framework != "eager":
        return row
    try:
        of = WORKLOADS[row.workload], row.size
        found = predict(*of, cluster, results.peak_flop_per_s, row.processes, results.samples)
    except InputError as error:
        return replace(row, reason=f"not predicted: {error}"[:400])
    return replace(row, predicted=found, off=off(row.measured, found))
