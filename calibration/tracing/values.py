"""Values of tensors that depend on no input and no chance, as masks do: torch's own transformers look at theirs."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from calibration.tracing.records import ALLOCATIONS, storage_key, tensors

MOST = 2**24
"""Numbers in a tensor whose values are held: a mask of 4,096 tokens."""


class Values:
    """What fake tensors would hold, as far as it is known: `given` are fake tensors beside what they stand for."""

    def __init__(self, given: Iterable[tuple[Tensor, Tensor]]) -> None:
        real = [(f, t) for f, t in given if not isinstance(t, FakeTensor) and not t.is_meta and t.numel() <= MOST]
        with _disable_current_modes():
            # The fake tensor is held too: its identity could be given to another.
            self._held = {id(fake): (fake, t.detach().to("cpu", fake.dtype)) for fake, t in real}

    def of(self, t: Tensor) -> Tensor | None:
        """Return a fake tensor's values, None if they are not known."""
        return self._held.get(id(t), (t, None))[1]

    def note(self, func: Any, args: Any, kwargs: Mapping[str, Any], out: Any) -> None:
        """Run an operation on values too if it has nothing but known ones, and forget what it writes over."""
        inputs = tensors((args, kwargs))
        if func._schema.is_mutable:
            written = {storage_key(t) for t in tensors(out)}
            self._held = {key: held for key, held in self._held.items() if storage_key(held[0]) not in written}
        elif (
            isinstance(out, Tensor)
            and out.numel() <= MOST
            and all(id(t) in self._held for t in inputs)
            and func.overloadpacket not in ALLOCATIONS
            and torch.Tag.nondeterministic_seeded not in func.tags
        ):
            known = tree_map(lambda x: self._held[id(x)][1] if isinstance(x, Tensor) else x, (args, dict(kwargs)))
            with _disable_current_modes():
                self._held[id(out)] = out, func(*known[0], **known[1])
