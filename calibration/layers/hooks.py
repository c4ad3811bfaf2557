"""What users add to a module besides its parameters."""

from torch import nn

_HELD = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def hooked(module: nn.Module) -> bool:
    """Return whether a module has hooks, which a layer in its place would not call."""
    return any(getattr(module, name) for name in _HELD)
