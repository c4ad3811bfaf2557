"""How good tuned block schedules are on a device: against the vendor's library, against all schedules, fused, in error.

Shapes are layers of transformers in the three directions of training, drawn by seed, none of them fitted to. On a
device without CUDA Triton interprets tiny shapes: that shows that it runs, and its times mean nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from random import Random
from time import monotonic
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear

from calibration.checked import Row, check_parts, column, mean_ratio
from calibration.cuda import Cuda
from calibration.host import HostStopwatch
from calibration.instruments import Stopwatch, usable_cores
from calibration.kernels.family import Machine
from calibration.kernels.gemm import CHECKED_ROWS
from calibration.kernels.work import relative_error
from calibration.taskmap.contraction import BIAS, DGRAD, FORWARD, GELU, WGRAD, Contraction, Sizes
from calibration.taskmap.gpu import Gpu, of_catalog, of_properties
from calibration.taskmap.gpu_cost import START, BlockCosts
from calibration.taskmap.gpu_space import BlockSchedule, block_schedules
from calibration.taskmap.gpu_tune import PROBED, BlockBench, compile_ahead, learned, probes, ranked, tune
from calibration.taskmap.program import fused_after
from calibration.taskmap.tune import TOP

WIDTHS, FACTORS, TOKENS = (2048, 2560, 3072, 5120, 6144, 7168), ((1, 1), (1, 3), (1, 4), (4, 1)), (2048, 4096, 8192)
"""Hidden widths of transformers, none of `PROBED`; inputs and outputs of a layer in them, tokens of a microbatch."""
DIRECTIONS = (FORWARD, DGRAD, WGRAD)
ALL = 6
"""Shapes of which every schedule is timed, two of each direction."""


@dataclass(frozen=True)
class Setting:
    """What is checked where; `every` returns the schedules for elements of so many bytes, `ahead` is how many processes
    compile them before (0: none)."""

    machine: Machine
    stopwatch: Stopwatch
    gpu: Gpu
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[Contraction, Sizes], ...]
    probed: tuple[Sizes, ...]
    top: int
    every: Callable[[int], Sequence[BlockSchedule]]
    ahead: int = 0

    def bench(self, contraction: Contraction, sizes: Sizes, dtype: str) -> BlockBench:
        """Return what times schedules at given sizes."""
        return BlockBench(contraction, sizes, dtype, self.machine, self.stopwatch)


def shapes(count: int = 10, seed: int = 0) -> tuple[tuple[Contraction, Sizes], ...]:
    """Return layers of transformers in turns forward, backward to inputs and to weights."""
    draw, found = Random(seed), []
    for n in range(count):
        width, (inputs, outputs), tokens = draw.choice(WIDTHS), draw.choice(FACTORS), draw.choice(TOKENS)
        layer = (tokens, width * outputs, width * inputs)
        sizes = (layer, (layer[0], layer[2], layer[1]), (layer[1], layer[2], layer[0]))[n % 3]
        found.append((DIRECTIONS[n % 3], dict(zip("mnk", sizes, strict=True))))
    return tuple(found)


def setting(device: Literal["cpu", "cuda"]) -> Setting:
    """Return what is checked on a device."""
    if device == "cuda":
        cuda = Cuda()
        torch.cuda.set_stream(torch.cuda.Stream())  # type: ignore[no-untyped-call] # the default one is not captured
        gpu = of_properties(cuda.properties)
        return Setting(
            machine=Machine("cuda", cuda.memory_bytes),
            stopwatch=cuda,
            gpu=gpu,
            dtypes=("bfloat16", "float16", "float32"),
            shapes=shapes(),
            probed=PROBED,
            top=TOP,
            every=lambda item: block_schedules(gpu, item),
            ahead=usable_cores(),
        )
    gpu = of_catalog("h100-sxm-80gb")
    return Setting(
        machine=Machine("cpu", 2**30),
        stopwatch=HostStopwatch(),
        gpu=gpu,
        dtypes=("bfloat16", "float32"),
        shapes=((FORWARD, {"m": 40, "n": 70, "k": 90}), (WGRAD, {"m": 64, "n": 64, "k": 64})),
        probed=({"m": 64, "n": 64, "k": 64},),
        top=2,
        every=lambda item: block_schedules(gpu, item)[:48:12],
    )


def check(
    device: Literal["cpu", "cuda"], seconds: float, keep: Callable[[Row], None] = lambda found: None
) -> dict[str, Any]:
    """Return what `summary` says of all rows that were made within `seconds`, as `check_parts` does."""
    return check_parts(_parts(setting(device)), seconds, summary, keep)


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the numbers of some rows, None where no row has them.

    geomean_of_cublas: the library's seconds over ours. schedules: in the space. tuning_s: fits and measurements of all
    shapes. top10_holds_best: share of the shapes of which all schedules were timed. fused_speedup: torch's product,
    bias and GELU over one kernel of ours. failed: rows that hold a failure.
    """

    best = column(rows, "top10_holds_best")
    return {
        "geomean_of_cublas": mean_ratio(rows, "of_cublas"),
        "schedules": max(column(rows, "schedules"), default=None),
        "tuning_s": sum(column(rows, "tuning_s")),
        "top10_holds_best": sum(best) / len(best) if best else None,
        "fused_speedup": mean_ratio(rows, "fused_speedup"),
        "max_relative_error": max(column(rows, "relative_error"), default=None),
        "failed": len(column(rows, "failure")),
    }


