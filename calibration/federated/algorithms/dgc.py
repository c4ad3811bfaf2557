"""Deep gradient compression: only the largest accumulated gradients are sent (Lin et al., arXiv 1712.01887)."""

from collections.abc import Sequence
from math import sqrt

import torch

from calibration.federated.algorithms.base import Algorithm
from calibration.federated.flat import Flat
from calibration.federated.message import Message, mean, taken
from calibration.federated.setting import Setting
from sim.decentralized.communication import kept_by_dgc, warmed_up


class Dgc(Algorithm):
    """Sends the 1 - theta of each tensor's accumulated gradient that is largest; models stay the same everywhere.

    Gradients are clipped at home to clip_norm / sqrt(K) and accumulated with momentum before they are chosen (momentum
    correction, section 3.2); where a value is sent its momentum starts anew (momentum factor masking, section 3.3).
    Theta is approached in stages of an epoch each (warm-up, section 3.3).
    """

    name = "dgc"

    def __init__(self, model: Flat, setting: Setting) -> None:
        super().__init__(model, setting)
        self.unsent = torch.zeros_like(model.weights)

    def step(self, step: int, theta: float) -> Message:
        """Accumulate the gradient and return its largest values."""
        self.lr = self.setting.lr_at(step)
        gradient = self.model.gradient
        limit = self.setting.clip_norm / sqrt(self.partitions)
        gradient.mul_(torch.clamp(limit / (gradient.norm() + 1e-12), max=1.0))
        self.velocity.mul_(self.setting.momentum).add_(gradient)
        self.unsent.add_(self.velocity)
        places = self._largest(warmed_up(theta, step, self.setting.epoch_steps))
        self.velocity[places] = 0.0
        return taken(self.unsent, places)

    def _largest(self, theta: float) -> torch.Tensor:
        places, begin = [], 0
        for part in self.unsent.abs().split_with_sizes(self.model.sizes):
            places.append(part.topk(kept_by_dgc(theta, part.numel()), sorted=False).indices + begin)
            begin += part.numel()
        return torch.cat(places)

    def receive(self, messages: Sequence[Message], own: int) -> None:
        """Descend along the mean of what was sent."""
        self.partitions = len(messages)
        self.model.weights.sub_(mean(messages, self.model.weights), alpha=self.lr)
