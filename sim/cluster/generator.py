"""Jobs by chance, as the published simulator draws them from a seed (arXiv 2008.09213, section 7.1).

One generator draws jobs (seed + 2), one arrivals (seed + 3), one SLOs (seed + 6), each number in the published order:
scale factor (drawn also where only single devices are wanted), duration, type of job, weight. The published simulator
keeps a fraction of a step that its trace files cut off; jobs here have whole steps, as the files.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import log
from random import Random

from sim.cluster.jobs import ClusterJob
from sim.cluster.throughputs import Throughputs
from sim.specs.arguments import checked
from sim.specs.fields import InputError

BATCHES = {
    "ResNet-18": (16, 32, 64, 128, 256),
    "ResNet-50": (16, 32, 64, 128),
    "Transformer": (16, 32, 64, 128, 256),
    "LM": (5, 10, 20, 40, 80),
    "Recommendation": (512, 1024, 2048, 4096, 8192),
}
PUBLISHED = (*(f"{name} (batch size {b})" for name, batches in BATCHES.items() for b in batches), "A3C", "CycleGAN")
"""The 26 types of job of the published evaluation, in its order."""

SCALES = ((0.95, 8), (0.8, 4), (0.7, 2))
"""From which draw on a job takes so many devices (the Philly cluster's mix), one below all."""

SHORT_SHARE = 0.8
SHORT_LOG_MINUTES, LONG_LOG_MINUTES = (1.5, 3.0), (3.0, 4.0)
"""Powers of ten between which minutes on the reference type are drawn, of four jobs in five and of the others."""

HIGH_PRIORITY_SHARE, HIGH_WEIGHT = 0.2, 5.0
SLOS = ((0.67, 10.0), (0.33, 2.0), (0.0, 1.2))
"""From which draw on a job should end within so many times what it takes alone."""

MOST_JOBS = 10_000_000
MOST_SECONDS = 1e9


@dataclass(frozen=True)
class _Mix:
    """What jobs are drawn from."""

    throughputs: Throughputs
    types: tuple[str, ...]
    reference: int
    multi_gpu: bool
    priorities: bool

    def rate(self, name: str, scale: int) -> float:
        """Return the steps/s of a type of job on the reference type of device, 0 where it is not known."""
        rates = self.throughputs.alone.get((name, scale))
        return 0.0 if rates is None else float(rates[self.reference])


@checked
def generate(
    n: int | None,
    mean_interarrival_s: float,
    seed: int,
    throughputs: Throughputs,
    *,
    multi_gpu: bool = False,
    priorities: bool = False,
    slos: bool = False,
    fill: Sequence[int] = (),
    job_types: Sequence[str] | None = None,
    reference: str | None = None,
) -> Iterator[ClusterJob]:
    """Return `n` jobs in order of arrival, drawn as they are asked for; without end where `n` is None.

    They arrive at 0 and then on average every `mean_interarrival_s` (0: all at once), with work for 32 minutes to a
    week on the `reference` type of device, by default the first. `multi_gpu`: three in ten on 2, 4 or 8 devices;
    `priorities`: one in five with weight 5; `slos`: 1.2, 2 or 10 times what they take alone. `fill`: devices of every
    type, by the types' names, for which jobs are there at 0 before the first arrives. `job_types` are by default the
    published 26, or all of a table that has others.

    Raises:
        InputError: an argument is out of range, or no type of job is known on as many devices as may be drawn.
    """
    if n is not None and not 1 <= n <= MOST_JOBS:
        raise InputError("n", n, f"a whole number from 1 to {MOST_JOBS}, or None")
    if not 0 <= mean_interarrival_s <= MOST_SECONDS:
        raise InputError("mean_interarrival_s", mean_interarrival_s, f"a number from 0 to {MOST_SECONDS:g} s")
    if n is None and mean_interarrival_s == 0:
        raise InputError("mean_interarrival_s", 0.0, "above 0 s for jobs without end")
    if not all(isinstance(devices, int) and 0 <= devices <= MOST_JOBS for devices in fill):
        raise InputError("fill", list(fill), f"whole numbers from 0 to {MOST_JOBS}")
    mix = _mix(throughputs, job_types, reference, multi_gpu, priorities)
    return islice(_drawn(mix, mean_interarrival_s, seed, slos, tuple(fill)), n)


def _mix(
    throughputs: Throughputs, job_types: Sequence[str] | None, reference: str | None, multi_gpu: bool, priorities: bool
) -> _Mix:
    if reference is not None and reference not in throughputs.types:
        raise InputError("reference", reference, "one of " + ", ".join(throughputs.types))
    known = list(dict.fromkeys(name for name, _ in throughputs.alone))
    types = tuple(job_types) if job_types else PUBLISHED if set(PUBLISHED) <= set(known) else tuple(known)
    unknown = next((name for name in types if name not in known), None)
    if unknown is not None:
        raise InputError("job_types", unknown, "one of " + ", ".join(known))
    mix = _Mix(throughputs, types, throughputs.types.index(reference) if reference else 0, multi_gpu, priorities)
    for scale in (1, *(scale for _, scale in SCALES if multi_gpu)):
        if not any(mix.rate(name, scale) > 0 for name in types):
            allowed = f"a table with a type of job that runs on {scale} of {throughputs.types[mix.reference]}"
            raise InputError("throughputs", throughputs.source, allowed)
    return mix


def _drawn(mix: _Mix, mean_s: float, seed: int, slos: bool, fill: tuple[int, ...]) -> Iterator[ClusterJob]:
    jobs, arrivals = Random(seed + 2), Random(seed + 3)
    due = Random(seed + 6) if slos else None
    for devices in fill:
        left = devices
        while left > 0:
            job = _job(mix, jobs, due, 0.0)
            left -= job.scale_factor
            yield job
    at_s = 0.0
    while True:
        yield _job(mix, jobs, due, at_s)
        at_s += -log(1 - arrivals.random()) / (1 / mean_s) if mean_s else 0.0


def _job(mix: _Mix, rng: Random, due: Random | None, at_s: float) -> ClusterJob:
    drawn = _from(SCALES, rng.uniform(0, 1), 1)
    scale = int(drawn) if mix.multi_gpu else 1
    between = LONG_LOG_MINUTES if rng.random() >= SHORT_SHARE else SHORT_LOG_MINUTES
    seconds = 60 * 10 ** rng.uniform(*between)
    name = rng.choice(mix.types)
    while not mix.rate(name, scale):
        name = rng.choice(mix.types)
    return ClusterJob(
        job_type=name,
        steps=max(1, int(seconds * mix.rate(name, scale))),
        scale_factor=scale,
        arrival_s=at_s,
        weight=HIGH_WEIGHT if mix.priorities and rng.uniform(0, 1) <= HIGH_PRIORITY_SHARE else 1.0,
        slo=_from(SLOS, due.uniform(0, 1), SLOS[-1][1]) if due else None,
    )


def _from(steps: tuple[tuple[float, float], ...], draw: float, otherwise: float) -> float:
    """Return the value of the first of falling steps that a draw reaches."""
    return next((value for least, value in steps if draw >= least), otherwise)