def _parts(held: Setting) -> Iterator[tuple[str, Callable[[], Row]]]:
    """Yield dtypes and what makes a row: all parts for the first dtype, those against the library for the others."""
    for n, dtype in enumerate(held.dtypes):
        costs: dict[str, BlockCosts] = {}
        for contraction in dict.fromkeys(contraction for contraction, _ in held.shapes):
            yield dtype, partial(_learned, held, contraction, dtype, costs)
        for contraction, sizes in held.shapes:
            yield dtype, partial(_against_library, held, contraction, sizes, dtype, costs)
        for sizes in [sizes for contraction, sizes in held.shapes if contraction is FORWARD][: 2 if n == 0 else 0]:
            yield dtype, partial(_fused, held, FORWARD, sizes, dtype, costs)
        for contraction, sizes in held.shapes[: ALL if n == 0 else 0]:
            yield dtype, partial(_against_all, held, contraction, sizes, dtype, costs)


def _learned(held: Setting, contraction: Contraction, dtype: str, costs: dict[str, BlockCosts]) -> Row:
    """Fit the costs of a contraction to probes, put them to the others, and say so.

    What is timed here and later to choose among is compiled before, by all processors.
    """
    began, item = monotonic(), getattr(torch, dtype).itemsize
    every, benches = held.every(item), [held.bench(contraction, sizes, dtype) for sizes in held.probed]
    _compile(held, contraction, dtype, [s for seed in range(len(benches)) for s in probes(every, seed)])
    found = learned(BlockCosts(contraction, held.gpu, item, START), benches, every)
    costs[contraction.name] = found
    own = [sizes for each, sizes in held.shapes if each is contraction]
    _compile(held, contraction, dtype, [s for sizes in own for s in ranked(found, sizes, every)[: held.top]])
    times = {"schedules": len(every), "tuning_s": monotonic() - began}
    return _row("learned", contraction) | {"fitted": dict(found.fitted)} | times


def _compile(held: Setting, contraction: Contraction, dtype: str, some: Sequence[BlockSchedule]) -> None:
    if held.ahead:
        compile_ahead(contraction, dtype, list(dict.fromkeys(some)), held.ahead)


def _row(kind: str, contraction: Contraction, sizes: Sizes | None = None) -> Row:
    return {"kind": kind, "direction": contraction.name, **(sizes or {})}


