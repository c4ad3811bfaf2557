"""A real training of partitions beside its simulation: bytes, theta, and time over links that are emulated."""

from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import cast

import numpy as np

from calibration.federated.data import DATA
from calibration.federated.gloo import train_processes
from calibration.federated.models import network
from calibration.federated.results import FederatedRun
from calibration.federated.setting import Setting
from sim.decentralized.communication import KNOBS, LOCAL, AlgorithmName, Communication, sparse_bytes
from sim.decentralized.controllers.base import Controller
from sim.decentralized.laws import law
from sim.decentralized.objective import Objective
from sim.decentralized.setting import Decentralized
from sim.decentralized.simulate import simulate
from sim.decentralized.traffic import Sizes
from sim.decentralized.wan import Matrix, Wan
from sim.specs.fields import InputError

LATENCY_S = 0.05
"""Of the links of the runs that say how fast this machine is: what gloo itself does hides behind it, as in a WAN."""
STEPS, LOCAL_STEPS = 120, 600
PERIODS = (5, 50)
"""Local steps between exchanges in those runs: their difference is what a step takes, the rest an exchange."""
TRAVELS, TRAVEL_EVERY = 8, 5
"""Travels of the run that says what they take, and steps between them."""


@dataclass(frozen=True)
class Pace:
    """Of this machine with an algorithm (s): what a minibatch takes, and beside their links an exchange and a travel
    (0 where none is in the setting).

    `start_s`: by how much the first minibatch takes longer.
    """

    step_s: float
    exchange_s: float
    travel_s: float
    start_s: float

    @classmethod
    def measured(cls, setting: Setting, communication: Communication) -> "Pace":
        """Return that of as many processes as `setting` has partitions, by short runs of their own."""
        if communication.algorithm in LOCAL:
            hows, steps = [(replace(communication, theta=float(period)), period) for period in PERIODS], LOCAL_STEPS
        else:
            hows, steps = [(communication, 1)], STEPS
        runs = [train_processes(_short(setting, steps), how, latency_s=LATENCY_S).run for how, _ in hows]
        rows = [[run.steps - 1, sum(one.step > 1 for one in run.exchanges)] for run in runs]
        spent = [sum(run.step_s[1:]) - LATENCY_S * row[1] for run, row in zip(runs, rows, strict=True)]
        step_s, exchange_s = np.linalg.lstsq(np.array(rows, float), np.array(spent), rcond=None)[0].tolist()
        usual = [median(run.step_s[1::period]) for run, (_, period) in zip(runs, hows, strict=True)]
        start_s = fmean(run.step_s[0] - one for run, one in zip(runs, usual, strict=True))
        travel_s = _travel_s(setting, communication) if setting.travel_every <= setting.steps else 0.0
        return cls(max(0.0, step_s), max(0.0, exchange_s), travel_s, max(0.0, start_s))


def _short(setting: Setting, steps: int, travel_every: int = 0) -> Setting:
    return replace(setting, steps=steps, travel_every=travel_every or 10 * steps)


def _travel_s(setting: Setting, communication: Communication) -> float:
    """Return what a travel takes beside its links: what steps with one take longer than those without."""
    if communication.algorithm in LOCAL:  # none of so few steps has an exchange
        communication = replace(communication, theta=KNOBS[communication.algorithm].thetas[-1])
    run = train_processes(_short(setting, TRAVEL_EVERY * TRAVELS, TRAVEL_EVERY), communication, latency_s=LATENCY_S).run
    travelled = np.arange(1, run.steps + 1) % TRAVEL_EVERY == 0
    walls = np.array(run.step_s)
    return max(0.0, float(np.median(walls[travelled]) - np.median(walls[~travelled])) - LATENCY_S)


@dataclass(frozen=True)
class Predicted:
    """What the simulation says of a training: seconds, bytes of all messages, and the theta of every travel."""

    seconds: float
    traffic_bytes: int
    thetas: tuple[float, ...]


