"""A real training of partitions beside its simulation: bytes, and time over links that are emulated."""

from dataclasses import dataclass, replace
from statistics import fmean

from calibration.federated.data import DATA
from calibration.federated.gloo import GlooRun, train_processes
from calibration.federated.models import network
from calibration.federated.setting import Setting
from sim.decentralized.communication import Communication
from sim.decentralized.laws import Law, law
from sim.decentralized.setting import Decentralized
from sim.decentralized.traffic import Sizes
from sim.decentralized.wan import Matrix, Wan

PACE_STEPS = 100
"""Steps of the run that says how fast this machine is."""


@dataclass(frozen=True)
class Pace:
    """Of this machine, with an algorithm: what a minibatch takes, and an exchange over links that take no time (s)."""

    step_s: float
    exchange_s: float

    @classmethod
    def measured(cls, setting: Setting, communication: Communication) -> "Pace":
        """Return that of as many processes as `setting` has partitions, by a short run of its own."""
        steps = max(PACE_STEPS, 2 * communication.period)
        short = replace(setting, steps=steps, travel_every=10 * steps)
        run = train_processes(short, communication).run
        step_s = min(run.seconds, fmean(run.compute_s)) / steps
        return cls(step_s, max(0.0, run.seconds - steps * step_s) / len(run.exchanges))


@dataclass(frozen=True)
class Compared:
    """What a training took here and what the law of `sim.decentralized` says, to which simulated processes agree.

    The law is given the run's own fraction of significant values: Gaia's messages depend on the data.
    """

    communication: Communication
    pace: Pace
    measured: GlooRun
    predicted: Law

    @property
    def error_percent(self) -> float:
        """By how much the predicted time is off the measured one."""
        return 100 * (self.predicted.seconds / self.measured.run.seconds - 1)

    @property
    def bytes_equal(self) -> bool:
        """Whether both sent the same, to the byte."""
        return self.predicted.traffic_bytes == self.measured.run.traffic_bytes


def sizes_of(setting: Setting) -> Sizes:
    """Return what the network of a setting consists of."""
    made = network(setting.norm, DATA[setting.data]().shape)
    buffers = sum(held.numel() for held in made.buffers() if held.is_floating_point())
    return Sizes(tensors=tuple(held.numel() for held in made.parameters()), buffers=buffers)


def compared(
    setting: Setting, communication: Communication, bytes_per_s: Matrix, latency_s: Matrix, pace: Pace
) -> Compared:
    """Return a training of processes over emulated links, without travels, and its prediction at this machine's pace.

    Raises:
        InputError: the links are not possible.
        ExecutionError: a process failed.
    """
    alone = replace(setting, travel_every=10 * setting.steps)
    found = train_processes(alone, communication, bytes_per_s=bytes_per_s, latency_s=latency_s)
    said = predicted(alone, communication, found.run.sent_fraction, bytes_per_s, latency_s, pace)
    return Compared(communication, pace, found, said)


def predicted(
    setting: Setting,
    communication: Communication,
    sent_fraction: float,
    bytes_per_s: Matrix,
    latency_s: Matrix,
    pace: Pace,
) -> Law:
    """Return time and bytes of a training without travels, at this machine's pace; `sent_fraction`: Gaia's."""
    wan = Wan(partitions=setting.partitions, bytes_per_s=bytes_per_s, latency_s=plus(latency_s, pace.exchange_s))
    stated = Decentralized(
        algorithm=communication.algorithm,
        theta=communication.theta,
        thetas=(communication.theta,),
        skew=setting.skew,
        steps=setting.steps,
        step_s=pace.step_s,
        sizes=sizes_of(setting),
        wan=wan,
        travel_every=0,
        warm_up_steps=setting.epoch_steps,
    )
    return law(stated, sent_fraction)


def plus(latency_s: Matrix, more_s: float) -> Matrix:
    """Return latencies that are longer by so much."""
    if isinstance(latency_s, float | int):
        return latency_s + more_s
    return tuple(tuple(one + more_s for one in row) for row in latency_s)
