"""The first phase: a copy of training's state that the second can write while training goes on."""

from collections.abc import Mapping
from typing import Literal

import torch

Place = Literal["host", "device"]


class Buffers:
    """Room for copies of a state's tensors, taken once: one piece for each type of numbers, which is one long write.

    place: host memory (pinned where the state is on a GPU, copied on a stream of its own) or the state's own device.
    """

    def __init__(self, place: Place = "host") -> None:
        self.place = place
        self.tensors: dict[str, torch.Tensor] = {}
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._copied: list[torch.cuda.Event] = []

    def fit(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take room for these tensors, keeping what fits already; on a GPU copies begin after what is launched now."""
        kinds = [(name, one.shape, one.dtype) for name, one in tensors.items()]
        if kinds != [(name, one.shape, one.dtype) for name, one in self.tensors.items()]:
            self.tensors = self._room(tensors)
        for device in {one.device for one in tensors.values() if one.is_cuda} - self._streams.keys():
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        for device, stream in self._streams.items():
            stream.wait_stream(torch.cuda.current_stream(device))

    def _room(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return views, in order, of one piece for all tensors of a device and type; its pages are taken now."""
        pieces: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
        for one in tensors.values():
            pieces.setdefault((one.device, one.dtype), []).append(one)
        views = {}
        for (device, dtype), held in pieces.items():
            where = device if self.place == "device" else torch.device("cpu")
            pinned = device.type == "cuda" and self.place == "host"
            piece = torch.empty(sum(one.numel() for one in held), dtype=dtype, device=where, pin_memory=pinned).zero_()
            parts = torch.split(piece, [one.numel() for one in held])
            views[device, dtype] = iter([part.view(one.shape) for part, one in zip(parts, held, strict=True)])
        return {name: next(views[one.device, one.dtype]) for name, one in tensors.items()}

    def copy(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy; on a GPU this only launches the copies."""
        for name, one in tensors.items():
            if one.is_cuda:
                with torch.cuda.stream(self._streams[one.device]):
                    self.tensors[name].copy_(one, non_blocking=True)
            else:
                self.tensors[name].copy_(one)
        self._copied = [stream.record_event() for stream in self._streams.values()]

    def hold_updates(self) -> None:
        """Let what is launched from now on wait for the copies; nothing to do on a CPU, where copies are done."""
        for event in self._copied:
            torch.cuda.current_stream().wait_event(event)

    def on_host(self) -> Mapping[str, torch.Tensor]:
        """Return the copies in host memory, once they are complete."""
        for event in self._copied:
            event.synchronize()
        wholes = {one.untyped_storage().data_ptr(): one for one in self.tensors.values()}
        hosts = {at: _whole(one).cpu() for at, one in wholes.items()}
        return {
            name: hosts[one.untyped_storage().data_ptr()].as_strided(one.shape, one.stride(), one.storage_offset())
            for name, one in self.tensors.items()
        }


def _whole(one: torch.Tensor) -> torch.Tensor:
    """Return all numbers of a view's piece."""
    return one.as_strided((one.untyped_storage().nbytes() // one.element_size(),), (1,), 0)
