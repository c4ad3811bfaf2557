"""What NVIDIA has published of cuDNN's kernels on GB200 and GB300, whose attention SimuMax's table tells for one head.

Times of github NVIDIA/cudnn-frontend (MIT), benchmark/sdpa_benchmark_training/results: bf16, causal, cuDNN 9.19
(February 2026: llama3.1, dsv3, gpt_oss in gb200_919_only_cudnn and gb300_919_only_cudnn) and 9.22 (April 2026: gpt_oss
with a window of 128 keys), ten launches each.
"""

from typing import NamedTuple

import numpy as np

from calibration.fit import Fit, Free, cross_validate
from calibration.published.families import LAUNCH_FLOOR_S, RATE
from calibration.published.models import ATTENTION_DIRECTIONS, published_model
from calibration.samples import Samples
from calibration.terms import HALF_SIZE
from sim.costs.fitted import KernelModel
from sim.costs.layers.attention import FLASH_BACKWARD_FLOP

SOURCE = (
    "cuDNN 9.19 and 9.22, bf16, causal, heads of 64, 128 and 192/128 columns, windows of 128, 1,024 and all keys "
    "(github NVIDIA/cudnn-frontend, benchmark/sdpa_benchmark_training/results); t0 assumed"
)


class Heads(NamedTuple):
    """A run of lengths: samples, heads, columns of queries and of values, window in keys (0: none)."""

    batch: int
    heads: int
    qk: int
    v: int
    window: int = 0


SEQS = (2048, 4096, 8192, 16384, 32768)
LLAMA, DEEPSEEK = Heads(1, 64, 128, 128), Heads(1, 128, 192, 128)
WIDE, NARROW = Heads(2, 64, 64, 64, 1024), Heads(2, 128, 64, 64, 128)
MS = {
    "gb200": {
        LLAMA: ((0.066, 0.206, 0.688, 2.606, 10.226), (0.206, 0.607, 2.097, 7.845, 29.863)),
        DEEPSEEK: ((0.161, 0.509, 1.800, 6.318, 24.232), (0.508, 1.613, 5.728, 21.715, 88.716)),
        WIDE: ((0.104, 0.209, 0.423, 0.853, 1.711), (0.230, 0.487, 0.998, 2.024, 4.099)),
        NARROW: ((0.109, 0.210, 0.414, 0.822), (0.237, 0.465, 0.911, 1.818, 3.692)),
    },
    "gb300": {
        LLAMA: ((0.054, 0.164, 0.583, 2.235, 8.734), (0.190, 0.575, 1.985, 7.380, 28.390)),
        DEEPSEEK: ((0.148, 0.454, 1.548, 5.644, 21.483), (0.490, 1.544, 5.432, 20.522, 81.498)),
        WIDE: ((0.089, 0.178, 0.359, 0.722, 1.448), (0.221, 0.472, 0.965, 1.951, 3.930)),
        NARROW: ((0.104, 0.202, 0.397, 0.790), (0.227, 0.442, 0.862, 1.712, 3.450)),
    },
}
"""Milliseconds forward and backward at `SEQS` tokens. Backward passes of DeepSeek's heads are the deterministic ones,
none other was timed; forward with a window of 128 keys the fifth length, 1.6 times as long as twice the fourth, is left
out."""

GROUPED_SOURCE = (
    "products with activations of 8 experts, 32,768 rows x 8,192 x 4,096 or 8,192: five timings in a row of cuDNN's "
    "kernels (github NVIDIA/cudnn-frontend, benchmark/cutedsl_fusion_kernels/results)"
)
GB300_PRODUCTS = 1.075
"""By how much a GB300's products are faster than a GB200's, both cold: the geometric mean of the first timings of six
kernels (1.069 to 1.082; `GROUPED_SOURCE`). The clock that its higher power limit allows would make it 1.077."""
THROTTLED = {"gb200": 0.182, "gb300": 0.122}
"""Share of their rate that large products lose which follow each other: the last three timings of the two longest
kernels (1.6 and 1.4 ms) over the first."""


def attention(device: str) -> dict[tuple[str, str], KernelModel]:
    """Return the fitted models of fused attention of "gb200" or "gb300", by (op, direction)."""
    return {("attention", way): _fitted(device, way) for way in ATTENTION_DIRECTIONS}


def _fitted(device: str, way: str) -> KernelModel:
    rows = samples(device, way)
    return published_model(("attention", way), _fit(rows), rows, "fitted", SOURCE)


def _fit(rows: Samples) -> Fit:
    free = {"rate": RATE, "s0": HALF_SIZE, "d0": Free(50.0, 0.1, 1e3)}
    return cross_validate("attention-saturating", rows, free, {"t0": LAUNCH_FLOOR_S, "r0": 0.0})


def samples(device: str, way: str) -> Samples:
    """Return the published times of one direction as samples."""
    inputs: dict[str, list[float]] = {name: [] for name in ("flop", "seq", "rows", "head_dim")}
    seconds, families = [], []
    for kind, times in MS[device].items():
        for seq, ms in zip(SEQS, times[ATTENTION_DIRECTIONS.index(way)], strict=False):
            reach = min(kind.window or seq, seq)
            keys, rows = reach - reach**2 / (2 * seq), kind.batch * kind.heads * seq
            flop = 2 * rows * keys * (kind.qk + kind.v) * (FLASH_BACKWARD_FLOP if way == "backward" else 1.0)
            shape = {"flop": flop, "seq": reach, "rows": rows, "head_dim": (kind.qk + kind.v) / 2}
            for name, value in shape.items():
                inputs[name].append(float(value))
            seconds.append(ms / 1e3)
            families.append(f"{kind}, {seq}")
    held = {name: np.array(values) for name, values in inputs.items()}
    return Samples(device, "attention", way, held, np.array(seconds), tuple(families), SOURCE)
