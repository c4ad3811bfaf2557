"""What one partition has: its data, its model, its part of the algorithm."""

from time import perf_counter

import torch
from torch import Tensor

from calibration.federated.algorithms import ALGORITHMS
from calibration.federated.data import Data
from calibration.federated.flat import Flat
from calibration.federated.message import Message
from calibration.federated.models import network
from calibration.federated.setting import Setting
from calibration.federated.transport import Exchanged
from sim.decentralized.communication import AlgorithmName

SEEDS = 1_000_003
"""Seeds of partitions are this far apart for one step of the run's seed."""


class Replica:
    """Partition number `own` with its share of the data; `compute_s` is what its steps and updates have taken."""

    def __init__(self, setting: Setting, algorithm: AlgorithmName, own: int, data: Data) -> None:
        self.setting, self.own, self.compute_s = setting, own, 0.0
        self.model, self._guest = (Flat(network(setting.norm, data.shape, setting.seed)) for _ in range(2))
        self.algorithm = ALGORITHMS[algorithm](self.model, setting)
        self.data = data
        self._batches, self._samples = (
            torch.Generator().manual_seed(setting.seed * SEEDS + 2 * own + use) for use in range(2)
        )
        self._order: Tensor = torch.empty(0, dtype=torch.int64)

    def step(self, step: int, theta: float) -> Message | None:
        """Train on the next minibatch, and return what is to be sent, if anything."""
        begin = perf_counter()
        batch = self._batch()
        self.model.differentiate(self.data.inputs[batch], self.data.labels[batch])
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
        most = min(self.setting.travel_sample, len(self.data.labels))
        sample = torch.randperm(len(self.data.labels), generator=self._samples)[:most]
        held = self.data.inputs[sample], self.data.labels[sample]
        self._guest.state.copy_(visitor)
        return self.model.accuracy(*held), self._guest.accuracy(*held)

    def test(self, state: Tensor) -> float:
        """Return the accuracy of a model (its state) on the test data."""
        self._guest.state.copy_(state)
        return self._guest.accuracy(self.data.test_inputs, self.data.test_labels)

    def _batch(self) -> Tensor:
        """Return the next samples of a random order of all; what is left of an epoch is dropped."""
        if len(self._order) < self.setting.batch:
            self._order = torch.randperm(len(self.data.labels), generator=self._batches)
        batch, self._order = self._order[: self.setting.batch], self._order[self.setting.batch :]
        return batch
