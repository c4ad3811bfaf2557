"""Runs a module on fake tensors and notes, part by part, kernels, saved tensors, boundaries and parameters.

A part is one call of a pipeline layer, or what runs before, between and after those. In the backward pass an
operation belongs to the part that created its autograd node (nodes are numbered in the order of creation).
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import _get_sequence_nr  # type: ignore[attr-defined]
from torch.utils._python_dispatch import TorchDispatchMode

from calibration.tracing.records import Record, copied, extent, records, storage_key, tensors
from calibration.tracing.values import Values
from sim.specs.fields import InputError
from sim.specs.table import Role

aten = torch.ops.aten
STATISTICS = (aten.native_layer_norm, aten.native_group_norm, aten.native_batch_norm)
"""Operations whose second and third results (mean, reciprocal deviation) CUDA keeps in fp32."""
NO_CHECKPOINTS = "a module without activation checkpointing: the plan says what is recomputed"


def _device(t: FakeTensor) -> torch.device:
    """Return what FakeTensorMode would: this is asked more often than all else together."""
    return torch.device("meta") if t.fake_mode.in_kernel_invocation else t.fake_device


@dataclass
class Part:
    """What one part did at one micro-batch size."""

    name: str
    role: Role | None = None
    ops: dict[str, list[Record]] = field(default_factory=lambda: {"forward": [], "input": [], "backward": []})
    parameters: int = 0
    trainable: int = 0
    tensors: int = 0
    shared: dict[str, int] = field(default_factory=dict)
    saved: int = 0
    boundary: int = 0
    temporaries: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Nothing happens here."""
        return not (any(self.ops.values()) or self.parameters or self.shared or self.saved)


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every dispatched operation; `parameters` are (name, tensor), `data` what is not an activation, `values`
    learns what the forward pass makes of known ones."""

    def __init__(
        self, parameters: Mapping[str, Tensor], data: Iterable[Tensor], values: Values, statistics: bool = True
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.parts = [Part("first", "first")]
        self.phase = "forward"
        self.captures: dict[int, Tensor] = {}
        self._starts = [0]
        self._depth = 0
        self._named = {storage_key(p): (name, p) for name, p in reversed([*parameters.items()])}
        self._owner: dict[int, int] = {}
        self._data = {storage_key(t) for t in data} | set(self._named)
        self._alive: list[Any] = []  # a freed storage's identity could be given to another
        self._created: dict[int, int] = {}
        self._active: set[int] = set()
        self._made: list[tuple[int, int, int]] = []
        self._saved: dict[int, tuple[int, set[int]]] = {}
        self._kept = 0  # bytes that the open part has saved so far
        self._crossed: dict[int, tuple[int, int]] = {}
        self._values = values
        self._statistics = statistics

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            return _device(args[0])
        node: Any = torch._C._current_autograd_node() if self.phase != "forward" else None
        if node is not None and torch.is_grad_enabled():
            raise InputError("module", "a forward pass inside backward", NO_CHECKPOINTS)
        out = func(*args, **(kwargs or {}))
        if self.phase == "forward":
            self._values.note(func, args, kwargs or {}, out)
        if self._statistics and func.overloadpacket in STATISTICS:
            out = (out[0], *(t.to(torch.float32) for t in out[1:]))
        part = len(self.parts) - 1 if node is None else bisect_right(self._starts, node._sequence_nr()) - 1
        active = self._use(tensors((args, kwargs)), part)
        self._make(tensors(out), part, active)
        self.parts[part].ops[self.phase] += records(func, args, kwargs or {}, out)
        if self.phase == "forward" and (size := copied(func, args, out)):
            self.parts[part].held.append(self._kept + size)
        return out

    def _use(self, inputs: list[Tensor], part: int) -> bool:
        """Note parameters and what earlier parts made; return whether an input is an activation.

        An activation depends on parameters, trainable or not; masks and rotary angles do not and can be made anew.
        """
        if self.phase != "forward":
            return False
        active = False
        for t in inputs:
            key = storage_key(t)
            if key in self._named:
                self._claim(key, part)
            elif key in self._active and self._created[key] < part:
                size, last = self._crossed.get(key, (0, 0))
                self._crossed[key] = max(size, extent(t)), max(last, part)
            active |= t.requires_grad or key in self._named or key in self._active
        return active

    def _make(self, results: list[Tensor], part: int, active: bool) -> None:
        for t in results:
            key = storage_key(t)
            if key not in self._created and key not in self._data:
                self._created[key] = part
                self._alive.append(t.untyped_storage())
                self._made.append((part, key, t.untyped_storage().nbytes()))
            if active and key in self._created:
                self._active.add(key)

    def _claim(self, key: int, part: int) -> None:
        name, tensor = self._named[key]
        if self._owner.setdefault(key, part) != part:
            self.parts[part].shared[name] = tensor.numel()

    def pack(self, tensor: Tensor) -> Tensor:
        """Note a tensor saved for backward; hold a detached one, since the tensor itself would make a cycle."""
        key, kept = storage_key(tensor), tensor.detach()
        if key not in self._data:
            self._alive.append(tensor.untyped_storage())
            size, parts = self._saved.setdefault(key, (tensor.untyped_storage().nbytes(), set()))
            self._kept += 0 if parts else size
            parts.add(len(self.parts) - 1)
        return kept

    def _enter(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            self._depth += 1
            if self._depth == 1:
                self.captures |= {id(t): t for t in tensors((args, kwargs)) if t.requires_grad}
                self._open(Part(name))
                for p in module.parameters():
                    self._claim(storage_key(p), len(self.parts) - 1)

        return hook

    def _leave(self, module: nn.Module, args: Any, out: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._open(Part(f"after {self.parts[-1].name}", "between"))

    def _open(self, part: Part) -> None:
        self.parts.append(part)
        self._kept = 0
        self._starts.append(_get_sequence_nr())

    @contextmanager
    def watching(self, layers: Mapping[str, nn.Module]) -> Iterator[None]:
        """Open a part at every call of a layer, and note what is saved for backward."""
        with ExitStack() as stack:
            for name, layer in layers.items():
                stack.enter_context(layer.register_forward_pre_hook(self._enter(name), with_kwargs=True))
                stack.enter_context(layer.register_forward_hook(self._leave))
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(self.pack, lambda t: t))
            yield

    def finish(self, gradients: Iterable[Tensor | None]) -> list[Part]:
        """Return the parts that do something, with their parameters, saved bytes, boundaries and temporaries."""
        for key, (_, tensor) in self._named.items():
            part = self.parts[self._owner.setdefault(key, 0)]
            part.parameters += tensor.numel()
            part.trainable += tensor.numel() if tensor.requires_grad else 0
            part.tensors += tensor.requires_grad
        for key, (size, parts) in self._saved.items():
            # What several parts save (an encoder's output, rotary angles) stays with the part that made it.
            home = next(iter(parts)) if len(parts) == 1 else self._created.get(key, min(parts))
            self.parts[home].saved += size
        for key, (size, last) in self._crossed.items():
            for part in self.parts[self._created[key] : last]:
                part.boundary += size
        kept = self._saved.keys() | self._crossed.keys() | {storage_key(g) for g in gradients if g is not None}
        for place, key, size in self._made:
            if key not in kept:
                self.parts[place].temporaries.append(size)
        if len(self.parts) > 1:
            self.parts[-1].name = self.parts[-1].role = "last"
        return [part for part in self.parts if not part.empty]
