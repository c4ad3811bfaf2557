"""What a plan really takes on this machine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from shlex import quote
from statistics import median
from typing import Any

from calibration.execute.limits import Device, check_model
from calibration.execute.processes import ExecutionError, run_processes, write_task
from calibration.execute.versions import check_torch
from calibration.folder import made
from sim.plans.files import plain
from sim.plans.traffic import Counted
from sim.specs import InputError, Model, Plan
from sim.specs.files import none_left_empty

LEAST_STEPS, MOST_STEPS = 10, 10_000
"""Of a run: each adds its seconds and its loss to a process's result, two numbers of some 50 bytes, and what
`load_mapping` reads ends at 50,000 values and 1 MiB."""
TIMEOUT_S = 60.0
"""Of starting up; a step has `STEP_TIMEOUT_S` more."""
STEP_TIMEOUT_S = 10.0
MOST_TIMEOUT_S, MOST_SEED = 1_000_000, 2**64 - 1
"""What processes that wait for each other, and torch's random numbers, can be told."""


@dataclass(frozen=True)
class Measured:
    """Times of what was run after warm-up, in seconds: the step's (on a CPU the shortest, on a GPU the median), the
    median, and the interval that holds the median in 90 % of cases (of the order statistics: no distribution is
    assumed).

    `losses` are of the global batch, the mean over replicas, from the first step on. Of every process:
    peak bytes of all tensors on the device, and of those in host memory; bytes sent in a step, and messages and bytes
    by group or link; the order of its passes.
    `max_gradient_error` compares the reduced gradients with those of the whole batch in one pass of one process.
    """

    step_time_s: float
    median_s: float
    steps: int
    losses: tuple[float, ...] = ()
    peak_memory_bytes: tuple[float, ...] = ()
    bytes_sent: tuple[float, ...] = ()
    max_gradient_error: float = 0.0
    traffic: tuple[Counted, ...] = ()
    order: tuple[tuple[str, ...], ...] = ()
    interval_s: tuple[float, float] = (0.0, 0.0)
    host_bytes: tuple[float, ...] = ()


@dataclass(frozen=True)
class Run:
    """A plan to be executed: `csv` is the order of its pipeline."""

    model: Model
    plan: Plan
    csv: str = ""
    what: str = "step"


@dataclass(frozen=True)
class Setting:
    """How runs are executed: where, how many steps, from which seed; within which time (0: 60 s and 10 s a step), where
    the processes meet (0: any free port), where they leave traces (None: none)."""

    device: Device = "cpu"
    steps: int = LEAST_STEPS
    seed: int = 0
    timeout_s: float = 0.0
    port: int = 0
    traces: Path | None = None


def measure(model: Model, plan: Plan, device: Device, steps: int = LEAST_STEPS) -> Measured:
    """Return what `steps` training steps take after warm-up, on `plan.dp` processes of one thread each.

    Raises:
        InputError, ExecutionError: as `measure_all`.
    """
    return measure_all([Run(model, plan)], Setting(device, steps))[0]


def measure_block(model: Model, plan: Plan, device: Device, steps: int = LEAST_STEPS) -> Measured:
    """Return what `steps` forward and backward passes of one block take on one microbatch.

    Raises:
        InputError, ExecutionError: as `measure_all`.
    """
    alone = plan.but(dp=1, global_batch=plan.micro_batch)
    return measure_all([Run(model, alone, what="block")], Setting(device, steps))[0]


def measure_all(runs: Sequence[Run], setting: Setting) -> list[Measured]:
    """Return what runs of equally many processes take, one after the other on the same processes.

    Raises:
        InputError: fewer than 10 steps or more than 10,000, not the model that is trained here, another version of
            torch, no such device, or the port is in use.
        ExecutionError: a process died or hung, or a loss is no number.
    """
    ranks = {processes(run.plan) for run in runs}
    if len(ranks) != 1:
        raise InputError("plans", sorted(ranks), "plans of equally many processes")
    for run in runs:
        check_model(run.model, setting.device)
    _require(setting.device, *ranks)
    if not LEAST_STEPS <= setting.steps <= MOST_STEPS:
        raise InputError("steps", setting.steps, f"{LEAST_STEPS} to {MOST_STEPS}")
    task, orders = task_of(runs, setting)
    found = run_processes(task, timeout_of(runs, setting), orders=orders, port=setting.port, keep=setting.traces)
    made = [_measured([each["runs"][n] for each in found]) for n in range(len(runs))]
    # What else runs on a processor only adds; a GPU's clock moves both ways.
    return made if setting.device == "cpu" else [replace(each, step_time_s=each.median_s) for each in made]


