"""Copies between and inside memories: host to device, device to host, device to device; pinned and pageable."""

from collections.abc import Iterator

import torch
from torch import Tensor

from calibration.kernels.family import Case, Machine, Suite, Use, Work
from calibration.kernels.work import ZERO, Check, fits, pick, rotated, scattered, size, unequal
from sim.costs.algebra import Expr

KINDS = {
    "cuda": (("h2d", "pinned"), ("h2d", "pageable"), ("d2h", "pinned"), ("d2h", "pageable"), ("d2d", "device")),
    "cpu": (("d2d", "pageable"),),
}
"""(direction, implementation); a CPU's only copy is from its memory to its memory."""

LOW = 10
HIGH = {("cuda", "smoke"): 26, ("cuda", "full"): 28, ("cpu", "smoke"): 22, ("cpu", "full"): 26}
"""Powers of two in bytes that are fitted; copies four times as large are held out."""
PAGEABLE_HIGH = 26
"""The same of pageable memory: twenty samples of its largest copies would take as long as a whole family."""


class Copy:
    """`bytes` is what arrives; a device-to-device copy reads as much again from the same memory."""

    name = "copy"
    flop: Expr = ZERO
    bytes = size

    def cases(self, machine: Machine, suite: Suite) -> Iterator[Case]:
        """Yield every direction at the same sizes."""
        for direction, implementation in KINDS[machine.kind]:
            for use, n in _sizes(machine, suite, implementation):
                if fits(machine, n, factor=4):
                    yield Case("copy", direction, "uint8", implementation, {"bytes": n}, str(n), use=use)

    def prepare(self, case: Case, machine: Machine, seed: int) -> Work:
        """Return the copy from and to buffers of their own in every set."""
        n, pinned = int(case.shape["bytes"]), case.implementation == "pinned"
        source, target = (_where(machine, side) for side in case.direction.split("2"))

        def buffers() -> tuple[Tensor, Tensor]:
            data = scattered(n, seed)
            return _held(torch.ones_like(data), target, pinned), _held(data, source, pinned)

        def run(to: Tensor, data: Tensor) -> Tensor:
            return to.copy_(data, non_blocking=pinned)

        def once() -> Tensor:
            sets[0][0].zero_()
            out = run(*sets[0])
            if machine.kind == "cuda":
                torch.cuda.synchronize()
            return out

        sets = rotated(machine, 2 * n, buffers)
        return Work(run, sets, Check(once, lambda out: unequal(out, sets[0][1])), 0.0)


def _where(machine: Machine, side: str) -> str:
    return machine.kind if side == "d" else "cpu"


def _held(data: Tensor, where: str, pinned: bool) -> Tensor:
    """Return `data` in the memory that is meant."""
    return data.pin_memory() if pinned and where == "cpu" else data.to(where)


def _sizes(machine: Machine, suite: Suite, implementation: str) -> Iterator[tuple[Use, int]]:
    """Yield (use, bytes)."""
    high = HIGH[machine.kind, suite]
    if implementation == "pageable":
        high = min(high, PAGEABLE_HIGH)
    pool = [2**n for n in range(LOW, high + 1)]
    for n in pick(pool, int, 2 ** HIGH[machine.kind, "smoke"], suite, (8, 18), 0):
        yield "fit", n
    for n in (3 * 2 ** (LOW + 3) + 1, 5 * 2 ** (high - 5) + 3, 3 * 2 ** (high - 2)):
        yield "random", n
    yield "larger", 2 ** (high + 2)


FAMILIES = (Copy(),)
