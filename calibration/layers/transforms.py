"""What torch does to a layer as a function, which kernels know nothing of."""

import torch


def transformed() -> bool:
    """Return whether what runs now is inside torch.func (grad, vmap, jvp), torch.jit.trace or torch.export."""
    functions = torch._C._are_functorch_transforms_active()  # as torch asks itself before an autograd function
    traced = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return functions or traced or torch.compiler.is_exporting()
