"""What memory costs: from the allocator's free blocks (hit), or fresh from driver or operating system (miss)."""

import mmap
from collections.abc import Iterator
from math import nan

import torch

from calibration.kernels.family import Case, Machine, Suite, Use, Work
from calibration.kernels.work import SETS, ZERO, fits, size
from sim.costs.algebra import Expr

SIZES = {
    ("cpu", "hit"): (10, 12, 14, 16, 18),
    ("cpu", "miss"): (25, 26, 27),
    ("cuda", "hit"): (10, 16, 20, 24, 28),
    ("cuda", "miss"): (21, 24, 27, 30),
}
"""Powers of two in bytes."""


class Allocate:
    """One block of `bytes`, freed at once. A CPU's miss is a mapping of its own, written: pages come with a touch."""

    name = "allocate"
    flop: Expr = ZERO
    bytes = size

    def cases(self, machine: Machine, suite: Suite) -> Iterator[Case]:
        """Yield hits and misses of several sizes."""
        for direction in ("hit", "miss"):
            *fitted, last = SIZES[machine.kind, direction]
            chosen: list[tuple[Use, int]] = [("fit", 2**n) for n in fitted]
            chosen += [("random", 3 * 2 ** (fitted[0] - 1)), ("larger", 2**last)]
            for use, n in chosen:
                if fits(machine, n, factor=2):
                    yield Case("allocate", direction, "uint8", "torch", {"bytes": n}, str(n), use=use)

    def prepare(self, case: Case, machine: Machine, seed: int) -> Work:
        """Return the allocation; nothing is computed that could be compared."""
        n, hit = int(case.shape["bytes"]), case.direction == "hit"

        def run() -> None:
            if machine.kind == "cpu" and not hit:
                torch.frombuffer(mmap.mmap(-1, n), dtype=torch.uint8).fill_(1)
                return
            block = torch.empty(n, dtype=torch.uint8, device=machine.kind)
            if not hit:
                del block
                torch.cuda.empty_cache()

        return Work(run, [()] * SETS, lambda: nan, 0.0)


FAMILIES = (Allocate(),)
