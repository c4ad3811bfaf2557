"""A whole run that shares its cluster with other jobs."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain

import numpy as np

from sim.cluster.generator import generate
from sim.cluster.jobs import ClusterJob
from sim.cluster.moves import switch_s
from sim.cluster.policies import policy
from sim.cluster.predicted import JobType, Predicted, predicted_throughputs, read_workload
from sim.cluster.results import Simulated
from sim.cluster.simulate import Rounds, simulate
from sim.cluster.throughputs import Throughputs
from sim.cluster.trace import read_trace
from sim.engine.step import Step
from sim.run.measures import Interval, spread, with_intervals
from sim.specs import Checkpointing, InputError, Sharing
from sim.specs.catalog import device
from sim.units import DAY_S, HOUR_S

RUN = "this run"
"""The type of job that a run is, beside those of its workload."""

ASSUMPTIONS = (
    "sharing: the run is there from the begin, and the other jobs come whether it runs or waits",
    "sharing: intervals are those of the run alone on its devices; the other jobs take what is predicted of them",
    "sharing: energy is that of the time in which the run holds its devices",
)


@dataclass(frozen=True)
class Shared:
    """What becomes of a run beside other jobs; plain data, intervals lie between its fast and its slow wall time.

    Days are until it ends. GPU-hours, cost and energy are of the time in which it holds devices, `held_fraction` of the
    days. `others_ended` jobs ended meanwhile, after `others_jct_h` hours in the mean (None: none did). `simulated` is
    the whole story.
    """

    policy: str
    days: float
    days_interval: Interval
    gpu_hours: float
    gpu_hours_interval: Interval
    cost_usd: float | None
    cost_usd_interval: Interval | None
    energy_kwh: float
    energy_kwh_interval: Interval
    held_fraction: float
    others_ended: int
    others_jct_h: float | None
    simulated: Simulated
    assumptions: tuple[str, ...]


@contextmanager
def _stated(where: str) -> Iterator[None]:
    """Name what was stated where in errors."""
    try:
        yield
    except InputError as error:
        raise error.under(where) from None


def shared(
    step: Step,
    sharing: Sharing,
    checkpointing: Checkpointing | None,
    steps: int,
    walls_s: tuple[float, float, float],
    watts: float,
    usd_per_gpu_hour: float | None,
) -> Shared:
    """Return what becomes of a run of `steps` that takes `walls_s` alone (expected, and the ends of its interval).

    Whoever has to make room is saved and read again (`sim.cluster.moves`); what it holds draws `watts` and costs
    `usd_per_gpu_hour` where `sharing` states no price.

    Raises:
        InputError: a file cannot be read, the run's device is not in the cluster or too rare there, or the policy gives
            the run no time.
    """
    with _stated("sharing.workload"):
        made = _predicted(*read_workload(sharing.workload))
    with _stated("sharing"):
        own, gpus = _own_device(step, sharing, made.throughputs), step.placed.gpus
        lost_s = made.switch_s | {RUN: switch_s(step, checkpointing)}
        rounds = Rounds(gpus_per_server=step.cluster.gpus_per_node)

        def beside(wall_s: float) -> Simulated:
            job = ClusterJob(job_type=RUN, steps=steps, scale_factor=gpus, weight=sharing.weight)
            known = _with_run(made.throughputs, job, own, steps / wall_s)
            jobs = chain([job], _others(sharing, made.throughputs))
            return simulate(
                jobs, known, sharing.devices, policy(sharing.policy, sharing.seed), rounds,
                switch_s=lost_s, window=(0, 1), seed=sharing.seed, record=wall_s == walls_s[0],
            )  # fmt: skip

        found = tuple(beside(wall_s) for wall_s in walls_s)
    price = usd_per_gpu_hour if sharing.usd_per_gpu_hour is None else sharing.usd_per_gpu_hour

    def measured(value: Callable[[Simulated], float]) -> tuple[float, Interval]:
        expected, fast, slow = (value(one) for one in found)
        return spread((expected, fast, slow))

    held = measured(lambda one: float(one.used_s[0].sum()) / HOUR_S)
    ended = [hours for hours in found[0].jct_s[1:] / HOUR_S if np.isfinite(hours)]
    return Shared(
        policy=sharing.policy,
        **with_intervals(
            days=measured(lambda one: float(one.end_s[0]) / DAY_S),
            gpu_hours=held,
            cost_usd=(None, None) if price is None else _times(price, held),
            energy_kwh=_times(watts / gpus / 1e3, held),
        ),
        held_fraction=held[0] * HOUR_S / gpus / float(found[0].end_s[0]),
        others_ended=len(ended),
        others_jct_h=float(np.mean(ended)) if ended else None,
        simulated=found[0],
        assumptions=(*ASSUMPTIONS, *(f"sharing: {line}" for line in found[0].assumptions)),
    )


def _times(rate: float, held: tuple[float, Interval]) -> tuple[float, Interval]:
    return rate * held[0], (rate * held[1][0], rate * held[1][1])


@lru_cache(maxsize=4)
def _predicted(types: tuple[JobType, ...], devices: tuple[str, ...]) -> Predicted:
    """Return predicted throughputs, once for the same jobs and devices."""
    return predicted_throughputs(types, devices)


def _own_device(step: Step, sharing: Sharing, known: Throughputs) -> str:
    """Return the name of the run's device in the shared cluster."""
    if len({member.device for member in step.cluster.members}) > 1:
        raise InputError("devices", dict(sharing.devices), "a run on devices of one type")
    name = device(step.cluster.device).name
    if name not in known.types:
        raise InputError("workload", sharing.workload, f"devices with {name} among them, which the run takes")
    if sharing.devices.get(name, 0) < step.placed.gpus:
        raise InputError(
            f"devices.{name}", sharing.devices.get(name), f"{step.placed.gpus} or more, which the run takes"
        )
    return name


def _with_run(known: Throughputs, job: ClusterJob, own: str, steps_per_s: float) -> Throughputs:
    """Return throughputs with those of the run, which takes its own type of device only."""
    row = np.array([steps_per_s if name == own else 0.0 for name in known.types])
    return replace(known, alone={**known.alone, job.kind: row}, interval={})


def _others(sharing: Sharing, known: Throughputs) -> Iterable[ClusterJob]:
    """Return the other jobs, in order of arrival."""
    if sharing.trace is not None:
        return read_trace(sharing.trace)
    assert sharing.every_hours is not None
    return generate(None, sharing.every_hours * HOUR_S, sharing.seed, known, multi_gpu=True)
