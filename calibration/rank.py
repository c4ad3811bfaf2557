"""One rank of a measured communicator: `python -m calibration.rank FOLDER`, started by `calibration.collectives`.

Rank 0 decides (how many calls make a sample, when time is up) and tells the others, so that all make the same calls.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from calibration.execute.meeting import meet
from calibration.execute.process import process
from sim.specs.files import load_mapping, write_atomically

ELEMENT = 4
WARMUPS = 3


@dataclass(frozen=True)
class Request:
    """What every rank is told: the cases (operation, bytes), and how to time them."""

    ranks: int
    backend: str
    cases: Sequence[tuple[str, int]]
    samples: int
    sample_s: float
    budget_s: float


def operation(
    name: str, size: int, rank: int, world: int, device: torch.device
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return what runs one collective of `size` bytes, and what returns its relative error after one run.

    size: of the whole result (all_reduce, all_gather, broadcast, p2p) or of the whole input (reduce_scatter), as
    `sim.costs.collectives.Group` counts. p2p is one message from rank 0 to rank 1 and an empty answer.
    """
    n = size // ELEMENT
    own = torch.full((n,), float(rank + 1), device=device)
    part = torch.full((max(1, n // world),), float(rank + 1), device=device)
    whole = torch.empty(part.numel() * world, device=device)
    ones = torch.ones(part.numel() * world, device=device)
    token = torch.zeros(1, device=device)

    def p2p() -> None:
        if rank == 0:
            dist.send(own, 1)
            dist.recv(token, 1)
        elif rank == 1:
            dist.recv(own, 0)
            dist.send(token, 0)

    def reduced() -> float:
        own.fill_(float(rank + 1))
        dist.all_reduce(own)
        return off(own, world * (world + 1) / 2)

    def gathered() -> float:
        dist.all_gather_into_tensor(whole, part)
        wanted = torch.arange(1, world + 1, device=device).repeat_interleave(part.numel())
        return float((whole - wanted).abs().max())

    def scattered() -> float:
        dist.reduce_scatter_tensor(part, ones)
        return off(part, world)

    def received(run: Callable[[], Any], ranks: int) -> float:
        own.fill_(float(rank + 1))
        run()
        return off(own, 1.0) if rank < ranks else 0.0

    def broadcast() -> None:
        dist.broadcast(own, 0)

    table: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "all_reduce": (lambda: dist.all_reduce(own), reduced),
        "all_gather": (lambda: dist.all_gather_into_tensor(whole, part), gathered),
        "reduce_scatter": (lambda: dist.reduce_scatter_tensor(part, ones), scattered),
        "broadcast": (broadcast, lambda: received(broadcast, world)),
        "p2p": (p2p, lambda: received(p2p, 2)),
    }
    return table[name]


def off(found: torch.Tensor, wanted: float) -> float:
    """Return the largest relative error of a tensor that should be `wanted` everywhere."""
    return float((found - wanted).abs().max()) / wanted


class Rank:
    """This process among the others."""

    def __init__(self, request: Request, rank: int, timeout: timedelta) -> None:
        self.request, self.rank = request, rank
        self.device = torch.device("cuda", rank) if request.backend == "nccl" else torch.device("cpu")
        self.begin = time.perf_counter()
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        torch.set_num_threads(1)
        meet(rank, request.ranks, self.device, timeout)

    def run(self) -> list[dict[str, Any]]:
        """Return what was found of every case, or of as many as the time allows."""
        found = []
        for name, size in self.request.cases:
            spent = time.perf_counter() - self.begin
            if self._agreed(int(spent > self.request.budget_s)):
                break
            found.append({"operation": name, "size": size, **self._case(name, size)})
        dist.barrier()
        dist.destroy_process_group()
        return found

    def _case(self, name: str, size: int) -> dict[str, Any]:
        """Return the seconds of one case, by sample, or why the backend cannot run it."""
        run, check = operation(name, size, self.rank, self.request.ranks, self.device)
        try:
            error = check()
        except RuntimeError as cause:  # raised by the backend before anything is sent, on all ranks alike
            return {"reason": str(cause).splitlines()[0]}
        for _ in range(WARMUPS):
            once = self._sample(run, 1)
        calls = self._agreed(int(np.clip(np.ceil(self.request.sample_s / once), 1, 1000)))
        seconds = [self._sample(run, calls) for _ in range(self.request.samples)]
        return {"seconds": seconds, "calls": calls, "error": error}

    def _sample(self, run: Callable[[], Any], calls: int) -> float:
        """Return the seconds of one call out of `calls`, begun by all ranks together."""
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(calls):
            run()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - begin) / calls

    def _agreed(self, value: int) -> int:
        """Return rank 0's value on every rank."""
        held = torch.tensor([value], device=self.device)
        dist.broadcast(held, 0)
        return int(held.item())


def main(folder: Path) -> None:
    """Measure what the task in `folder` asks for, and write what was found."""
    task = load_mapping(folder / "task.json")
    rank, timeout = int(os.environ["RANK"]), timedelta(seconds=task.pop("timeout_s"))
    found = Rank(Request(**task), rank, timeout).run()
    write_atomically(folder / f"result-{rank}.json", json.dumps({"cases": found}))


if __name__ == "__main__":
    process(main)
