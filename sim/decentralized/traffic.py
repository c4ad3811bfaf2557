"""How many bytes one partition sends to one other: exactly those of a real run, but for Gaia, whose data decide."""

from collections.abc import Callable
from itertools import pairwise
from math import ceil
from typing import Annotated

from pydantic import BeforeValidator, Field

from sim.decentralized.communication import WARM_UP, Communication, kept_by_dgc, sparse_bytes, warmed_up, whole_bytes
from sim.decentralized.wan import tuples
from sim.specs.fields import DERIVED, InputError, real, spec, whole

MOST_VALUES = 10**13
AFTER = 10**18
"""A step after every warm-up."""


@spec
class Sizes:
    """What a network consists of, in values of 4 bytes.

    `parameters` of all tensors; `tensors` are those of each (left out: one, DGC counts by tensor). `buffers`: other
    floating-point values that travel with the parameters, such as the running statistics of batch norm.

    Raises:
        InputError: a number is out of range, or the tensors are not the parameters.
    """

    parameters: Annotated[int, whole(1, MOST_VALUES)] = DERIVED
    tensors: Annotated[
        tuple[Annotated[int, whole(1, MOST_VALUES)], ...],
        BeforeValidator(tuples),
        Field(max_length=100_000, description="a list of whole numbers: values of each tensor"),
    ] = ()
    buffers: Annotated[int, whole(0, MOST_VALUES)] = 0

    def __post_init__(self) -> None:
        stated: int | None = getattr(self, "parameters")  # noqa: B009 - declared int, None when left out
        if stated is None and not self.tensors:
            raise InputError("parameters", None, f"required: a whole number from 1 to {MOST_VALUES}, or tensors")
        if stated is None:
            object.__setattr__(self, "parameters", sum(self.tensors))
        elif self.tensors and sum(self.tensors) != stated:
            raise InputError("parameters", stated, f"the sum of tensors, {sum(self.tensors)}, or left out")

    @property
    def model_bytes(self) -> int:
        """What a model that travels comes to."""
        return whole_bytes(self.parameters + self.buffers)

    def scaled(self, model_bytes: float) -> "Sizes":
        """Return a network of so many bytes, whose tensors have the same shares of it."""
        ratio = model_bytes / self.model_bytes
        tensors = tuple(max(1, round(ratio * n)) for n in self.tensors or (self.parameters,))
        return Sizes(tensors=tensors, buffers=round(ratio * self.buffers))


@spec
class Messages:
    """What partitions send each other by an algorithm and a theta.

    `warm_up_steps`: of each stage of DGC's warm-up, in which no more is held back than `WARM_UP` says (0: none).
    `sent_fraction`: of the values, what Gaia sends of an update.
    """

    communication: Communication
    sizes: Sizes
    warm_up_steps: Annotated[int, whole(0, 1_000_000_000, "steps")] = 0
    sent_fraction: Annotated[float, real(0.0, 1.0)] = 1.0

    @property
    def stages(self) -> tuple[int, ...]:
        """The steps, counted from 1, at which messages get another size."""
        if self.communication.algorithm != "dgc" or not self.warm_up_steps:
            return (1,)
        return tuple(1 + n * self.warm_up_steps for n in range(len(WARM_UP) + 1))

    def bytes_at(self, step: int = AFTER) -> int:
        """Return the bytes of one message of the exchange after a step, counted from 1; left out: after warm-up."""
        return BYTES[self.communication.algorithm](self, step)

    def bytes_per_step(self, begin: int, end: int) -> float:
        """Return what one partition sends to one other for a minibatch, in the mean of those after `begin` to `end`.

        Of algorithms with a period it is that of whole periods: a stretch may have less than one.
        """
        edges = [begin, *(step - 1 for step in self.stages if begin < step - 1 < end), end]
        sent = sum((last - before) * self.bytes_at(last) for before, last in pairwise(edges))
        return sent / (end - begin) / self.communication.period


def _whole(messages: Messages, step: int) -> int:
    return whole_bytes(messages.sizes.parameters)


def _models(messages: Messages, step: int) -> int:
    return messages.sizes.model_bytes


def _gaia(messages: Messages, step: int) -> int:
    values = messages.sizes.parameters
    return sparse_bytes(ceil(messages.sent_fraction * values), values)


def _dgc(messages: Messages, step: int) -> int:
    theta, stage_steps = messages.communication.theta, messages.warm_up_steps
    share = warmed_up(theta, step, stage_steps) if stage_steps else theta
    each = messages.sizes.tensors or (messages.sizes.parameters,)
    return sparse_bytes(sum(kept_by_dgc(share, values) for values in each), messages.sizes.parameters)


BYTES: dict[str, Callable[[Messages, int], int]] = {
    "bsp": _whole,
    "gaia": _gaia,
    "fedavg": _models,
    "dgc": _dgc,
    "diloco": _models,
}
"""Algorithm -> what it sends: whole gradients, parameters and buffers, or values with their indices."""
