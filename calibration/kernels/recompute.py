"""Layers whose backward pass repeats the forward pass, or most of it, as they are executed."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from sim.specs.plan import Recompute

PRODUCTS = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}
KEPT = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
}


def repeating(layer: nn.Module, x: Tensor, recompute: Recompute) -> Tensor:
    """Return `layer(x)`, which saves what `recompute` leaves; selective is torchtitan's checkpoint of operations."""
    if recompute == "none" or not torch.is_grad_enabled():
        out: Tensor = layer(x)
        return out
    given: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if recompute == "selective":
        given["context_fn"] = _every_second_product
    again: Tensor = checkpoint(layer, x, **given)
    return again


class Repeating(nn.Module):
    """A layer in such a wrapping."""

    def __init__(self, layer: nn.Module, recompute: Recompute) -> None:
        super().__init__()
        self.layer, self.recompute = layer, recompute

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        return repeating(self.layer, x, self.recompute)


def _every_second_product() -> Any:
    """Return what torchtitan's selective checkpoint keeps of a layer: fused attention, every second product."""
    seen = {True: 0, False: 0}

    def policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        keep = operation in KEPT
        if operation in PRODUCTS:
            seen[context.is_recompute] += 1
            keep = seen[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]
