"""What a checkpoint does to the state it saves: clone, copy to pinned memory, serialise, write and fsync."""

import io
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibration.kernels.family import Case, Machine, Suite, Use, Work
from calibration.kernels.work import SETS, ZERO, Check, fits, scattered, size, unequal
from sim.costs.algebra import Expr

SIZES: dict[tuple[str, Suite], tuple[tuple[Use, float], ...]] = {
    ("cpu", "smoke"): (("fit", 0.25), ("fit", 2), ("random", 1.3), ("larger", 8)),
    ("cpu", "full"): (("fit", 0.25), ("fit", 2), ("fit", 16), ("random", 1.3), ("random", 9), ("larger", 64)),
    ("cuda", "smoke"): (("fit", 1), ("fit", 16), ("random", 9), ("larger", 64)),
    ("cuda", "full"): (("fit", 1), ("fit", 4), ("fit", 16), ("random", 2.6), ("random", 9), ("larger", 64)),
}
"""MiB of one tensor; whole checkpoints are streams of such pieces."""


class Snapshot:
    """One stage of a snapshot of `bytes`."""

    name = "snapshot"
    flop: Expr = ZERO
    bytes = size

    def cases(self, machine: Machine, suite: Suite) -> Iterator[Case]:
        """Yield the stages that a machine has: a CPU's state needs no copy to the host."""
        for direction in ("clone", "d2h", "serialise", "fsync"):
            for use, mib in SIZES[machine.kind, suite]:
                n = int(mib * 2**20)
                if fits(machine, n) and not (direction == "d2h" and machine.kind == "cpu"):
                    yield Case("snapshot", direction, "uint8", "torch", {"bytes": n}, str(n), use=use)

    def prepare(self, case: Case, machine: Machine, seed: int) -> Work:
        """Return the stage; files are temporary and without a name."""
        where = machine.kind if case.direction in ("clone", "d2h") else "cpu"
        n = int(case.shape["bytes"])
        data = [scattered(n, seed + i).to(where) for i in range(SETS)]
        run, read = STAGES[case.direction](data[0])

        check = Check(lambda: run(data[0]), lambda out: unequal(read(out), data[0]))
        return Work(run, [(d,) for d in data], check, 0.0)


Stage = tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]
"""What runs, and how what it left is read back."""


def _clone(_: Tensor) -> Stage:
    return torch.clone, lambda out: out


def _to_host(data: Tensor) -> Stage:
    host = torch.empty(data.shape, dtype=data.dtype, pin_memory=True)

    def read(_: Tensor) -> Tensor:
        torch.cuda.synchronize()
        return host

    return lambda tensor: host.copy_(tensor, non_blocking=True), read


def _serialise(_: Tensor) -> Stage:
    def run(tensor: Tensor) -> io.BytesIO:
        buffer = io.BytesIO()
        np.save(buffer, tensor.numpy(), allow_pickle=False)
        return buffer

    def read(buffer: io.BytesIO) -> Tensor:
        buffer.seek(0)
        return torch.from_numpy(np.load(buffer, allow_pickle=False))

    return run, read


def _fsync(data: Tensor) -> Stage:
    file = tempfile.TemporaryFile()  # noqa: SIM115 - open while the case runs, gone with it

    def run(tensor: Tensor) -> None:
        file.seek(0)
        file.write(tensor.numpy().data)
        file.flush()
        os.fsync(file.fileno())

    def read(_: None) -> Tensor:
        file.seek(0)
        return torch.frombuffer(bytearray(file.read()), dtype=data.dtype)

    return run, read


STAGES = {"clone": _clone, "d2h": _to_host, "serialise": _serialise, "fsync": _fsync}
FAMILIES = (Snapshot(),)
