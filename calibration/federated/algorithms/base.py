"""What an algorithm of decentralised training is: one of them at each partition."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch

from calibration.federated.flat import Flat
from calibration.federated.message import Message
from calibration.federated.setting import Setting
from sim.decentralized.communication import AlgorithmName


class Algorithm(ABC):
    """Turns a partition's gradients into updates of its model and messages to the others.

    All partitions call `step` with the same step and theta, so all have a message, or none; theta may change from
    step to step. `receive` takes the messages of the partitions that are there still, one's own among them.
    """

    name: ClassVar[AlgorithmName]

    def __init__(self, model: Flat, setting: Setting) -> None:
        self.model, self.setting = model, setting
        self.velocity = torch.zeros_like(model.weights)
        self.partitions = setting.partitions

    @abstractmethod
    def step(self, step: int, theta: float) -> Message | None:
        """Use `model.gradient` of a step, counted from 1, and return what is sent to each other partition, if any."""

    @abstractmethod
    def receive(self, messages: Sequence[Message], own: int) -> None:
        """Take what all partitions sent, in the order of the partitions; `own` is the place of one's own message."""

    def descend(self, lr: float) -> None:
        """Move the weights by SGD with momentum on the gradient."""
        self.velocity.mul_(self.setting.momentum).add_(self.model.gradient)
        self.model.weights.sub_(self.velocity, alpha=lr)
