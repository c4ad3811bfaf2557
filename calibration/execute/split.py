"""Tensor and sequence parallelism of the small GPT by PyTorch's own: DTensor and `torch.distributed.tensor.parallel`.

Rows of the first product of each half of a block and columns of the second are split over the ranks of a group
(arXiv 1909.08053); with sequence parallelism what lies between the halves is split along the sequence (dimension 1).
Unlike Megatron-LM (arXiv 2205.05198) PyTorch keeps the gathered input of a product for its weight's gradient.

PyTorch's styles start a collective and wait where its result is used, which is the next operation. Here they wait at
once: over gloo (torch 2.13) tensors still under way in autograd broke the heap in two runs of five.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional


class Columns(ColwiseParallel):
    """A product whose outputs are split; its input is gathered."""

    @staticmethod
    def _prepare_input_fn(given: Any, wanted: Any, module: nn.Module, inputs: Any, mesh: DeviceMesh) -> Any:
        return DTensor.from_local(inputs[0], mesh, given, run_check=False).redistribute(placements=wanted)


class Rows(RowwiseParallel):
    """A product whose inputs are split; its output is summed."""

    @staticmethod
    def _prepare_output_fn(wanted: Any, as_local: bool, module: nn.Module, outputs: Any, mesh: DeviceMesh) -> Any:
        return outputs.redistribute(placements=wanted).to_local()


@dataclass(frozen=True)
class Split:
    """The tensor-parallel group that a rank is one of, or none; `sequence`: whether sequence parallelism is on."""

    mesh: DeviceMesh | None = None
    sequence: bool = False

    @classmethod
    def of(cls, group: dist.ProcessGroup | None, device: torch.device, sequence: bool) -> "Split":
        """Return the split over a group (None: nothing is split)."""
        return cls(
            None if group is None else DeviceMesh.from_group(group, device.type, mesh_dim_names=("tp",)), sequence
        )

    @property
    def size(self) -> int:
        """Ranks of the group."""
        return 1 if self.mesh is None else self.mesh.size()

    def apply(self, module: nn.Module) -> None:
        """Split the products, tables and norms that `module` has of a small GPT's, in place."""
        if self.mesh is None:
            return
        outside = Shard(1) if self.sequence else Replicate()
        rows, columns = Rows(output_layouts=outside), Columns(input_layouts=outside)
        styles = {
            "tokens": Rows(input_layouts=Replicate(), output_layouts=outside),
            **dict.fromkeys(("blocks.*.qkv", "blocks.*.up", "head"), columns),
            **dict.fromkeys(("blocks.*.out", "blocks.*.down"), rows),
        }
        if self.sequence:
            styles |= dict.fromkeys(
                ("blocks.*.norm1", "blocks.*.norm2", "norm"), SequenceParallel(use_local_output=True)
            )
        held = {name: style for name, style in styles.items() if hasattr(module, name.split(".")[0])}
        parallelize_module(module, self.mesh, held, src_data_rank=None)

    def part(self, tensor: Tensor, dim: int) -> Tensor:
        """Return this rank's part of a tensor."""
        return tensor if self.mesh is None else tensor.chunk(self.size, dim)[self.mesh.get_local_rank()]

    def own(self, whole: Tensor, like: Tensor) -> Tensor:
        """Return this rank's part of a whole model's parameter (or of its gradient), as parameter `like` is split."""
        for placement in like.placements if isinstance(like, DTensor) else ():
            if isinstance(placement, Shard):
                return self.part(whole, placement.dim)
        return whole

    def losses(self) -> AbstractContextManager[None]:
        """Return the context in which losses of logits that are split run forward and backward."""
        return nullcontext() if self.mesh is None else loss_parallel()

    def cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean fp32 cross-entropy of targets[n] by logits[n, vocab / size], within `losses`."""
        logits = logits.float()
        if self.mesh is None:
            return functional.cross_entropy(logits, targets)
        whole = DTensor.from_local(logits, self.mesh, [Shard(1)], run_check=False)
        loss: Tensor = functional.cross_entropy(whole, targets).to_local()  # type: ignore[attr-defined]
        return loss


def local(tensor: Tensor) -> Tensor:
    """Return what a rank holds of a tensor, which is not copied; what is under way has arrived."""
    with torch.no_grad():
        mine = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        return mine.wait() if isinstance(mine, AsyncCollectiveTensor) else mine


def whole_of(tensor: Tensor) -> Callable[[Tensor], Tensor]:
    """Return what makes a rank's part of such a tensor what it is: a DTensor, or the part itself."""
    if not isinstance(tensor, DTensor):
        return lambda part: part
    mesh, placements, shape, stride = tensor.device_mesh, tensor.placements, tensor.shape, tensor.stride()
    return lambda part: DTensor.from_local(part, mesh, placements, run_check=False, shape=shape, stride=stride)


def gradient_of(parameter: Tensor, held: Tensor, partial: bool) -> Tensor:
    """Return `held` as the gradient of a parameter, to which autograd adds in place; `partial`: a part of a sum."""
    if not isinstance(parameter, DTensor):
        return held
    placements = [Partial()] if partial else parameter.placements
    return DTensor.from_local(held, parameter.device_mesh, placements, run_check=False)
