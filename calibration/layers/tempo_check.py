"""How good Tempo's layers are on a device: their kernels exact, the bytes they save those of the formulas, how fast.

On a device without CUDA Triton interprets tiny kernels: that shows that they run, and times mean nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

from calibration.checked import Row, check_parts, column, mean_ratio
from calibration.cuda import Cuda
from calibration.host import HostStopwatch
from calibration.instruments import Stopwatch
from calibration.layers.tempo_bench import gradient_errors, kernel_errors, saved, step_time
from calibration.layers.tempo_kernels import TritonKernels
from calibration.layers.tempo_results import LayerSizes


@dataclass(frozen=True)
class Setting:
    """What is checked where; numbers: rows and columns of the kernels that are held against fp64."""

    device: Literal["cpu", "cuda"]
    stopwatch: Stopwatch
    dtypes: tuple[str, ...]
    numbers: tuple[int, int]
    sizes: tuple[LayerSizes, ...]


def setting(device: Literal["cpu", "cuda"]) -> Setting:
    """Return what is checked on a device."""
    if device == "cpu":
        tiny = (LayerSizes(batch=1, seq=8, hidden=16, heads=2),)
        return Setting("cpu", HostStopwatch(), ("float32",), (5, 12), tiny)
    shapes = ((32, 128, 1024, 16), (8, 512, 1024, 16), (16, 384, 1024, 16), (4, 512, 768, 12))
    sizes = tuple(LayerSizes(batch=b, seq=s, hidden=h, heads=a) for b, s, h, a in shapes)
    return Setting("cuda", Cuda(), ("float32", "float16", "bfloat16"), (4096, 1000), sizes)


def check(
    device: Literal["cpu", "cuda"], seconds: float, keep: Callable[[Row], None] = lambda found: None
) -> dict[str, Any]:
    """Return what `summary` says of all rows that were made within `seconds`, as `check_parts` does."""
    return check_parts(_parts(setting(device)), seconds, summary, keep)


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the numbers of some rows, None where no row has them.

    max_kernel_error: the largest relative one of a kernel; ratio: geometric mean of the time of a layer's step over
    that with the usual layers; exact: whether all saved what the formulas say; failed: rows that hold a failure.
    """
    exact = column(rows, "exact")
    return {
        "max_kernel_error": max((max(each.values()) for each in column(rows, "kernels")), default=None),
        "ratio": mean_ratio(rows, "ratio"),
        "exact": all(exact) if exact else None,
        "failed": len(column(rows, "failure")),
    }


def _parts(held: Setting) -> Iterator[tuple[str, Callable[[], Row]]]:
    """Yield dtypes and what makes a row: kernels, gradients, then layers."""
    for dtype in held.dtypes:
        yield dtype, partial(_kernels, held, dtype)
        yield dtype, partial(_gradients, held, dtype)
        for sizes in held.sizes:
            yield dtype, partial(_layer, held, dtype, sizes)


def _kernels(held: Setting, dtype: str) -> Row:
    return {"kind": "kernels", "kernels": kernel_errors(TritonKernels(), dtype, held.device, *held.numbers)}


def _gradients(held: Setting, dtype: str) -> Row:
    return {"kind": "gradients", "gradients": [asdict(each) for each in gradient_errors(dtype, held.device)]}


def _layer(held: Setting, dtype: str, sizes: LayerSizes) -> Row:
    bytes_saved = saved(sizes, dtype, held.device)
    times = step_time(sizes, held.stopwatch, dtype, held.device)
    found = {"exact": bytes_saved.exact, "ratio": 1 + times.longer}
    return {"kind": "layer", **asdict(bytes_saved), **asdict(times), **found}
