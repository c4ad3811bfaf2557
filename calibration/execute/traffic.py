"""Counts the messages and bytes that a process sends, where torch calls the communication library."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from calibration.execute.memory import DISTRIBUTED
from sim.plans.traffic import EXCHANGED, PARTS, REDUCED, SUMMED

COLLECTIVES = {
    "allreduce_": (REDUCED, 0),
    "allgather_": (PARTS, 0),
    "_allgather_base_": (PARTS, 0),
    "alltoall_base_": (EXCHANGED, 1),
    "_reduce_scatter_base_": (SUMMED, 1),
}
"""Operations of torch's dispatcher: what they are, and which argument holds the whole buffer."""
FUNCTIONAL = {"all_reduce": REDUCED, "all_gather_into_tensor": PARTS, "reduce_scatter_tensor": SUMMED}
"""Those that DTensor calls, on what a rank puts in, with the group's name as last argument."""
QUIET = {"recv_", "barrier", "recv_any_source_", "wait_tensor", "_wrap_tensor_autograd"}


class Traffic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts while it is entered; `groups`: those that messages go through, by what they are called.

    A collective's bytes are those that a ring sends: (n - 1) / n of the whole buffer for each way through it, which no
    algorithm undercuts. gloo's own choice of algorithm is not seen.
    """

    def __init__(self, groups: Mapping[str, dist.ProcessGroup]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names = {group.group_name: axis for axis, group in groups.items()}
        self.sizes = {axis: group.size() for axis, group in groups.items()}
        self.found = defaultdict[str, tuple[int, float]](lambda: (0, 0.0))

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operation, and count it if it sends."""
        if any(issubclass(each, DISTRIBUTED) for each in types):
            return NotImplemented
        space, name = getattr(func, "namespace", ""), getattr(func, "__name__", "").split(".")[0]
        if name not in QUIET:
            if space == "c10d":
                self._count(name, args)
            elif space == "_c10d_functional":
                self._count_functional(name, args)
        return func(*args, **(kwargs or {}))

    def _count(self, name: str, args: Any) -> None:
        group = next(g for a in args if (g := _group(a)) is not None)
        axis = self.names.get(group.group_name, "world")
        if name == "send":
            key, size = f"{axis} send {group.rank()}>{args[2]}", _bytes(args[0])
        else:
            what, which = COLLECTIVES.get(name, (name, 0))
            key, size = f"{axis} {what}", _ring_bytes(what, _bytes(args[which]), group.size())
        self._add(key, size)

    def _count_functional(self, name: str, args: Any) -> None:
        axis, what, size = self.names[args[-1]], FUNCTIONAL.get(name, name), _bytes(args[0])
        n = self.sizes[axis]
        self._add(f"{axis} {what}", _ring_bytes(what, n * size if what == PARTS else size, n))

    def _add(self, key: str, size: float) -> None:
        calls, sent = self.found[key]
        self.found[key] = calls + 1, sent + size


def _ring_bytes(what: str, whole: float, ranks: int) -> float:
    return (2 if what == REDUCED else 1) * whole * (ranks - 1) / ranks


def _group(argument: Any) -> dist.ProcessGroup | None:
    if not isinstance(argument, torch.ScriptObject) or "ProcessGroup" not in str(argument._type()):
        return None
    return dist.ProcessGroup.unbox(argument)


def _bytes(tensors: Any) -> float:
    return float(sum(t.numel() * t.element_size() for t in tree_leaves(tensors) if isinstance(t, Tensor)))
