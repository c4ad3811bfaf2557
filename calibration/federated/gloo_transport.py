"""Messages between processes by gloo, which go on with those that are left when one is gone."""

import json
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic, sleep
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import ProcessGroupGloo

from calibration.federated.links import Links
from calibration.federated.message import Message
from calibration.federated.transport import Exchanged, Members, Route

NUMBER, PARTITION, VALUES, INDICES, SIGNIFICANT, WIDE, HELD, READY = range(8)
"""What a head says: the exchange's number, whose message it is, how many values and indices it has (-1: none) and how
many say something, whether values have 8 bytes, how many messages of the exchange before its sender holds, and when it
was ready (s on the clock that all processes of a machine share)."""

EMPTY = Message(torch.empty(0))


@dataclass
class Waiting:
    """For how many messages of one partition another had to wait last and longest, and how long (s)."""

    exchanges: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Regrouped:
    """At a step some partitions were `gone`; `seconds` from when that was noticed until the others met anew, at
    `until_s` on the machine's clock."""

    step: int
    gone: Members
    seconds: float
    until_s: float


class GoneError(RuntimeError):
    """Another partition cannot be reached."""


def members_key(generation: int) -> str:
    """Return under which key of the store those who are left are written, by whoever watches the processes."""
    return f"members-{generation}"


class GlooTransport:
    """Partition `own` among others that are processes; all meet at `store`.

    An exchange takes as long as the slowest of its messages is on its way over `links`. Where one fails, `store` is
    asked for those that are left, they meet anew and repeat it; nobody waits longer than `timeout_s`. killed_at: the
    step in whose first exchange this process kills itself, for trying just that.
    """

    def __init__(
        self, own: int, partitions: int, store: Store, links: Links, timeout_s: float, killed_at: int = 0
    ) -> None:
        self.own, self.members, self.store, self.links = own, tuple(range(partitions)), store, links
        self.timeout, self.killed_at = timedelta(seconds=timeout_s), killed_at
        self.generation = self.number = 0
        self.last = Exchanged((), (), ())
        self.waits: dict[tuple[int, int], Waiting] = {}
        self.regrouped: list[Regrouped] = []
        self.exchange_s = 0.0
        self._group: Any = self._formed()  # the stub of gloo's groups lacks what they do

    def exchange(self, step: int, messages: Sequence[Message], route: Route) -> Exchanged:
        """Return when every message has arrived.

        Raises:
            RuntimeError: the others are neither there nor known to be gone.
        """
        begin, (message,), done = monotonic(), messages, None
        self.number += 1
        while done is None:
            try:
                done = self._gathered(step, message, route)
            except GoneError:
                self._regroup(step)
        self.last = done
        self.exchange_s += monotonic() - begin
        return done

    def _gathered(self, step: int, message: Message, route: Route) -> Exchanged | None:
        """Return what was exchanged, None where another had to be helped to the end of the exchange before."""
        heads = self._heads(message, self.own)
        if step == self.killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        numbers = [int(head[NUMBER]) for head in heads]
        if min(numbers) < max(numbers):
            return self._repeated(heads, numbers, route)
        done = Exchanged(self.members, self._payloads(message, heads), tuple(route(self.members)))
        self._wait(done, [float(head[READY]) for head in heads])
        return done

    def _repeated(self, heads: Sequence[Tensor], numbers: Sequence[int], route: Route) -> Exchanged | None:
        """Give those who lack the last exchange what the others had of it; they alone take it."""
        leader = numbers.index(max(numbers))
        ahead, found, members = self.number == max(numbers), [], []
        for at in range(int(heads[leader][HELD])):
            given, of = (self.last.messages[at], self.last.members[at]) if ahead else (EMPTY, self.own)
            told = self._heads(given, of)
            found.append(self._payloads(given, told)[leader])
            members.append(int(told[leader][PARTITION]))
        return None if ahead else Exchanged(tuple(members), tuple(found), tuple(route(tuple(members))))

    def _heads(self, message: Message, of: int) -> list[Tensor]:
        indices = -1 if message.indices is None else message.indices.numel()
        wide = message.values.dtype == torch.float64
        sizes = self.number, of, message.values.numel(), indices, message.significant, wide, len(self.last.messages)
        return self._all(torch.tensor([*sizes, monotonic()], dtype=torch.float64))

    def _payloads(self, message: Message, heads: Sequence[Tensor]) -> tuple[Message, ...]:
        arrays = [message.values] if message.indices is None else [message.values, message.indices]
        raw = torch.cat([array.contiguous().view(torch.uint8) for array in arrays])
        sizes = [_value_bytes(head) + 4 * max(0, int(head[INDICES])) for head in heads]
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(raw)] = raw
        return tuple(_message(head, part) for head, part in zip(heads, self._all(padded), strict=True))

    def _all(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensor of each member."""
        found = [torch.empty_like(tensor) for _ in self.members]
        try:
            self._group.allgather([found], [tensor]).wait()
        except RuntimeError as error:  # gloo's word for a peer that is gone
            raise GoneError(str(error)) from None
        return found

    def _wait(self, done: Exchanged, ready: Sequence[float]) -> None:
        """Return when the last message has arrived everywhere; keep whose was the last at each partition."""
        began = dict(zip(done.members, ready, strict=True))
        sizes = dict(zip(done.members, done.sent_bytes, strict=True))
        last: dict[int, tuple[float, int]] = {}
        for sender, receiver in done.links:
            arrival = began[sender] + self.links.carry_s(sender, receiver, sizes[sender])
            last[receiver] = max(last.get(receiver, (0.0, 0)), (arrival, sender))
        for receiver, (arrival, sender) in last.items():
            held = self.waits.setdefault((receiver, sender), Waiting())
            held.exchanges += 1
            held.seconds += max(0.0, arrival - began[receiver])
        end = max((arrival for arrival, _ in last.values()), default=0.0)
        sleep(max(0.0, end - monotonic()))

    def _regroup(self, step: int) -> None:
        """Meet those who are left; what this process still has open is closed, so that the others notice too."""
        begin, before = monotonic(), self.members
        self._group = None
        while self._group is None:
            self.generation += 1
            key = members_key(self.generation)
            self.store.wait([key], self.timeout)
            self.members = tuple(json.loads(self.store.get(key)))
            with suppress(RuntimeError):  # one more was lost: the next list is without it
                self._group = self._formed()
        gone = tuple(sorted({*before} - {*self.members}))
        self.regrouped.append(Regrouped(step, gone, monotonic() - begin, monotonic()))

    def _formed(self) -> ProcessGroupGloo:
        store = PrefixStore(f"generation-{self.generation}", self.store)
        return ProcessGroupGloo(store, self.members.index(self.own), len(self.members), self.timeout)


def _value_bytes(head: Tensor) -> int:
    return int(head[VALUES]) * (8 if head[WIDE] else 4)


def _message(head: Tensor, raw: Tensor) -> Message:
    cut, dtype = _value_bytes(head), torch.float64 if head[WIDE] else torch.float32
    count = int(head[INDICES])
    indices = None if count < 0 else raw[cut : cut + 4 * count].clone().view(torch.int32)
    return Message(raw[:cut].clone().view(dtype), indices, int(head[SIGNIFICANT]))
