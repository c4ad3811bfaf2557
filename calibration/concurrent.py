"""Measurement of what `calibration.contention` fits: products, collectives and host copies of a CUDA device together.

The design is that of Mist's benchmark (EuroSys '25): four sizes of each stream, alone and in all 11 combinations, in
seeded random order. All work is queued behind a gate and let go at once, so that issuing it is not timed. A sentinel,
one operation alone, is timed again after every few cases; what was measured while it moved is left out.
"""

import csv
import io
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from calibration.contention import Together
from calibration.guards import MOST_DRIFT
from sim.costs.contention import STREAMS
from sim.specs.fields import InputError
from sim.specs.files import write_atomically

FILE = "contention.csv"
HEADER = (
    "gpu", "nodes", "gpus_per_node", "compute_n", "compute_m", "compute_k", "g2g_MB", "c2g_MB", "g2c_MB",
    "world_size", "intra_group", "inter_group", "latency_ms", "std_ms", "source",
)  # fmt: skip
"""As in the public file, so that `trainsim calibrate --from` reads it."""

SIZES_S = (2.5e-3, 5e-3, 7.5e-3, 1e-2)
"""How long each stream's operations take alone, about."""
REPEATS = 5
BATCH = 32
PRODUCT = 4096
"""Rows, columns and depth of one matrix product."""
CHUNK_BYTES = 32 * 10**6
"""Bytes of one message or copy: so many that issuing those within a device does not take longer than they do."""
GATE_CYCLES = 20_000_000
"""Clock cycles that the gate stays closed (about 10 ms), enough to issue everything behind it."""


class Streams(Protocol):
    """A device's four streams. `name` and `ranks` (of a collective, all in one node) say what was measured."""

    name: str
    ranks: int
    what: str

    def seconds(self, units: Sequence[int]) -> float:
        """Return the seconds until `units` operations on each stream, started together, have all ended."""
        ...


class CudaStreams:
    """CUDA device 0; with several devices the collective is NCCL's all-reduce, with one a copy within the device.

    `torch_cuda` is `torch.cuda` or a fake of what is used of it here; `kernels`: what one operation of each stream is.
    """

    def __init__(self, torch_cuda: Any = torch.cuda, kernels: Sequence[Callable[[], Any]] | None = None) -> None:
        self.cuda = torch_cuda
        self.name, self.ranks = torch_cuda.get_device_name(0), torch_cuda.device_count()
        several = "NCCL all-reduces" if self.ranks > 1 else "copies within the device for collectives"
        self.what = f"products of {PRODUCT} bf16, {several}, pinned host copies"
        self.queues = [torch_cuda.Stream() for _ in STREAMS]
        self.kernels = kernels or self._kernels()

    def seconds(self, units: Sequence[int]) -> float:
        """Return the seconds between the gate's opening and the last stream's end (CUDA events)."""
        gate = self.cuda.Stream()
        begin = self.cuda.Event(enable_timing=True)
        self.cuda.synchronize()
        with self.cuda.stream(gate):
            self.cuda._sleep(GATE_CYCLES)
            begin.record(gate)
        ends = []
        for queue, kernel, n in zip(self.queues, self.kernels, units, strict=True):
            if n:
                queue.wait_event(begin)
                with self.cuda.stream(queue):
                    for _ in range(n):
                        kernel()
                end = self.cuda.Event(enable_timing=True)
                end.record(queue)
                ends.append(end)
        self.cuda.synchronize()
        return max(float(begin.elapsed_time(end)) for end in ends) / 1e3

    def _kernels(self) -> list[Callable[[], Any]]:
        a, b, c = (torch.randn(PRODUCT, PRODUCT, dtype=torch.bfloat16, device="cuda:0") for _ in range(3))
        n = CHUNK_BYTES // 2
        near = [torch.randn(n, device="cuda:0").to(torch.bfloat16) for _ in range(4)]
        far = [torch.randn(n).to(torch.bfloat16).pin_memory() for _ in range(2)]
        return [
            lambda: torch.mm(a, b, out=c),
            self._all_reduce(n) if self.ranks > 1 else lambda: near[0].copy_(near[1]),
            lambda: near[2].copy_(far[0], non_blocking=True),
            lambda: far[1].copy_(near[3], non_blocking=True),
        ]

    def _all_reduce(self, n: int) -> Callable[[], Any]:
        """Return an all-reduce over all devices, on this device's collective stream and one of each other."""
        nccl: Any = torch.cuda.nccl
        parts = [torch.randn(n, device=f"cuda:{i}").to(torch.bfloat16) for i in range(self.ranks)]
        others = [self.cuda.Stream(device=i) for i in range(1, self.ranks)]
        return lambda: nccl.all_reduce(parts, streams=[self.queues[1], *others])


