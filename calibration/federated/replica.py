"""What one partition has: its data, its model, its part of the algorithm."""

from time import perf_counter

import torch
from torch import Tensor

from calibration.federated.algorithms import ALGORITHMS
from calibration.federated.flat import Flat
from calibration.federated.message import Message
from calibration.federated.models import network
from calibration.federated.partition import partitioned
from calibration.federated.setting import Setting
from calibration.federated.transport import Exchanged
from sim.decentralized.communication import AlgorithmName

SEEDS = 1_000_003
"""Seeds of partitions are this far apart for one step of the run's seed."""


class Replica:
    """Partition number `own`; `compute_s` is what its steps and updates have taken."""

    def __init__(self, setting: Setting, algorithm: AlgorithmName, own: int) -> None:
        data = setting.loaded()
        self.setting, self.own, self.compute_s = setting, own, 0.0
        self.model, self._guest = (Flat(network(setting.norm, data.shape, setting.seed)) for _ in range(2))
        self.algorithm = ALGORITHMS[algorithm](self.model, setting)
        mine = partitioned(data.labels, setting.partitions, setting.skew, setting.seed)[own]
        self.inputs, self.labels = data.inputs[mine], data.labels[mine]
        self._test = data.test_inputs, data.test_labels
        self._batches, self._samples = (
            torch.Generator().manual_seed(setting.seed * SEEDS + 2 * own + use) for use in range(2)
        )
        self._order: Tensor = torch.empty(0, dtype=torch.int64)

    def step(self, step: int, theta: float) -> Message | None:
        """Train on the next minibatch, and return what is to be sent, if anything."""
        begin = perf_counter()
        batch = self._batch()
        self.model.differentiate(self.inputs[batch], self.labels[batch])
        message = self.algorithm.step(step, theta)
        self.compute_s += perf_counter() - begin
        return message

    def receive(self, done: Exchanged) -> None:
        """Take what all have sent."""
        begin = perf_counter()
        self.algorithm.receive(done.messages, done.members.index(self.own))
        self.compute_s += perf_counter() - begin

    def tried(self, visitor: Tensor) -> tuple[float, float]:
        """Return the accuracy of one's own model and of a visitor's (its state) on the same sample of the data here."""
        most = min(self.setting.travel_sample, len(self.labels))
        sample = torch.randperm(len(self.labels), generator=self._samples)[:most]
        held = self.inputs[sample], self.labels[sample]
        self._guest.state.copy_(visitor)
        return self.model.accuracy(*held), self._guest.accuracy(*held)

    def test(self, state: Tensor) -> float:
        """Return the accuracy of a model (its state) on the test data."""
        self._guest.state.copy_(state)
        return self._guest.accuracy(*self._test)

    def _batch(self) -> Tensor:
        """Return the next samples of a random order of all; what is left of an epoch is dropped."""
        if len(self._order) < self.setting.batch:
            self._order = torch.randperm(len(self.labels), generator=self._batches)
        batch, self._order = self._order[: self.setting.batch], self._order[self.setting.batch :]
        return batch
