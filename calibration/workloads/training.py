"""One process that trains a workload: forward, backward, what others add to the gradients, Adam."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from calibration.kernels.adam import Optimizer
from calibration.workloads.workload import Size, Workload

DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}
"""What weights and activations are in: as the simulator's profiles of such devices, on GPUs with fp32 masters."""

RATE = 1e-3
BACKEND = "inductor"
"""What torch.compile compiles with."""


def alone(gradients: list[Tensor]) -> None:
    """Leave the gradients as they are: there is one process."""


class Training:
    """A workload on a device with its own batch; every one is trained by Adam, the optimizer that is simulated.

    reduce: makes the gradients of all processes the same ones, after backward. compiled: loss and backward go through
    torch.compile. The batch is drawn from `seed` and `rank`, the weights from `seed` alone. samples: of a step, by
    default the workload's own.
    """

    def __init__(
        self,
        workload: Workload,
        size: Size,
        device: str = "cpu",
        seed: int = 0,
        rank: int = 0,
        compiled: bool = False,
        reduce: Callable[[list[Tensor]], None] = alone,
        samples: int | None = None,
    ) -> None:
        self.workload, self.device, self.reduce = workload, device, reduce
        dtype = DTYPES[device]
        self.model: Any = workload.build(size, seed).to(device, dtype)
        drawn = (t.to(device) for t in workload.batch(size, seed + rank, samples))
        self.batch = tuple(t.to(dtype) if t.is_floating_point() else t for t in drawn)
        self.optimizer = Optimizer([*self.model.parameters()], "fused", RATE)
        self.loss: Callable[..., Tensor] = workload.loss
        if compiled:
            self.loss = torch.compile(workload.loss, backend=BACKEND)

    @property
    def samples(self) -> int:
        """Samples of a step."""
        return len(self.batch[0])

    def step(self) -> Tensor:
        """Take one step and return its loss, still on the device."""
        self.forget()
        loss = self.loss(self.model, self.batch)
        torch.autograd.backward(loss)
        self.update()
        return loss.detach()

    def forget(self) -> None:
        """Give the gradients' memory back."""
        for weight in (*self.optimizer.weights, *self.optimizer.masters):
            weight.grad = None

    def update(self) -> None:
        """Reduce the gradients and change the weights by them."""
        self.reduce([p.grad for p in self.model.parameters() if p.grad is not None])
        self.optimizer.step()
        self.workload.after(self.model)

    def wait(self) -> None:
        """Return when the device has done everything."""
        if self.device != "cpu":
            torch.cuda.synchronize()

    def states(self) -> Iterator[Tensor]:
        """Yield the tensors that the optimizer keeps: moments, and masters where they are not the weights."""
        if self.optimizer.masters is not self.optimizer.weights:
            yield from self.optimizer.masters
        for state in self.optimizer.adam.state.values():
            yield from (t for t in state.values() if isinstance(t, Tensor))
