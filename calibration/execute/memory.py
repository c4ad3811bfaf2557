"""Bytes of tensors that live at once on the CPU, where no allocator keeps the count."""

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the storages that operations make until they are freed; `peak_bytes` is the most at once.

    `held` are tensors that were there before. What a kernel allocates for itself inside one operation is not seen.
    """

    def __init__(self, held: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.known = WeakIdKeyDictionary()
        self.live_bytes = self.peak_bytes = 0
        for tensor in held:
            self._hold(tensor.untyped_storage())

    def _hold(self, storage: UntypedStorage) -> None:
        if storage in self.known:
            return
        size = storage.nbytes()
        self.known[storage] = size
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        weakref.finalize(storage, self._free, size)

    def _free(self, size: int) -> None:
        self.live_bytes -= size

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operation and count what it made."""
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._hold(leaf.untyped_storage())
        return out
