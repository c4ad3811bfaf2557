"""`trainsim cluster`: jobs that share a cluster of different devices."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import isnan
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sim.cli.output import console, progress_console
from sim.cluster.generator import generate
from sim.cluster.importers import imported_log
from sim.cluster.jobs import ClusterJob
from sim.cluster.policies import POLICIES
from sim.cluster.policies import policy as policy_named
from sim.cluster.policies.base import Policy
from sim.cluster.policies.hierarchical import Hierarchical
from sim.cluster.pop import Pop
from sim.cluster.predicted import is_workload, predicted_throughputs, read_workload
from sim.cluster.results import Simulated
from sim.cluster.sensitivity import Sensitivity, sensitivity
from sim.cluster.simulate import Rounds, simulate
from sim.cluster.throughput_files import read_throughputs
from sim.cluster.throughputs import Throughputs
from sim.cluster.trace import read_trace
from sim.report.cluster import answer_cluster, answer_sensitivity, answer_split
from sim.specs import InputError
from sim.specs.files import print_json

TYPES = ("v100", "p100", "k80")
"""What the numbers of `--cluster V:P:K` count."""

OPTION_OF = {
    "devices": "--cluster",
    "kind": "--policy",
    "mean_interarrival_s": "--every-s",
    "usd_per_hour": "--usd-per-gpu-hour",
}
"""Options that fill fields of other names."""

CHECK_EVERY = 20
"""Allocations between two that are solved as one too, to tell what a split problem loses."""

app = typer.Typer(
    help="Simulate jobs that share a cluster of different devices.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
THROUGHPUTS = typer.Option(help="Steps/s by job and device: JSON, CSV, YAML, or a workload to predict.")
TRACE = typer.Option(help="Jobs: a 10-column trace, output of sacct --parsable2, or a CSV of Kueue.")
JOBS = typer.Option(min=1, max=10_000_000, help="Draw so many jobs instead (with --window: without end).")
EVERY = typer.Option("--every-s", "--every", min=0, help="Mean seconds between drawn jobs; 0: all at once.")
ENTITY_WEIGHTS = typer.Option(help="Hierarchical policies: name=weight,... of entities (Slurm accounts, Kueue queues).")
INSIDE = typer.Option(help="Hierarchical policies: fairness or fifo among the jobs of an entity (fairness).")
MULTI_GPU = typer.Option("--multi-gpu", help="Three in ten drawn jobs on 2, 4 or 8 devices.")


@app.callback()
def _group() -> None:
    """Simulate jobs that share a cluster of different devices."""


@dataclass(frozen=True)
class _Inputs:
    """What a simulation is given."""

    jobs: Iterable[ClusterJob]
    count: int | None
    throughputs: Throughputs
    prices: Mapping[str, float] = field(default_factory=dict)
    switch_s: Mapping[str, float] = field(default_factory=dict)
    spread: Throughputs | None = None
    notes: tuple[str, ...] = ()


@contextmanager
def _by_option() -> Iterator[None]:
    """Name the option in errors about the field that it fills under another name."""
    try:
        yield
    except InputError as error:
        field_, dot, name = error.path.partition(".")
        if field_ not in OPTION_OF:
            raise
        raise InputError(f"{OPTION_OF[field_]}{dot}{name}", error.value, error.allowed, error.also) from None


@contextmanager
def _by_jobs(trace: Path | None, cluster: str) -> Iterator[None]:
    """Name what was given in errors about a job: the trace that has it, or the devices that a drawn one runs on."""
    try:
        yield
    except InputError as error:
        job, _, name = error.path.partition(".")
        if not job.startswith("jobs["):
            raise
        number = job[len("jobs[") : -1]
        if trace is not None:
            raise InputError(f"{trace}, job {number}, {name}", error.value, error.allowed) from None
        allowed = f"a type with room and a throughput for every drawn job, also for {error.value} (job {number})"
        if name == "scale_factor":
            allowed = f"at least {error.value} devices of one type for job {number}, or --multi-gpu left out"
        raise InputError("--cluster", cluster, allowed) from None


@app.command("simulate")
@_by_option()
def simulate_command(
    cluster: Annotated[str, typer.Option(help="Devices: 8:16:24 (V100:P100:K80) or type=count,type=count.")],
    throughputs: Annotated[Path | None, THROUGHPUTS] = None,
    trace: Annotated[Path | None, TRACE] = None,
    jobs: Annotated[int | None, JOBS] = None,
    every: Annotated[float, EVERY] = 0.0,
    multi_gpu: Annotated[bool, MULTI_GPU] = False,
    window: Annotated[str | None, typer.Option(help="FIRST:LAST, end when jobs FIRST to LAST - 1 have ended.")] = None,
    policy: Annotated[
        str, typer.Option(help="Policy that divides the devices; a wrong name is answered with all.")
    ] = "max_min_fairness_perf",
    gavel_parity: Annotated[bool, typer.Option("--gavel-parity", help="As the published simulator does it.")] = False,
    parts: Annotated[int, typer.Option(min=1, help="Split the policy's problem into so many (POP).")] = 1,
    round_s: Annotated[float, typer.Option(help="Seconds of a round.")] = 360.0,
    reset_s: Annotated[float, typer.Option(help="Least seconds between two computations of shares.")] = 1_920.0,
    gpus_per_server: Annotated[int, typer.Option(min=1, max=1024, help="Devices of a server.")] = 1,
    switch_s: Annotated[float | None, typer.Option(help="Seconds that a job loses which resumes or moves.")] = None,
    price: Annotated[
        str | None, typer.Option("--usd-per-gpu-hour", "--price", help="USD of a device-hour: type=price,type=price.")
    ] = None,
    entity_weights: Annotated[str | None, ENTITY_WEIGHTS] = None,
    inside: Annotated[str | None, INSIDE] = None,
    draws: Annotated[int, typer.Option(min=0, help="Simulate again with so many draws of predicted throughputs.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of drawn jobs and of the policy.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Simulate jobs on a cluster: completion times, makespan, fairness, utilisation, cost."""
    devices, span = _devices(cluster), _window(window)
    _refuse(span is not None, {"--draws": draws}, "beside --window, whose jobs never end")
    clean = {"--switch-s": switch_s, "--gpus-per-server": gpus_per_server if gpus_per_server > 1 else None}
    _refuse(gavel_parity, clean, "beside --gavel-parity: its rounds know no servers, and moves cost nothing")
    given = _inputs(trace, throughputs, jobs, every, multi_gpu, seed, span)
    _refuse(not given.throughputs.interval, {"--draws": draws}, "with measured throughputs, which have no intervals")
    rounds = Rounds(
        round_s=round_s, reset_s=reset_s, gpus_per_server=gpus_per_server, gavel_parity=gavel_parity,
        **({} if switch_s is None else {"switch_s": switch_s}),
    )  # fmt: skip

    # The catalog has no price of some devices; what is stated has to be whole.
    known = given.prices if all(name in given.prices for name in devices) else {}
    prices = known if price is None else _numbers("--usd-per-gpu-hour", price)
    costs = given.switch_s if switch_s is None else {}
    held = tuple(given.jobs) if span is None else given.jobs
    weights = _entity_weights(entity_weights, held if isinstance(held, tuple) else ())
    made = _policies(policy, seed, gavel_parity, parts, {"--entity-weights": entity_weights, "--inside": inside})
    divides = made()
    count = given.count or (len(held) if isinstance(held, tuple) else None)
    with _by_jobs(trace, cluster), _progress(count) as told:
        found = simulate(
            held, given.throughputs, devices, divides, rounds, spread=given.spread, switch_s=costs,
            usd_per_hour=prices, entity_weights=weights, window=span, seed=seed, progress=told.update,
        )  # fmt: skip
    found = replace(found, assumptions=(*found.assumptions, *given.notes))
    losses = divides.losses if isinstance(divides, Pop) else []
    spread = None
    if draws:
        spread = sensitivity(
            tuple(held), given.throughputs, devices, made, rounds, switch_s=costs, usd_per_hour=prices,
            entity_weights=weights, draws=draws, seed=seed,
        )  # fmt: skip
    if as_json:
        print_json(cluster_data(found) | sensitivity_data(spread) | ({"split_losses": losses} if losses else {}))
        return
    for line in [*answer_cluster(found), *answer_split(losses), *(answer_sensitivity(spread) if spread else ())]:
        console.print(line, highlight=False)


