"""Tensors that are kept in host memory, and copies in either direction (Mist, arXiv 2503.19050; `sim.costs.offload`).

On a GPU host memory is pinned, and copies run on a stream for each direction beside compute. A CPU has one memory only:
the copies are as real, made at once, and what they fill is counted apart from the device's tensors.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, UntypedStorage
from torch.utils.weak import WeakIdKeyDictionary

Way = Literal["in", "out"]


class HostMemory:
    """Host memory beside `device`: `live_bytes` of tensors now, `peak_bytes` the most since `restart`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.live_bytes = self.peak_bytes = 0
        self._known, self._making = WeakIdKeyDictionary(), False
        self._streams: dict[Way, Any] = {}

    def restart(self) -> None:
        """Count the peak from here on."""
        self.peak_bytes = self.live_bytes

    def has(self, storage: UntypedStorage) -> bool:
        """Return whether a storage is, or is just being made, in this memory."""
        return self._making or storage in self._known

    def empty(self, elements: int, dtype: torch.dtype = torch.uint8) -> Tensor:
        """Return a tensor in host memory."""
        self._making = True
        try:
            made = torch.empty(elements, dtype=dtype, pin_memory=self.device.type == "cuda")
        finally:
            self._making = False
        storage = made.untyped_storage()
        self._known[storage] = True
        self.live_bytes += storage.nbytes()
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        weakref.finalize(storage, self._free, storage.nbytes())
        return made

    def _free(self, size: int) -> None:
        self.live_bytes -= size

    @contextmanager
    def copying(self, way: Way) -> Iterator[list[Any]]:
        """Run the copies of the block when compute has come here; what is yielded is what `wait` takes."""
        done: list[Any] = []
        if self.device.type != "cuda":
            yield done
            return
        stream = self._streams.setdefault(way, torch.cuda.Stream(self.device))  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            yield done
            done.append(stream.record_event())

    def wait(self, done: list[Any]) -> None:
        """Let compute wait for copies: only then may it read, or give up, what they were of."""
        for event in done:
            torch.cuda.current_stream(self.device).wait_event(event)
