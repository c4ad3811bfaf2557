"""What a constant knows: the yardsticks beside every error.

Both are given the best constant that exists for the very table they are judged on, which no honest prediction is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.validation.metrics import Floats, mape, mean_regret, pairwise_order
from sim.validation.translate import Case

NAMES = ("constant_mfu", "constant_mfu_bubble")


@dataclass(frozen=True)
class Baseline:
    """A step time of FLOP / (devices x peak x MFU), `predicted_s`, and its errors on the table.

    mape and mean_regret in percent, pairwise_order a fraction; None where no row counts.
    """

    predicted_s: Floats
    mfu: float | None
    mape: float | None
    pairwise_order: float | None
    mean_regret: float | None


def ideal_s(case: Case) -> float:
    """Return the seconds of the model FLOP (Megatron's convention) at the 16-bit peak of all devices."""
    flop = case.plan.global_batch * case.model.seq * case.model.flop_per_token("megatron")
    return flop / (case.placed.gpus * case.cluster.hardware.peak_bf16_flop_per_s.value)


def busy_share(case: Case) -> float:
    """Return the share of the step that a rank works, 1 - bubble, of 1F1B or interleaved.

    The bubble is (p - 1) / (m v) over the ideal time (Narayanan et al. 2021, arXiv 2104.04473, sections 2.2.1 and
    2.2.2), so the step takes 1 + (p - 1) / (m v) times the ideal.
    """
    plan = case.plan
    return 1.0 / (1.0 + (plan.pp - 1) / (case.placed.microbatches * plan.virtual_stages))


def best_constant(ideal: Floats, measured: Floats) -> float:
    """Return the factor k with the least mean of |k ideal / measured - 1|.

    The mean is that of |k - measured / ideal| weighted by ideal / measured, so k is the weighted median.
    """
    ratio = measured / ideal
    order = np.argsort(ratio)
    weight = np.cumsum(1.0 / ratio[order])
    return float(ratio[order][np.searchsorted(weight, weight[-1] / 2.0)])


def baselines(
    cases: Sequence[Case], measured: Floats, timed: NDArray[np.bool_], groups: Sequence[str]
) -> dict[str, Baseline]:
    """Return both baselines: fitted to and judged on the `timed` rows, ordered on all rows (s)."""
    ideal = np.array([ideal_s(case) for case in cases])
    busy = np.array([busy_share(case) for case in cases])
    return {
        name: _baseline(time, measured, timed, groups) for name, time in zip(NAMES, (ideal, ideal / busy), strict=True)
    }


def _baseline(time: Floats, measured: Floats, timed: NDArray[np.bool_], groups: Sequence[str]) -> Baseline:
    factor = best_constant(time[timed], measured[timed]) if timed.any() else None
    predicted = time * (factor or 1.0)
    return Baseline(
        predicted_s=predicted,
        mfu=1.0 / factor if factor else None,
        mape=mape(predicted[timed], measured[timed]),
        pairwise_order=pairwise_order(predicted, measured, groups),
        mean_regret=mean_regret(predicted, measured, groups),
    )
