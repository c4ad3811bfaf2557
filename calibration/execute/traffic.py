"""Counts the messages and bytes that a process sends, where torch calls the communication library."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sim.plans.traffic import EXCHANGED, PARTS, REDUCED, SUMMED

COLLECTIVES = {
    "allreduce_": (REDUCED, 0),
    "allgather_": (PARTS, 0),
    "_allgather_base_": (PARTS, 0),
    "alltoall_base_": (EXCHANGED, 1),
    "_reduce_scatter_base_": (SUMMED, 1),
}
"""Operations of torch's dispatcher: what they are, and which argument holds the whole buffer."""
QUIET = {"recv_", "barrier", "recv_any_source_"}


class Traffic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts while it is entered; `names`: what the groups are called, by torch's names.

    A collective's bytes are those that a ring sends: (n - 1) / n of the whole buffer for each way through it, which no
    algorithm undercuts. gloo's own choice of algorithm is not seen.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names, self.found = names, defaultdict[str, tuple[int, float]](lambda: (0, 0.0))

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operation, and count it if it sends."""
        if getattr(func, "namespace", "") == "c10d":
            self._count(str(func._schema.name).removeprefix("c10d::"), args)  # type: ignore[attr-defined]
        return func(*args, **(kwargs or {}))

    def _count(self, name: str, args: Any) -> None:
        if name in QUIET:
            return
        group = next(g for a in args if (g := _group(a)) is not None)
        axis = self.names.get(group.group_name, "world")
        if name == "send":
            key, size = f"{axis} send {group.rank()}>{args[2]}", _bytes(args[0])
        else:
            what, which = COLLECTIVES.get(name, (name, 0))
            n = group.size()
            key, size = f"{axis} {what}", (2 if what == REDUCED else 1) * _bytes(args[which]) * (n - 1) / n
        calls, sent = self.found[key]
        self.found[key] = calls + 1, sent + size


def _group(argument: Any) -> dist.ProcessGroup | None:
    if not isinstance(argument, torch.ScriptObject) or "ProcessGroup" not in str(argument._type()):
        return None
    return dist.ProcessGroup.unbox(argument)


def _bytes(tensors: Any) -> float:
    return float(sum(t.numel() * t.element_size() for t in tree_leaves(tensors) if isinstance(t, Tensor)))
