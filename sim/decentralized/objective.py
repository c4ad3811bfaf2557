"""What SkewScout weighs: accuracy that partitions lose against bytes that they send (arXiv 1910.00189, section 7)."""

from dataclasses import dataclass
from typing import Annotated

from sim.specs.fields import real, spec


@dataclass(frozen=True)
class Observation:
    """What a stretch of training with one theta showed.

    `accuracy_loss`: the mean over partitions of the accuracy on a sample of training data at home minus that of the
    same model where it travelled to (fraction; below 0 counts as none). `sent_bytes`: what one partition sent to one
    other for a minibatch, in the mean; `model_bytes`: the size of the model.
    """

    theta: float
    accuracy_loss: float
    sent_bytes: float
    model_bytes: float


@spec
class Objective:
    """lambda_AL max(0, AL - sigma_AL) + lambda_C C / CM, to be made small (equation 1 of section 7.2).

    `tolerated` is sigma_AL, the accuracy loss that is borne (fraction).
    """

    tolerated: Annotated[float, real(0.0, 1.0)] = 0.05
    accuracy_weight: Annotated[float, real(0.0, 1e6)] = 50.0
    traffic_weight: Annotated[float, real(0.0, 1e6)] = 1.0

    def value(self, seen: Observation) -> float:
        """Return the objective of what was seen."""
        beyond = max(0.0, max(0.0, seen.accuracy_loss) - self.tolerated)
        return self.accuracy_weight * beyond + self.traffic_weight * seen.sent_bytes / seen.model_bytes