@dataclass(frozen=True)
class Compared:
    """What a training took here and what the simulation says.

    Gaia's messages depend on the data: its prediction is given the run's own fraction of significant values for its
    time, and the values of each message for its bytes.
    """

    measured: FederatedRun
    predicted: Predicted

    @property
    def error_percent(self) -> float:
        """By how much the predicted time is off the measured one."""
        return 100 * (self.predicted.seconds / self.measured.seconds - 1)

    @property
    def bytes_equal(self) -> bool:
        """Whether both sent the same, to the byte."""
        return self.predicted.traffic_bytes == self.measured.traffic_bytes

    @property
    def thetas_equal(self) -> bool:
        """Whether every travel was with the same theta."""
        return self.predicted.thetas == tuple(travel.theta for travel in self.measured.travels)


def sizes_of(setting: Setting) -> Sizes:
    """Return what the network of a setting consists of."""
    made = network(setting.norm, DATA[setting.data]().shape)
    buffers = sum(held.numel() for held in made.buffers() if held.is_floating_point())
    return Sizes(tensors=tuple(held.numel() for held in made.parameters()), buffers=buffers)


def compared(
    setting: Setting,
    communication: Communication,
    bytes_per_s: Matrix,
    latency_s: Matrix,
    pace: Pace,
    controller: Controller | None = None,
) -> Compared:
    """Return a training of processes over emulated links and its prediction at this machine's pace.

    Raises:
        InputError: the links are not possible, or a controller moves the theta of Gaia.
        ExecutionError: a process failed.
    """
    run = train_processes(setting, communication, controller, bytes_per_s=bytes_per_s, latency_s=latency_s).run
    return Compared(run, predicted(setting, run, bytes_per_s, latency_s, pace, controller))


def predicted(
    setting: Setting,
    run: FederatedRun,
    bytes_per_s: Matrix,
    latency_s: Matrix,
    pace: Pace,
    controller: Controller | None = None,
) -> Predicted:
    """Return the prediction of a run at this machine's pace; a controller is given the accuracy losses of its travels.

    Raises:
        InputError: a controller moves the theta of Gaia, or a setting is not possible.
    """
    if controller is not None and run.algorithm == "gaia":
        raise InputError("controller", controller.name, "fixed with gaia, what it sends at a theta is not known before")
    wan = Wan(partitions=setting.partitions, bytes_per_s=bytes_per_s, latency_s=plus(latency_s, pace.exchange_s))
    begin = run.thetas[0]
    stated = Decentralized(
        algorithm=cast("AlgorithmName", run.algorithm),
        theta=begin,
        thetas=controller.thetas if controller else (begin,),
        skew=setting.skew,
        steps=setting.steps,
        step_s=pace.step_s,
        sizes=sizes_of(setting),
        wan=wan,
        travel_every=setting.travel_every if run.travels else 0,
        evaluate_s=max(0.0, pace.travel_s - pace.exchange_s),
        warm_up_steps=setting.epoch_steps,
        controller=controller.name if controller else "fixed",
        objective=controller.objective if controller else Objective(),
        seed=controller.seed if controller else 0,
    )
    if controller is None:
        told = law(stated, run.sent_fraction)
        traffic, seconds, thetas = told.traffic_bytes, told.seconds, (begin,) * len(run.travels)
        if run.algorithm == "gaia":
            traffic = told.travel_bytes + sum(
                (len(one.partitions) - 1) * sparse_bytes(count, run.values)
                for one in run.exchanges
                for count in one.significant
            )
    else:
        found = simulate(stated, observed=[travel.accuracy_loss for travel in run.travels])
        traffic, seconds, thetas = found.traffic_bytes, found.seconds, tuple(one.theta for one in found.travels)
    return Predicted(seconds + pace.start_s, traffic, thetas)


def plus(latency_s: Matrix, more_s: float) -> Matrix:
    """Return latencies that are longer by so much."""
    if isinstance(latency_s, float | int):
        return latency_s + more_s
    return tuple(tuple(one + more_s for one in row) for row in latency_s)
