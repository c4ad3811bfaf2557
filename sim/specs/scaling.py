"""A scaling law of the catalog: how the loss falls with parameters and tokens."""

from sim.specs.device import Sourced, Text
from sim.specs.fields import spec


@spec
class ScalingLaw:
    """L(N, D) = e + a / N^alpha + b / D^beta, in nats per token (Hoffmann et al. 2022, arXiv 2203.15556, eq. 2).

    N: parameters, embeddings included; D: training tokens; `range`: what the constants were fitted to.
    """

    name: Text
    title: Text
    range: Text
    e: Sourced
    a: Sourced
    b: Sourced
    alpha: Sourced
    beta: Sourced

    def loss(self, parameters: float, tokens: float) -> float:
        """Return the predicted loss in nats per token."""
        by_size = self.a.value / parameters**self.alpha.value
        return float(self.e.value + by_size + self.b.value / tokens**self.beta.value)
