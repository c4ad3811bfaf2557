"""Local steps between exchanges of whole models: FedAvg, and the same with an outer optimizer as DiLoCo has it."""

from collections.abc import Sequence
from typing import ClassVar

import torch

from calibration.federated.algorithms.base import Algorithm
from calibration.federated.flat import Flat
from calibration.federated.message import Message, mean, whole
from calibration.federated.setting import Setting
from sim.decentralized.communication import AlgorithmName


class FedAvg(Algorithm):
    """Averages parameters and floating-point buffers after theta local steps (McMahan et al., AISTATS 2017).

    Momentum stays at home.
    """

    name: ClassVar[AlgorithmName] = "fedavg"

    def __init__(self, model: Flat, setting: Setting) -> None:
        super().__init__(model, setting)
        self.since = 0

    def step(self, step: int, theta: float) -> Message | None:
        """Descend on one's own gradient; return the model once theta steps have gone by."""
        self.descend(self.setting.lr_at(step))
        self.since += 1
        if self.since < theta:
            return None
        self.since = 0
        return whole(self.model.state)

    def receive(self, messages: Sequence[Message], own: int) -> None:
        """Go on from the mean of the models."""
        self.model.state.copy_(mean(messages, self.model.state))


class DiLoCo(FedAvg):
    """Takes an outer step with Nesterov momentum along what theta local steps changed (arXiv 2311.08105).

    Its inner optimizer is SGD with momentum as everywhere here, not AdamW.
    """

    name = "diloco"

    def __init__(self, model: Flat, setting: Setting) -> None:
        super().__init__(model, setting)
        self.anchor = model.weights.clone()
        self.outer_velocity = torch.zeros_like(self.anchor)

    def receive(self, messages: Sequence[Message], own: int) -> None:
        """Go on from the outer step; buffers are averaged."""
        super().receive(messages, own)
        change = self.anchor - self.model.weights
        momentum = self.setting.outer_momentum
        self.outer_velocity.mul_(momentum).add_(change)
        self.anchor.sub_(change.add_(self.outer_velocity, alpha=momentum), alpha=self.setting.outer_lr)
        self.model.weights.copy_(self.anchor)