def _against_library(
    held: Setting, contraction: Contraction, sizes: Sizes, dtype: str, costs: Mapping[str, BlockCosts]
) -> Row:
    """Return the tuned schedule beside torch's product: seconds of both, and our error against float64."""
    began, bench, known = monotonic(), held.bench(contraction, sizes, dtype), costs[contraction.name]
    chosen = tune(known, bench, held.every(known.item), held.top)
    tuning_s = monotonic() - began
    library_s = bench.timed(lambda a, b, c: torch.mm(*operands(contraction, sizes, a, b)))
    return _row("product", contraction, sizes) | {
        "schedule": asdict(chosen.schedule),
        "seconds": chosen.seconds,
        "predicted_s": float(known.seconds([chosen.schedule], sizes)[0]),
        "cublas_s": library_s,
        "of_cublas": library_s / chosen.seconds,
        "relative_error": _error(bench, chosen.schedule),
        "tuning_s": tuning_s,
    }


def operands(contraction: Contraction, sizes: Sizes, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the matrices [m, k] and [k, n] of a product as views of flat arrays."""
    m, n, k = (sizes[name] for name in "mnk")
    left = a.view(k, m).T if contraction is WGRAD else a.view(m, k)
    return left, b.view(n, k).T if contraction is FORWARD else b.view(k, n)


def _error(bench: BlockBench, schedule: BlockSchedule) -> float:
    """Return the relative error of a schedule's product against float64, in rows spread over all of it."""
    a, b, c = bench.sets[0]
    bench.kernel(schedule.program(bench.contraction))(a, b, c)
    left, right = operands(bench.contraction, bench.sizes, a, b)
    step = max(1, len(left) // CHECKED_ROWS)
    return relative_error(c.view(len(left), -1)[::step], left[::step].double() @ right.double())


def _fused(held: Setting, contraction: Contraction, sizes: Sizes, dtype: str, costs: Mapping[str, BlockCosts]) -> Row:
    """Return bias and GELU in the product's kernel beside those after it, of ours and of torch's.

    What the kernel does at its end takes registers: its schedule is chosen for it.
    """
    bench, known = held.bench(contraction, sizes, dtype), costs[contraction.name]
    chosen = tune(known, bench, held.every(known.item), held.top)
    program = chosen.schedule.program(contraction)
    m, n, k = (sizes[name] for name in "mnk")
    bias = bench.sets[0][0][:n].clone()
    plain = bench.kernel(program)

    def ours(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        plain(a, b, c)
        return gelu(c.view(m, n) + bias)

    first = ranked(known, sizes, held.every(known.item))[: held.top]
    fused = (fused_after(schedule.program(contraction), BIAS, GELU) for schedule in first)
    fused_s = min(bench.seconds(bench.kernel(each, bias=bias)) for each in fused)
    torch_s = bench.timed(lambda a, b, c: gelu(linear(a.view(m, k), b.view(n, k), bias)))
    times = {"fused_s": fused_s, "unfused_s": bench.timed(ours), "torch_s": torch_s}
    return _row("fused", contraction, sizes) | times | {"fused_speedup": torch_s / fused_s}


def _against_all(
    held: Setting, contraction: Contraction, sizes: Sizes, dtype: str, costs: Mapping[str, BlockCosts]
) -> Row:
    """Return whether the fastest of all schedules is among those that the costs rank first."""
    began, bench, known = monotonic(), held.bench(contraction, sizes, dtype), costs[contraction.name]
    every = held.every(known.item)
    _compile(held, contraction, dtype, every)
    best = min(every, key=bench)
    first = ranked(known, sizes, every)[: held.top]
    return _row("all", contraction, sizes) | {
        "best": asdict(best),
        "best_s": bench(best),
        "top10_s": min(map(bench, first)),
        "top10_holds_best": best in first,
        "all_s": monotonic() - began,
        "seconds": [bench(schedule) for schedule in every],
    }