def prepare(run: Run, setting: Setting, folder: Path) -> str:
    """Write the task of a run into `folder` and return the command that starts its processes by torchrun.

    Raises:
        InputError: the folder cannot be made.
    """
    task, orders = task_of([run], setting)
    with none_left_empty(folder):
        made(folder, "--task")
        write_task(folder, task, timeout_of([run], setting), orders)
    return f"torchrun --nproc-per-node {processes(run.plan)} -m calibration.execute.worker {quote(str(folder))}"


def timeout_of(runs: Sequence[Run], setting: Setting) -> float:
    """Return the seconds after which runs that have not ended are ended."""
    return setting.timeout_s or TIMEOUT_S + STEP_TIMEOUT_S * setting.steps * len(runs)


def task_of(runs: Sequence[Run], setting: Setting) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what the worker is told as plain data, and the orders of pipelines by the names of their files."""
    orders = {f"order-{n}.csv": run.csv for n, run in enumerate(runs) if run.csv}
    task = {
        "ranks": processes(runs[0].plan),
        "device": setting.device,
        "runs": [
            {
                "what": run.what,
                "model": plain(run.model),
                "plan": plain(run.plan),
                "order": f"order-{n}.csv" if run.csv else None,
                "steps": setting.steps,
                "seed": setting.seed,
                "trace": setting.traces is not None,
            }
            for n, run in enumerate(runs)
        ],
    }
    return task, orders


def processes(plan: Plan) -> int:
    """Return how many processes a plan runs on."""
    own = plan.at(0)
    return own.tp * own.pp * (own.dp or 1)


def _measured(ranks: Sequence[Mapping[str, Any]]) -> Measured:
    ordered = sorted(max(times) for times in zip(*(r["seconds"] for r in ranks), strict=True))
    n = len(ordered)
    low, high = median_interval(n)
    times = Measured(ordered[0], median(ordered), n, interval_s=(ordered[low], ordered[high]))
    if "losses" not in ranks[0]:
        return times
    # Only the last stage knows the loss; every replica has its part's, each of its tensor-parallel ranks the same.
    known = [r["losses"] for r in ranks if any(r["losses"])] or [ranks[-1]["losses"]]
    losses = tuple(sum(map(float, step)) / len(known) for step in zip(*known, strict=True))
    good = sum(isfinite(x) for x in losses)
    if good < len(losses):
        raise ExecutionError(f"the loss is a number in {good} of {len(losses)} steps only")
    traffic = tuple({key: (int(calls), float(sent)) for key, (calls, sent) in r["traffic"].items()} for r in ranks)
    return replace(
        times,
        losses=losses,
        peak_memory_bytes=tuple(r["peak_bytes"] for r in ranks),
        host_bytes=tuple(r["host_bytes"] for r in ranks),
        bytes_sent=tuple(sum(sent for _, sent in each.values()) for each in traffic),
        max_gradient_error=max(r["gradient_error"] for r in ranks),
        traffic=traffic,
        order=tuple(tuple(r["order"]) for r in ranks if r["order"]),
    )


def median_interval(n: int) -> tuple[int, int]:
    """Return the positions, in n sorted values, of the narrowest interval about the middle that holds the true median
    in 90 % of cases (binomial; David and Nagaraja, Order Statistics, 2003, section 7.1); all of them if too few."""
    from scipy.stats import binom  # noqa: PLC0415 - every command would wait for it

    for low in range((n - 1) // 2, -1, -1):
        if binom.cdf(n - 1 - low, n, 0.5) - binom.cdf(low, n, 0.5) >= 0.9:
            return low, n - 1 - low
    return 0, n - 1


def _require(device: Device, ranks: int) -> None:
    """Refuse a device that torch does not see, or fewer of them than a plan has ranks, or another torch."""
    check_torch()
    if device == "cuda":
        from torch.cuda import device_count  # noqa: PLC0415 - every command would wait for torch

        if not (found := device_count()):
            raise InputError("--device", device, "cpu; torch finds no CUDA device here")
        if found < ranks:
            raise InputError("plan", f"{ranks} ranks", f"at most {found}: the CUDA devices that torch finds here")
