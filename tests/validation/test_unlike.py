"""How far runs lie off that are unlike all fitted ones: experts, and a profile carried to another architecture.

Against NVIDIA's public runs, which nothing else is fitted to.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from math import hypot, log, sqrt

import numpy as np
import pytest

from calibration.published.relatives import CROSSED
from sim.costs.profile import Z80
from sim.costs.run_level import level_of
from sim.engine.certainty import EXPERTS_SIGMA_LOG, experts_sigma, other_layers
from sim.specs.fields import InputError
from sim.validation.fit import spread
from sim.validation.predict import elsewhere
from sim.validation.table import read_runs
from sim.validation.translate import Case, translate
from tests.oracle import reference

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Run:
    """A case with the log error and the standard deviation of its predicted step time."""

    case: Case
    error: float
    sigma: float

    @property
    def model(self) -> str:
        """The published name without its remark."""
        return self.case.row.model.split(" (")[0]


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    cases: list[Case] = []
    for row in read_runs(reference("runs/nvidia_megatron_bridge.csv")):
        try:
            cases += [translate(row)] if row.step_time_s else []
        except InputError:  # one row contradicts itself
            continue
    times = [prediction.step_time_s for prediction in elsewhere(cases)]
    return [
        Run(case, log(time.value / case.row.step_time_s), log(time.high / time.low) / 2 / Z80)
        for case, time in zip(cases, times, strict=True)
    ]


def needed(runs: list[Run], term: Callable[[Run], float]) -> float:
    """Return what the intervals need in place of `term` to hold 80 % of the runs, also with every model counting the
    same."""
    beyond = defaultdict[str, list[float]](list)
    for run in runs:  # what it lies beyond its other terms: |error| <= Z80 hypot(others, needed)
        beyond[run.model].append(sqrt(max(0.0, run.error**2 - Z80**2 * (run.sigma**2 - term(run) ** 2))))
    models = [np.array(each) for each in beyond.values()]
    return max(spread(models), spread([np.concatenate(models)]))


def held(runs: list[Run], term: Callable[[Run], float], instead: Callable[[Run], float]) -> float:
    """Return the share of runs in their interval with another value of `term` for each."""
    inside = [abs(r.error) <= Z80 * hypot(sqrt(max(0.0, r.sigma**2 - term(r) ** 2)), instead(r)) for r in runs]
    return float(np.mean(inside))


def left_out(runs: list[Run], term: Callable[[Run], float]) -> float:
    """Return that share where `term` comes from runs of the other models."""
    others = {name: needed([r for r in runs if r.model != name], term) for name in {r.model for r in runs}}
    return held(runs, term, lambda run: others[run.model])


def of_experts(run: Run) -> float:
    return experts_sigma(run.case.model, level_of(run.case.cluster))


@pytest.mark.parametrize(("other", "models", "term"), [(False, 4, 0.0), (True, 6, EXPERTS_SIGMA_LOG)])
def test_experts_add_what_public_runs_with_experts_show(runs: list[Run], other: bool, models: int, term: float) -> None:
    mixtures = [run for run in runs if run.case.model.has_experts and other_layers(run.case.model) == other]
    assert len(mixtures) > 60 and len({run.model for run in mixtures}) == models
    assert {of_experts(run) for run in mixtures} == {term}
    assert needed(mixtures, of_experts) == pytest.approx(term, abs=0.01)
    assert 0.75 < left_out(mixtures, of_experts) < (0.9 if term else 0.95)
    assert (held(mixtures, of_experts, lambda _: 0.0) > 0.75) == (not term)


def test_a_step_to_another_architecture_adds_what_dense_runs_show(runs: list[Run]) -> None:
    crossed = [r for r in runs if not r.case.model.has_experts and r.case.row.device.startswith("gb")]
    assert len(crossed) > 50
    assert needed(crossed, lambda _: CROSSED[0]) == pytest.approx(CROSSED[0], abs=0.005)
    assert 0.75 < left_out(crossed, lambda _: CROSSED[0]) < 0.9
