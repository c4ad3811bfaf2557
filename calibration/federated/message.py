"""What one partition sends: fp32 values, of some of a vector with their places."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sim.decentralized.communication import sparse_bytes, whole_bytes


@dataclass(frozen=True, eq=False)
class Message:
    """`values` fp32 [sent], with `indices` int32 [sent] into the vector they are of; without, it is sent whole.

    `significant`: how many of the values say something, others are zeros that fill up.
    """

    values: Tensor
    indices: Tensor | None = None
    significant: int = 0

    @property
    def sent_bytes(self) -> int:
        """The size of its arrays."""
        return sum(array.numel() * array.element_size() for array in (self.values, self.indices) if array is not None)

    def added_to(self, total: Tensor) -> Tensor:
        """Add it to a vector [values] in place, and return that."""
        return total.add_(self.values) if self.indices is None else total.index_add_(0, self.indices, self.values)


def whole(vector: Tensor) -> Message:
    """Return a message with a copy of all of a vector."""
    return Message(vector.clone(), significant=vector.numel())


def taken(vector: Tensor, places: Tensor) -> Message:
    """Return a message with the values at `places` int64 [sent] of a vector, which are zero there afterwards.

    Where indices would make it larger than the vector, it holds the whole, filled up with zeros.
    """
    values, sent = vector[places], len(places)
    vector[places] = 0.0
    if sparse_bytes(sent, vector.numel()) < whole_bytes(vector.numel()):
        return Message(values, places.to(torch.int32), sent)
    return Message(torch.zeros_like(vector).index_copy_(0, places, values), significant=sent)


def mean(messages: Sequence[Message], like: Tensor) -> Tensor:
    """Return the mean [values] of messages about vectors like `like`, added up in their order."""
    total = torch.zeros_like(like)
    for message in messages:
        message.added_to(total)
    return total.div_(len(messages))
