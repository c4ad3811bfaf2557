"""Activations in host memory: what layers save for their backward leaves after the forward and comes back before it.

By autograd's hooks on saved tensors, storage by storage; weights and what the pipeline's runtime keeps itself stay. So
many layers as `sim.costs.offload` says are on the device in either direction: the one that runs and the one before it,
which is leaving, or which comes next.
"""

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, UntypedStorage, nn
from torch.autograd.graph import saved_tensors_hooks

from calibration.execute.host import HostMemory
from calibration.execute.split import local, whole_of
from sim.costs.side_by_side import ROOM


class Kept:
    """One storage: in host memory from `leave` on, on the device until `drop` and again from `fetch` on."""

    def __init__(self, storage: UntypedStorage) -> None:
        self.device: UntypedStorage | None = storage
        self.host: Tensor | None = None

    def leave(self, memory: HostMemory) -> None:
        """Copy it to host memory."""
        if self.device is not None:
            self.host = memory.empty(self.device.nbytes())
            self.host.untyped_storage().copy_(self.device, non_blocking=True)

    def fetch(self, device: Tensor) -> None:
        """Copy it into `device`, a tensor of as many bytes."""
        self.device = device.untyped_storage()
        if self.host is not None:
            self.device.copy_(self.host.untyped_storage(), non_blocking=True)


class Packed(NamedTuple):
    """A saved tensor: its storage, which part of that it is, and what makes a distributed one of it."""

    kept: Kept
    dtype: torch.dtype
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]
    whole: Callable[[Tensor], Tensor]


class Layer:
    """What one layer saves of one microbatch; `before`: the layer below it, whose backward comes next."""

    def __init__(self, memory: HostMemory, module: nn.Module, before: "Layer | None", stays: Tensor | None) -> None:
        self.memory, self.module, self.before, self.stays = memory, module, before, stays
        self.made: dict[int, Kept] = {}
        self.held: list[weakref.ref[Kept]] = []
        self.here = True
        self.leaving: list[Any] = []
        self.coming: list[Any] = []
        self.home: set[int] = set()

    def pack(self, tensor: Tensor) -> Tensor | Packed:
        """Return what autograd keeps in place of a tensor."""
        if not self.home:
            own = [*self.module.parameters(), *self.module.buffers(), *([] if self.stays is None else [self.stays])]
            self.home = {local(t).untyped_storage()._cdata for t in own}
        mine = local(tensor)
        storage = mine.untyped_storage()
        if storage._cdata in self.home or storage.nbytes() == 0:
            return tensor.detach()
        kept = self.made.setdefault(storage._cdata, Kept(storage))
        return Packed(kept, mine.dtype, int(mine.storage_offset()), mine.shape, mine.stride(), whole_of(tensor))

    def unpack(self, packed: Tensor | Packed) -> Tensor:
        """Return the tensor; the layer that comes next begins to come too."""
        if isinstance(packed, Tensor):
            return packed
        for layer in (self, self.before):
            if layer is not None and not layer.here:
                layer.fetch()
        # What has not been dropped is read where it is: its copy to the host reads it too, and nobody that.
        self.memory.wait(self.coming)
        if packed.kept.device is None:
            raise RuntimeError("a saved tensor is not on the device")
        made = torch.empty(0, dtype=packed.dtype, device=self.memory.device)
        made.set_(packed.kept.device, packed.offset, packed.shape, packed.stride)
        return packed.whole(made)

    def leave(self) -> None:
        """Begin to copy all that was saved; autograd alone keeps it from now on."""
        with self.memory.copying("out") as self.leaving:
            for kept in self.made.values():
                kept.leave(self.memory)
        self.held = [weakref.ref(kept) for kept in self.made.values()]
        self.made.clear()
        self.stays = None

    def drop(self) -> None:
        """Give up what is on the device, when it has been copied."""
        self.memory.wait(self.leaving)
        self.here = False
        for kept in self._alive():
            kept.device = None

    def fetch(self) -> None:
        """Begin to copy back what autograd still keeps."""
        self.here = True
        held = list(self._alive())
        sizes = [0 if k.host is None else k.host.numel() for k in held]
        room = [torch.empty(size, dtype=torch.uint8, device=self.memory.device) for size in sizes]
        with self.memory.copying("in") as self.coming:
            for kept, device in zip(held, room, strict=True):
                kept.fetch(device)

    def _alive(self) -> Iterator[Kept]:
        return (kept for ref in self.held if (kept := ref()) is not None)


class Mover:
    """Moves a share of the layers of a chunk."""

    def __init__(self, memory: HostMemory, share: float) -> None:
        self.memory, self.share = memory, share
        self.leaving: deque[Layer] = deque()

    def moves(self, number: int) -> bool:
        """Return whether the layer of that number in its chunk moves: a share of them, evenly spread."""
        return int((number + 1) * self.share + EXACT) > int(number * self.share + EXACT)

    @contextmanager
    def layer(self, module: nn.Module, number: int, before: Layer | None, stays: Tensor | None) -> Iterator[Layer]:
        """Run one layer of a forward; `stays`: a tensor that others keep on the device anyway."""
        while len(self.leaving) >= ROOM:
            self.leaving.popleft().drop()
        made = Layer(self.memory, module, before, stays)
        if self.moves(number):
            with saved_tensors_hooks(made.pack, made.unpack):
                yield made
        else:
            yield made
        made.leave()
        self.leaving.append(made)


EXACT = 1e-9
"""Shares are decimal fractions: a third of three layers is one."""
