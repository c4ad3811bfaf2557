"""Three small trainings whose steps differ in what they compute and in how many bytes they read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

CLASSES = 10
BYTES = 4


@dataclass(frozen=True)
class Network:
    """A network for samples of a shape, trained on batches of so many."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch: int

    @property
    def batch_bytes(self) -> int:
        """What a step reads (fp32)."""
        return BYTES * self.batch * prod(self.shape)


def _mlp(inputs: int, hidden: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))


def _convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, CLASSES),
    )


NETWORKS: Mapping[str, Network] = {
    "wide-mlp": Network(_mlp(2048, 256), (2048,), 128),
    "convnet": Network(_convnet, (3, 32, 32), 32),
    "small-mlp": Network(_mlp(64, 128), (64,), 64),
}


class Training:
    """A network, its momentum and a batch, all from a seed; `at` steps are done."""

    def __init__(self, network: Network, seed: int = 0) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model = network.make()
            self.inputs: Tensor = torch.randn(network.batch, *network.shape)
            self.labels: Tensor = torch.randint(CLASSES, (network.batch,))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self.at = 0

    def step(self) -> None:
        """Train on the batch once."""
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(self.inputs), self.labels).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.at += 1

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state: Mapping[str, Any], at: int) -> None:
        """Take over a state after `at` steps."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for held in self.optimizer.state.values():  # a file's pages may lie behind them
            held.update({name: one.clone() for name, one in held.items()})
        self.at = at
