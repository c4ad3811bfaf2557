"""How good fused recurrent layers are on a device: equal to torch's, well chosen, how fast beside cuDNN's.

On a device without CUDA Triton interprets tiny layers: that shows that it runs, and its times mean nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import torch

from calibration.checked import Row, check_parts, column, mean_ratio
from calibration.cuda import Cuda
from calibration.host import HostStopwatch
from calibration.kernels.family import Machine
from calibration.layers.lstm import Sizes
from calibration.layers.lstm_bench import GATES, ONCE, LayerBench, Where, drawn, learned, probes
from calibration.layers.lstm_cost import GPU, LayerCosts
from calibration.layers.lstm_results import NEAR, Layer, layer_of


@dataclass(frozen=True)
class Setting:
    """What is checked where; triton: also where C would run."""

    where: tuple[Where, ...]
    probed: tuple[tuple[str, Sizes], ...]
    layers: tuple[tuple[str, Sizes], ...]
    triton: bool = False


def setting(device: Literal["cpu", "cuda"]) -> Setting:
    """Return what is checked on a device."""
    if device == "cuda":
        cuda = Cuda()
        machine = Machine("cuda", cuda.memory_bytes)
        torch.backends.cudnn.allow_tf32 = False  # by default cuDNN rounds fp32 of recurrent layers, and products do not
        where = tuple(Where(machine, cuda, dtype) for dtype in ("float32", "bfloat16"))
        return Setting(where, tuple((c, s) for c in GATES for s in probes(c, gpu=True)), tuple(drawn(16, gpu=True)))
    tiny = tuple((cell, Sizes(2, 3, 5, 4, gates)) for cell, gates in GATES.items())
    return Setting((Where(Machine("cpu", 2**30), HostStopwatch(), method=ONCE),), tiny, tiny, triton=True)


def check(
    device: Literal["cpu", "cuda"], seconds: float, keep: Callable[[Row], None] = lambda found: None
) -> dict[str, Any]:
    """Return what `summary` says of all rows that were made within `seconds`, as `check_parts` does."""
    return check_parts(_parts(setting(device)), seconds, summary, keep)


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the numbers of some rows, None where no row has them.

    near: share of layers whose pick takes at most 5 % longer than the fastest choice; of_default, of_library:
    geometric means of their time over the pick's; error: the largest relative one; failed: rows that hold a failure.
    """

    lost = column(rows, "lost")
    return {
        "near": sum(each <= NEAR for each in lost) / len(lost) if lost else None,
        "of_default": mean_ratio(rows, "of_default"),
        "of_library": mean_ratio(rows, "of_library"),
        "max_relative_error": max(column(rows, "error"), default=None),
        "failed": len(column(rows, "failure")),
    }


def _parts(held: Setting) -> Iterator[tuple[str, Callable[[], Row]]]:
    """Yield dtypes and what makes a row: costs of each cell, then layers."""
    for where in held.where:
        costs: dict[str, LayerCosts] = {}
        for cell in GATES:
            yield where.dtype, partial(_learned, held, where, cell, costs)
        for cell, sizes in held.layers:
            yield where.dtype, partial(_measured, held, where, cell, sizes, costs)


def _learned(held: Setting, where: Where, cell: str, costs: dict[str, LayerCosts]) -> Row:
    """Fit the costs of a cell to its probes, put them to the others, and say so."""
    sizes = [each for name, each in held.probed if name == cell]
    found = costs[cell] = learned(where, cell, sizes, GPU, "triton" if held.triton else None)
    return {"kind": "learned", "cell": cell, "fitted": dict(found.fitted), "sigma_log": found.sigma_log}


def _measured(held: Setting, where: Where, cell: str, sizes: Sizes, costs: dict[str, LayerCosts]) -> Row:
    bench = LayerBench(where, cell, sizes, "triton" if held.triton else None)
    layer: Layer = layer_of(bench, costs[cell])
    ratios = {name: getattr(layer, name) for name in ("picked", "lost", "of_default", "of_library")}
    return {"kind": "layer", **asdict(layer), **ratios}
