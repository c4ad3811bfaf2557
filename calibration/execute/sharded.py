"""ZeRO-2 and ZeRO-3 as PyTorch has them: FSDP2 (`torch.distributed.fsdp.fully_shard`, arXiv 2304.11277).

Every block is a group, all else one more, as torchtitan wraps a model. Gradients are reduced into shards after every
microbatch; weights are gathered for every pass (3) or once a step (2).
"""

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from calibration.execute.trainer import DTYPES, LEARNING_RATE, Trainer


class ShardedTrainer(Trainer):
    """A rank that holds its shard of fp32 weights, gradients and optimizer states."""

    def _prepare(self) -> None:
        group = self.place.group("dp")
        if group is None:
            raise ValueError("shards need two ranks or more")
        self.parts.float()
        mesh = DeviceMesh.from_group(group, self.device.type)
        policy = MixedPrecisionPolicy(param_dtype=DTYPES[self.plan.precision], reduce_dtype=torch.float32)
        for block in self.module.blocks.values():
            fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=self.plan.zero == 3)
        fully_shard(self.module, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
        self.optimizer = torch.optim.Adam(self.parts.parameters(), lr=LEARNING_RATE, fused=True)

    def tensors(self) -> list[Tensor]:
        """Return what lives from step to step: batch, shards of weights, gradients and optimizer states, buffers."""
        held = list(self.parts.parameters())
        states = [t for each in self.optimizer.state.values() for t in each.values() if isinstance(t, Tensor)]
        return [
            self.batch,
            *self.parts.buffers(),
            *map(_local, [*held, *(p.grad for p in held if p.grad is not None), *states]),
        ]

    def step(self) -> float:
        """Train on the global batch once; return the mean loss of this rank's part."""
        loss = self.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)
        return loss

    def _pass(self, tokens: Tensor, last: bool) -> Tensor:
        """Run a microbatch forward and backward; FSDP takes the mean over the ranks itself."""
        if isinstance(self.module, FSDPModule):
            self.module.set_reshard_after_backward(self.plan.zero == 3 or last)
        loss = self.loss(tokens) / self.microbatches
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def gradient_error(self) -> float:
        """Return the largest difference between the reduced gradients, put together, and those of the whole batch."""
        self.backward()
        whole, worst, largest = self.serial_gradients(), 0.0, 0.0
        for name, parameter in self.module.named_parameters():
            gradient = parameter.grad
            if isinstance(gradient, DTensor):
                gradient = gradient.full_tensor()
            if gradient is not None:
                worst = max(worst, float((gradient - whole[name]).abs().max()))
                largest = max(largest, float(whole[name].abs().max()))
        self.optimizer.zero_grad(set_to_none=False)
        return worst / largest


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