@dataclass
class Design:
    """The cases of a measurement and what was measured of them: seconds of every sample by units of each stream."""

    streams: Streams
    budget_s: float
    now: Callable[[], float] = time.monotonic
    seed: int = 0
    found: dict[tuple[int, ...], list[float]] = field(default_factory=dict)

    def run(self) -> None:
        """Measure until all cases are done or the budget is spent; single streams come first."""
        end = self.now() + self.budget_s
        units = [self._units(k) for k in range(len(STREAMS))]
        sentinel = (units[0][1], 0, 0, 0)
        reference = self._time(sentinel)
        cases, calm = list(self.cases(units)), True
        for i in range(0, len(cases), BATCH):
            took = {}
            for case in cases[i : i + BATCH]:
                if self.now() >= end:
                    break
                took[case] = [self.streams.seconds(case) for _ in range(1 + REPEATS)][1:]
            calm, was_calm = abs(self._time(sentinel) / reference - 1) <= MOST_DRIFT, calm
            if calm and was_calm:
                self.found |= took
            if self.now() >= end:
                break

    def cases(self, units: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
        """Yield units of every stream: each size alone, then all combinations in seeded random order."""
        grid = [case for case in product(*((0, *each) for each in units)) if any(case)]
        alone = [case for case in grid if sum(n > 0 for n in case) == 1]
        several = [case for case in grid if sum(n > 0 for n in case) > 1]
        yield from alone
        for i in np.random.default_rng(self.seed).permutation(len(several)).tolist():
            yield several[i]

    def _time(self, units: Sequence[int]) -> float:
        return float(np.median([self.streams.seconds(units) for _ in range(REPEATS)]))

    def _units(self, stream: int) -> list[int]:
        """Return how many operations of a stream take about each of `SIZES_S`, no two alike."""
        some, n = [0] * len(STREAMS), 1
        while True:
            some[stream] = n
            spent = max(self._time(some), 1e-9)
            if spent >= SIZES_S[0] or n >= 1 << 16:
                break
            n *= 4
        return [max(i + 1, round(n * s / spent)) for i, s in enumerate(SIZES_S)]


def measure(
    out: Path,
    session: str,
    budget_s: float = 120.0,
    device: str = "cuda",
    streams: Streams | None = None,
    now: Callable[[], float] = time.monotonic,
) -> Together:
    """Measure the design on this machine's CUDA devices, write it to `out`/contention.csv and return it.

    session: the id of this measuring session. An interrupted measurement leaves what it has.

    Raises:
        InputError: not a CUDA device, or none is found; the file cannot be written.
    """
    if streams is None:
        if device != "cuda":
            allowed = "cuda: a CPU has neither copy engines nor collectives that run beside its compute"
            raise InputError("--device", device, allowed)
        if not torch.cuda.is_available():
            raise InputError("--device", device, "a machine on which torch finds a CUDA device")
        streams = CudaStreams()
    design = Design(streams, budget_s, now)
    with suppress(KeyboardInterrupt):
        design.run()
    made = _together(design, session)
    write_atomically(out / FILE, _text(made))
    return made


def _together(design: Design, session: str) -> Together:
    amount = np.array(list(design.found), dtype=np.float64).reshape(-1, len(STREAMS))
    seconds = np.array([float(np.median(v)) for v in design.found.values()])
    spread = np.array([float(np.std(v)) for v in design.found.values()])
    streams = design.streams
    return Together(streams.name, streams.ranks, 1, session, amount, seconds, spread, f"{session}/{streams.what}")


def _text(made: Together) -> str:
    """Return the rows as CSV: products of `PRODUCT` x `PRODUCT`, megabytes of messages and copies."""
    buffer = io.StringIO()
    lines = csv.writer(buffer, lineterminator="\n")
    lines.writerow(HEADER)
    for (products, *chunks), seconds, spread in zip(made.amount.tolist(), made.seconds, made.spread, strict=True):
        sizes = [f"{n * CHUNK_BYTES / 1e6:g}" for n in chunks]
        rows = f"{products * PRODUCT:g}" if products * PRODUCT < 1e6 else f"{products * PRODUCT:.0f}"
        shape = [made.n_in, made.n_in, made.n_out]
        times = [f"{1e3 * seconds:.9g}", f"{1e3 * spread:.9g}"]
        lines.writerow([made.device, 1, made.n_in, rows, PRODUCT, PRODUCT, *sizes, *shape, *times, made.source])
    return buffer.getvalue()
