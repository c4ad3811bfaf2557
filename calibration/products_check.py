"""Products that a profile does not hold: in 8 bits beside 16, and those of experts in one kernel, on a device.

8 bits: E4M3 operands with one scale a tensor (arXiv 2209.05433), as they lie in memory for all three directions of
fp8 training (both along the inner size), results in bf16; the casts are not in the times. Experts: torch's grouped
product of tokens that lie expert by expert, equally many each. On a device without CUDA tiny shapes show that it runs.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor

from calibration.checked import Row, check_parts, column
from calibration.cuda import Cuda
from calibration.host import HostStopwatch
from calibration.instruments import Stopwatch
from calibration.kernels.family import Machine, Work
from calibration.kernels.gemm import CHECKED_ROWS
from calibration.kernels.work import Draw, relative_error, rotated
from calibration.timing import METHODS, timed

FP8 = torch.float8_e4m3fn
LAYERS = (
    (1024, 4096), (2048, 2048), (2048, 8192), (4096, 4096), (4096, 6144), (4096, 28672), (14336, 4096),
    (8192, 8192), (8192, 10240), (3584, 8192), (8192, 57344), (12288, 12288),
)  # fmt: skip
"""Inputs and outputs of linear layers: GPT (arXiv 2005.14165) and Llama 3 (arXiv 2407.21783) of several sizes, and what
one of eight tensor-parallel ranks holds."""
TOKENS = (1024, 4096, 16384)
EXPERTS = ((8, 4096, 28672), (8, 14336, 4096), (64, 2048, 2816), (64, 1408, 2048), (32, 7168, 4096), (16, 2880, 5760))
"""Experts, inputs and outputs: Mixtral 8x7B (arXiv 2401.04088), DeepSeekMoE 16B (arXiv 2401.06066), one rank's of
DeepSeek-V3 (arXiv 2412.19437) and of gpt-oss."""


@dataclass(frozen=True)
class Setting:
    """What is checked where; layers: inputs and outputs, experts: how many, inputs and outputs."""

    machine: Machine
    stopwatch: Stopwatch
    layers: tuple[tuple[int, int], ...]
    experts: tuple[tuple[int, int, int], ...]
    tokens: tuple[int, ...]


def setting(device: Literal["cpu", "cuda"]) -> Setting:
    """Return what is checked on a device."""
    if device == "cpu":
        return Setting(Machine("cpu", 2**30), HostStopwatch(), ((32, 64),), ((2, 32, 64),), (32,))
    cuda = Cuda()
    torch.cuda.set_stream(torch.cuda.Stream())  # type: ignore[no-untyped-call] # the default one is not captured
    return Setting(Machine("cuda", cuda.memory_bytes), cuda, LAYERS, EXPERTS, TOKENS)


def check(
    device: Literal["cpu", "cuda"], seconds: float, keep: Callable[[Row], None] = lambda found: None
) -> dict[str, Any]:
    """Return what `summary` says of all rows that were made within `seconds`, as `check_parts` does."""
    return check_parts(_parts(setting(device)), seconds, summary, keep)


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the numbers of some rows, None where no row has them.

    speedup: the median of the time in 16 bits over that in 8; of_alone: that of the experts' products one after the
    other over that of the grouped one; failed: rows that hold a failure.
    """
    found = {name: median(column(rows, name)) if column(rows, name) else None for name in ("speedup", "of_alone")}
    worst = max(column(rows, "relative_error"), default=None)
    return {**found, "max_relative_error": worst, "failed": len(column(rows, "failure"))}


def _parts(held: Setting) -> Iterator[tuple[str, Callable[[], Row]]]:
    for tokens in reversed(held.tokens):
        for inputs, outputs in held.layers:
            yield "float8_e4m3fn", partial(_eight_bits, held, tokens, inputs, outputs)
        for experts, inputs, outputs in held.experts:
            yield "bfloat16", partial(_grouped, held, tokens, experts, inputs, outputs)


def _seconds(held: Setting, run: Callable[..., Any], sets: Sequence[tuple[Any, ...]]) -> float:
    return timed(Work(run, sets, lambda: 0.0, 0.0), METHODS[held.machine.kind], held.stopwatch).t_s


def _eight_bits(held: Setting, tokens: int, inputs: int, outputs: int) -> Row:
    """Return a layer's forward product x[tokens, inputs] W[outputs, inputs]^T in both: seconds, and the error in 8."""
    draw, size = Draw(held.machine, "bfloat16", tokens), tokens * inputs + inputs * outputs + tokens * outputs
    one = torch.ones((), device=held.machine.kind)
    wide = rotated(held.machine, 2 * size, lambda: (draw.normal(tokens, inputs), draw.normal(outputs, inputs).T))
    wide_s = _seconds(held, torch.mm, wide)

    def narrow() -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return draw.normal(tokens, inputs).to(FP8), draw.normal(outputs, inputs).to(FP8).T, one, one

    sets = rotated(held.machine, size, narrow)
    run = partial(torch._scaled_mm, out_dtype=torch.bfloat16)
    narrow_s = _seconds(held, run, sets)
    a, b, *_ = sets[0]
    step = max(1, tokens // CHECKED_ROWS)
    error = relative_error(run(*sets[0])[::step], a[::step].double() @ b.double())
    return {
        "kind": "8 bits", "m": tokens, "n": outputs, "k": inputs, "seconds": narrow_s, "bf16_s": wide_s,
        "speedup": wide_s / narrow_s, "relative_error": error,
    }  # fmt: skip


def _grouped(held: Setting, tokens: int, experts: int, inputs: int, outputs: int) -> Row:
    """Return the products of experts in one kernel beside one after the other: seconds, and the error against fp64."""
    each = tokens // experts
    draw, size = Draw(held.machine, "bfloat16", tokens), tokens * (inputs + outputs) + experts * inputs * outputs
    ends = torch.arange(each, tokens + 1, each, device=held.machine.kind, dtype=torch.int32)

    def operands() -> tuple[Tensor, Tensor, Tensor]:
        return draw.normal(tokens, inputs), draw.normal(experts, outputs, inputs).mT, ends

    def grouped(x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
        return torch._grouped_mm(x, weights, offs=ends)

    def alone(x: Tensor, weights: Tensor, ends: Tensor) -> list[Tensor]:
        return [torch.mm(part, weight) for part, weight in zip(x.split(each), weights, strict=True)]  # type: ignore[no-untyped-call]

    sets = rotated(held.machine, 2 * size, operands)
    seconds, alone_s = _seconds(held, grouped, sets), _seconds(held, alone, sets)
    x, weights, _ = sets[0]
    return {
        "kind": "experts", "experts": experts, "m": each, "n": outputs, "k": inputs, "seconds": seconds,
        "alone_s": alone_s, "of_alone": alone_s / seconds,
        "relative_error": relative_error(grouped(*sets[0])[:each], x[:each].double() @ weights[0].double()),
    }  # fmt: skip
