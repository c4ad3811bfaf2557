"""Decentralised training, step by step: the same for partitions in one process and in many."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Protocol

import torch

from calibration.federated.message import Message, mean, whole
from calibration.federated.replica import Replica
from calibration.federated.results import Exchange, FederatedRun, Travel
from calibration.federated.setting import Setting
from calibration.federated.transport import Exchanged, Memory, Transport, everyone, nobody, onward
from sim.decentralized.communication import LOCAL, VALUE_BYTES, Communication
from sim.decentralized.objective import Observation
from sim.specs.arguments import checked


class Steering(Protocol):
    """What moves theta: a `sim.decentralized.controllers.base.Controller`, here or in another process."""

    @property
    def theta(self) -> float:
        """The theta to train with now."""

    def observe(self, seen: Observation) -> float:
        """Return the theta to go on with."""


@checked
def train(setting: Setting, communication: Communication, controller: Steering | None = None) -> FederatedRun:
    """Train all partitions in this process on one thread, in lock step; equal arguments give equal results.

    controller: moves theta after each travel, starting from its own; without one theta stays.

    Raises:
        InputError: the controller has a theta that the algorithm cannot have.
    """
    with one_thread():
        replicas = [Replica(setting, communication.algorithm, own, data) for own, data in enumerate(setting.shares())]
        return Training(setting, communication, controller, replicas, Memory(setting.partitions)).run()


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Training:
    """Steps, exchanges and travels of the `replicas` in this process with all others that `transport` reaches."""

    def __init__(
        self,
        setting: Setting,
        communication: Communication,
        controller: Steering | None,
        replicas: Sequence[Replica],
        transport: Transport,
    ) -> None:
        self.setting, self.communication, self.controller = setting, communication, controller
        self.replicas, self.transport = replicas, transport
        if controller is not None:
            self._steer(controller.theta)
        self.thetas: list[float] = []
        self.step_s: list[float] = []
        self.exchanges: list[Exchange] = []
        self.travels: list[Travel] = []
        self.traffic_bytes = self.travel_bytes = 0

    def run(self) -> FederatedRun:
        """Return what the training did."""
        begin = perf_counter()
        for step in range(1, self.setting.steps + 1):
            last = perf_counter()
            self._step(step)
            self.step_s.append(perf_counter() - last)
        return self._result(perf_counter() - begin)

    def _step(self, step: int) -> None:
        theta = self.communication.theta
        self.thetas.append(theta)
        messages = [replica.step(step, theta) for replica in self.replicas]
        due = [message for message in messages if message is not None]
        if due:
            done = self.transport.exchange(step, due, everyone)
            self.traffic_bytes += done.traffic_bytes
            significant = tuple(message.significant for message in done.messages)
            self.exchanges.append(Exchange(step, theta, done.members, done.sent_bytes, significant))
        # Models travel before they take the others' updates: what they lost by staying apart shows then.
        if step % self.setting.travel_every == 0:
            self._travel(step)
        if due:
            for replica in self.replicas:
                replica.receive(done)

    def _travel(self, step: int) -> None:
        states = [whole(replica.model.state) for replica in self.replicas]
        done = self.transport.exchange(step, states, onward(len(self.travels)))
        self.traffic_bytes += done.traffic_bytes
        self.travel_bytes += done.traffic_bytes
        sender = {receiver: sender for sender, receiver in done.links}
        held = dict(zip(done.members, done.messages, strict=True))
        tried = [replica.tried(held[sender.get(replica.own, replica.own)].values) for replica in self.replicas]
        members, rows = self._shared(step, tried)
        home, away = zip(*rows, strict=True)
        accuracy = self._test_of_mean(done)
        seen = Travel(step, self.communication.theta, members, home, away, self._sent_bytes(), accuracy)
        self.travels.append(seen)
        if self.controller is not None:
            self._steer(self.controller.observe(self._observation(seen)))

    def _shared(self, step: int, rows: Sequence[tuple[float, ...]]) -> tuple[tuple[int, ...], list[tuple[float, ...]]]:
        """Return the numbers of every partition."""
        messages = [Message(torch.tensor(row, dtype=torch.float64)) for row in rows]
        done = self.transport.exchange(step, messages, nobody)
        return done.members, [tuple(message.values.tolist()) for message in done.messages]

    def _sent_bytes(self) -> float:
        """Return the bytes from one partition to one other for a minibatch since the last travel.

        Of algorithms with a period these are those of whole periods: a stretch may have less than one.
        """
        if self.communication.algorithm in LOCAL:
            return self._model_bytes / self.communication.period
        begin = self.travels[-1].step if self.travels else 0
        sent = [sum(one.sent_bytes) / len(one.sent_bytes) for one in self.exchanges if one.step > begin]
        return sum(sent) / len(sent)

    @property
    def _model_bytes(self) -> int:
        return VALUE_BYTES * self.replicas[0].model.state.numel()

    def _observation(self, seen: Travel) -> Observation:
        return Observation(
            theta=seen.theta,
            accuracy_loss=seen.accuracy_loss,
            sent_bytes=seen.sent_bytes,
            model_bytes=float(self._model_bytes),
        )

    def _steer(self, theta: float) -> None:
        self.communication = Communication(algorithm=self.communication.algorithm, theta=theta)

    def _test_of_mean(self, done: Exchanged) -> float:
        first = self.replicas[0]
        return first.test(mean(done.messages, first.model.state))

    def _result(self, seconds: float) -> FederatedRun:
        last, first = self.setting.steps, self.replicas[0]
        done = self.transport.exchange(last, [whole(replica.model.state) for replica in self.replicas], nobody)
        told = [(replica.test(replica.model.state), replica.compute_s) for replica in self.replicas]
        members, rows = self._shared(last, told)
        accuracies, compute_s = zip(*rows, strict=True)
        return FederatedRun(
            algorithm=self.communication.algorithm,
            steps=last,
            values=first.model.weights.numel(),
            state_values=first.model.state.numel(),
            thetas=tuple(self.thetas),
            exchanges=tuple(self.exchanges),
            travels=tuple(self.travels),
            traffic_bytes=self.traffic_bytes,
            travel_bytes=self.travel_bytes,
            partitions=members,
            accuracy=self._test_of_mean(done),
            partition_accuracy=accuracies,
            seconds=seconds,
            step_s=tuple(self.step_s),
            compute_s=compute_s,
            state=tuple(mean(done.messages, first.model.state).tolist()),
        )