def _policies(
    name: str, seed: int, gavel_parity: bool, parts: int, entities: Mapping[str, str | None]
) -> Callable[[], Policy]:
    """Return what makes the policy anew; `entities`: the options that only hierarchical ones heed."""
    kind = POLICIES.get(name)
    _refuse(kind is not None and not issubclass(kind, Hierarchical), entities, f"beside {name}: it knows no entities")
    inside = entities["--inside"]
    _refuse(parts > 1, {"--inside": inside}, "beside --parts")
    options = {} if inside is None else {"inside": inside}
    if parts == 1:
        return lambda: policy_named(name, seed, gavel_parity, **options)
    return lambda: Pop(name, parts, seed, gavel_parity, check_every=CHECK_EVERY)


def _entity_weights(text: str | None, jobs: Iterable[ClusterJob]) -> dict[str, float]:
    """Return the weights of entities, each of which some job is of."""
    weights = {} if text is None else _numbers("--entity-weights", text)
    known = sorted({job.entity for job in jobs} - {""})
    for name, weight in weights.items():
        if name not in known:
            told = f"left out, or one of {', '.join(known)}" if known else "left out: no job is of an entity"
            raise InputError(f"--entity-weights.{name}", f"{weight:g}", told)
    return weights


class _progress:  # noqa: N801 - reads as the function that it stands for
    """Jobs that have ended, on stderr."""

    def __init__(self, total: int | None) -> None:
        columns = (TextColumn("jobs that have ended"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.bar = Progress(*columns, console=progress_console, transient=True)
        self.task = self.bar.add_task("", total=total)

    def __enter__(self) -> "_progress":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def update(self, ended: int, _now_s: float) -> None:
        """Tell how many have ended."""
        self.bar.update(self.task, completed=ended)


def _inputs(
    trace: Path | None,
    throughputs: Path | None,
    jobs: int | None,
    every: float,
    multi_gpu: bool,
    seed: int,
    window: tuple[int, int] | None,
) -> _Inputs:
    """Return jobs and throughputs from the files that were named."""
    if (trace is None) == (jobs is None and window is None):
        told = f"{'' if trace else 'required: '}exactly one of --trace and --jobs (or --window)"
        raise InputError("--trace", trace and str(trace), told)
    drawn = {"--every-s": every, "--multi-gpu": multi_gpu}
    _refuse(trace is not None, drawn, "beside --trace, whose jobs are not drawn")
    log = None if trace is None else imported_log(trace)
    left = ", ".join(f"{count} {reason}" for reason, count in log.skipped.items()) if log else ""
    notes = (f"{trace}: lines are left out: {left}",) if left else ()
    if throughputs is None:
        if log is None:
            raise InputError("--throughputs", None, "required: how fast jobs are on each type of device")
        return _Inputs(log.jobs, len(log.jobs), log.throughputs, notes=notes)
    prices: Mapping[str, float] = {}
    costs: Mapping[str, float] = {}
    spread = None
    if is_workload(throughputs):
        with progress_console.status("predicting throughputs"):
            made = predicted_throughputs(*read_workload(throughputs))
        known, prices, costs = made.throughputs, made.usd_per_hour, made.switch_s
    else:
        known = read_throughputs(throughputs)
        if throughputs.name.endswith((".json", ".json.gz")):
            spread = read_throughputs(throughputs, "unconsolidated")
    if trace is not None:
        held = log.jobs if log else read_trace(trace)
        return _Inputs(held, len(held), known, prices, costs, spread, notes)
    try:
        drawn_jobs = generate(jobs, every, seed, known, multi_gpu=multi_gpu)
    except InputError as error:
        if error.path != "throughputs":
            raise
        less = ", or --multi-gpu left out" if multi_gpu else ""
        raise InputError("--throughputs", str(throughputs), f"{error.allowed}{less}") from None
    return _Inputs(drawn_jobs, jobs, known, prices, costs, spread)


def _refuse(unheeded: bool, stated: Mapping[str, float | str | None], why: str) -> None:
    """Refuse options that say what nothing would heed, all but none and 0."""
    for option, value in stated.items():
        if unheeded and value:
            raise InputError(option, value, f"left out {why}")


def _devices(text: str) -> dict[str, int]:
    """Return how many devices there are of each type."""
    if "=" in text:
        numbers = _numbers("--cluster", text)
    else:
        parts = text.split(":")
        if len(parts) != len(TYPES):
            raise InputError("--cluster", text, "V100s:P100s:K80s, or type=count,type=count")
        numbers = _numbers(
            "--cluster", ",".join(f"{name}={part}" for name, part in zip(TYPES, parts, strict=True)), text
        )
    if not any(numbers.values()):
        raise InputError("--cluster", text, "at least one device")
    for name, number in numbers.items():
        if number != int(number):
            raise InputError(f"--cluster.{name}", number, "a whole number of devices")
    # Of 8:0:0 nobody named the types that there are none of: a table need not have them.
    return {name: int(number) for name, number in numbers.items() if number or "=" in text}


def _numbers(option: str, text: str, stated: str = "") -> dict[str, float]:
    """Return the numbers of a text of name=number; an error tells the text that was `stated` for it."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, number = part.partition("=")
        try:
            value = float(number)
        except ValueError:
            allowed = "three whole numbers, as 8:16:24" if stated else "type=number,type=number"
            raise InputError(option, stated or text, allowed) from None
        if not 0 <= value <= 1e9 or not name:
            raise InputError(f"{option}.{name}", number, "a number from 0 to 1e9")
        if name.strip() in found:
            raise InputError(option, stated or text, f"each type once, not {name.strip()} again")
        found[name.strip()] = value
    return found


def _window(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal() and int(first) < int(last)):
        raise InputError("--window", text, "FIRST:LAST, whole numbers, the first below the last")
    return int(first), int(last)


def cluster_data(found: Simulated) -> dict[str, Any]:
    """Return the JSON object of a simulation; what has not ended is null."""
    return {
        "policy": found.policy,
        "makespan_s": found.makespan_s,
        "average_jct_s": _or_none(found.average_jct_s),
        "rounds": found.rounds,
        "rounds_skipped": found.rounds_skipped,
        "allocations": found.allocations,
        "allocation_seconds": found.allocation_seconds,
        "seconds": found.seconds,
        "utilisation": found.mean_utilisation,
        "utilisation_by_type": dict(zip(found.types, found.utilisation.tolist(), strict=True)),
        "fairness_rho": _or_none(found.mean_fairness),
        "cost_usd": found.cost_usd,
        "leases_extended": found.leases_extended,
        "leases_offered": found.leases_offered,
        "moves": found.moves,
        "not_ended": list(found.not_ended),
        "late": list(found.late),
        "jobs": [
            {
                "job": number,
                "job_type": job.job_type,
                "scale_factor": job.scale_factor,
                "arrival_s": job.arrival_s,
                "jct_s": None if number in gone else found.jct_s[number],
                "fairness_rho": None if number in gone else found.fairness[number],
                "device_s": dict(zip(found.types, found.used_s[number].tolist(), strict=True)),
            }
            for gone in [set(found.not_ended)]
            for number, job in enumerate(found.jobs)
        ],
        "assumptions": list(found.assumptions),
    }


def _or_none(mean: float) -> float | None:
    return None if isnan(mean) else mean


def sensitivity_data(found: Sensitivity | None) -> dict[str, Any]:
    """Return what drawn throughputs did to the result."""
    if found is None:
        return {}
    intervals = {"makespan_s": found.makespan_interval_s, "average_jct_s": found.average_jct_interval_s}
    return {"sensitivity": {name: list(ends) for name, ends in intervals.items()} | {"draws": found.draws}}
