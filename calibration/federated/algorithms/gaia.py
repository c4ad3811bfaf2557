"""Gaia: updates are applied at home at once, and sent where they have become significant (Hsieh et al., NSDI 2017)."""

from collections.abc import Sequence

import torch

from calibration.federated.algorithms.base import Algorithm
from calibration.federated.flat import Flat
from calibration.federated.message import Message, taken
from calibration.federated.setting import Setting


class Gaia(Algorithm):
    """Sends what a weight's updates came to since they were last sent, where |update / weight| is above theta.

    Updates of others are added, so a partition's own step is lr / K on its gradient: with theta 0 this is BSP. The
    threshold falls as the learning rate does (arXiv 1910.00189, appendix), in proportion (assumption).
    """

    name = "gaia"

    def __init__(self, model: Flat, setting: Setting) -> None:
        super().__init__(model, setting)
        self.unsent = torch.zeros_like(model.weights)

    def step(self, step: int, theta: float) -> Message:
        """Descend on one's own gradient and return the significant updates."""
        lr = self.setting.lr_at(step)
        self.descend(lr / self.partitions)
        self.unsent.sub_(self.velocity, alpha=lr / self.partitions)
        significant = self.unsent.abs() > theta * lr / self.setting.lr * self.model.weights.abs()
        return taken(self.unsent, significant.nonzero().flatten())

    def receive(self, messages: Sequence[Message], own: int) -> None:
        """Add the updates of the others."""
        self.partitions = len(messages)
        for at, message in enumerate(messages):
            if at != own:
                message.added_to(self.model.weights)
