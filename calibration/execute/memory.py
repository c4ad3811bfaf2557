"""Bytes of tensors that live at once on the CPU, where no allocator keeps the count."""

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from torch import Tensor, UntypedStorage
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

DISTRIBUTED = (DTensor, AsyncCollectiveTensor)
"""Tensors whose operations are made of others, on a rank's part: a mode that steps back sees those."""


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the storages that operations make until they are freed; `peak_bytes` is the most at once.

    `held` are tensors that were there before. A storage that is resized (as FSDP gives up gathered weights) counts with
    its new size. `elsewhere` says which storages are in another memory. What a kernel allocates for itself inside one
    operation is not seen.
    """

    def __init__(
        self, held: Iterable[Tensor], elsewhere: Callable[[UntypedStorage], bool] = lambda storage: False
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elsewhere = elsewhere
        self.known = WeakIdKeyDictionary()
        self.live_bytes = self.peak_bytes = 0
        for tensor in held:
            self._hold(tensor.untyped_storage())

    def __enter__(self) -> Self:
        self.resize: Callable[..., Any] = UntypedStorage.resize_
        resize = self.resize

        def resized(storage: UntypedStorage, size: int) -> Any:
            done = resize(storage, size)
            self._resized(storage)
            return done

        UntypedStorage.resize_ = resized  # type: ignore[method-assign, assignment]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *given: Any) -> None:
        UntypedStorage.resize_ = self.resize  # type: ignore[method-assign]
        super().__exit__(*given)  # type: ignore[no-untyped-call]

    def _hold(self, storage: UntypedStorage) -> None:
        if storage in self.known or storage.device.type == "meta" or self.elsewhere(storage):
            return
        size = [storage.nbytes()]
        self.known[storage] = size
        self._add(size[0])
        weakref.finalize(storage, self._free, size)

    def _resized(self, storage: UntypedStorage) -> None:
        if storage not in self.known:
            self._hold(storage)
            return
        size = self.known[storage]
        change, size[0] = storage.nbytes() - size[0], storage.nbytes()
        self._add(change)

    def _add(self, size: int) -> None:
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def _free(self, size: list[int]) -> None:
        self.live_bytes -= size[0]

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operation and count what it made; of a DTensor's what is done to its part."""
        if any(issubclass(each, DISTRIBUTED) for each in types):
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor) and not isinstance(leaf, DISTRIBUTED):
                self._hold(leaf.untyped_storage())
        return out
