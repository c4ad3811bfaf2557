"""How messages get from partition to partition."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from calibration.federated.message import Message

Members = tuple[int, ...]
Route = Callable[[Members], Sequence[tuple[int, int]]]
"""From the partitions that are there to the pairs (sender, receiver) between which a message passes."""


@dataclass(frozen=True, eq=False)
class Exchanged:
    """Messages of all partitions that were there, in their order, and between which of them these passed."""

    members: Members
    messages: tuple[Message, ...]
    links: tuple[tuple[int, int], ...]

    @property
    def sent_bytes(self) -> tuple[int, ...]:
        """The size of each message."""
        return tuple(message.sent_bytes for message in self.messages)

    @property
    def traffic_bytes(self) -> int:
        """The sum over all links."""
        sizes = dict(zip(self.members, self.sent_bytes, strict=True))
        return sum(sizes[sender] for sender, _ in self.links)


class Transport(Protocol):
    """Takes the messages of the partitions in this process and returns those of all."""

    def exchange(self, step: int, messages: Sequence[Message], route: Route) -> Exchanged:
        """Return when every partition has what is sent to it; `step` says when that is."""


class Memory:
    """All partitions are in this process."""

    def __init__(self, partitions: int) -> None:
        self.members = tuple(range(partitions))

    def exchange(self, step: int, messages: Sequence[Message], route: Route) -> Exchanged:
        """Return the messages as they are."""
        return Exchanged(self.members, tuple(messages), tuple(route(self.members)))


def everyone(members: Members) -> list[tuple[int, int]]:
    """Each partition sends to each other one."""
    return [(sender, receiver) for sender in members for receiver in members if sender != receiver]


def nobody(members: Members) -> list[tuple[int, int]]:
    """What is shared is no traffic of the training: accuracies, and models for the test."""
    return []


def onward(travel: int) -> Route:
    """Return the route of a travel, counted from 0: each model goes to the next partition, then to the one after."""

    def route(members: Members) -> list[tuple[int, int]]:
        k = len(members)
        shift = 1 + travel % (k - 1) if k > 1 else 0
        return [(sender, members[(at + shift) % k]) for at, sender in enumerate(members) if shift]

    return route
