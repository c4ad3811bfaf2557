"""Bulk synchronous parallel: every step on the mean of all partitions' gradients."""

from collections.abc import Sequence

from calibration.federated.algorithms.base import Algorithm
from calibration.federated.message import Message, mean, whole


class Bsp(Algorithm):
    """Sends whole gradients at every step; momentum is the same everywhere."""

    name = "bsp"

    def step(self, step: int, theta: float) -> Message:
        """Return the gradient."""
        self.lr = self.setting.lr_at(step)
        return whole(self.model.gradient)

    def receive(self, messages: Sequence[Message], own: int) -> None:
        """Descend along the mean gradient."""
        self.model.gradient.copy_(mean(messages, self.model.gradient))
        self.descend(self.lr)
