"""What a controller costs beside the best fixed theta, of the toy whose thetas lose what is known."""

from itertools import product
from statistics import fmean

import pytest

from sim.decentralized import (
    Change,
    Decentralized,
    Objective,
    Wan,
    beside_fixed,
    fit_accuracy,
    law,
    read_runs,
    simulate,
)
from sim.specs.fields import InputError
from tests.decentralized.toys import fitted, small
from tests.full import full
from tests.oracle import ROOT

MODEL = fitted(sigma=1e-4)
RUN = small(controller="hill_climbing", steps=8_000, travel_every=400, skew=1.0)


def test_the_best_theta_is_the_loosest_that_is_borne() -> None:
    found = beside_fixed(RUN, MODEL, (0, 3))
    assert found.best_theta == 10.0  # its neighbour, 20, loses 0.057
    best = law(RUN.with_(controller="fixed", theta=10.0, travel_every=0)).traffic_bytes
    each = [simulate(RUN.with_(seed=seed), MODEL) for seed in (0, 3)]
    assert found.times == tuple(one.traffic_bytes / best for one in each)
    assert found.final_thetas == tuple(one.final_theta for one in each)
    assert found.savings == tuple(one.saving for one in each)
    assert found.bearable == (True, True)


def test_where_no_theta_is_borne_there_is_no_best() -> None:
    strict = RUN.with_(objective=Objective(tolerated=0.0))
    found = beside_fixed(strict, fitted(lose=lambda *_: 0.2), (0,))
    assert (found.best_theta, found.times, found.bearable) == (None, (), (False,))


def test_links_that_change_have_no_closed_form() -> None:
    with pytest.raises(InputError, match="wan"):
        beside_fixed(RUN.with_(wan=Wan(changes=[Change(at_s=1.0, factor=0.5)])), MODEL)


@pytest.mark.slow
@pytest.mark.parametrize("begin", [0, full(1_000)])
def test_by_the_real_short_runs_a_controller_costs_at_most_half_more(begin: int) -> None:
    runs = read_runs(ROOT / "notebooks" / "data" / "decentralized-grid.csv")
    found = []
    for name, skew in product(("fedavg", "diloco", "gaia"), (0.0, 0.25, 0.5, 0.75, 1.0)):
        setting = Decentralized(
            algorithm=name, controller="hill_climbing", skew=skew, steps=12_000, travel_every=400, step_s=0.01
        )
        found.append(beside_fixed(setting, fit_accuracy(runs, name), range(begin, begin + 5)))
    met = [one for one in found if one.best_theta is not None]
    assert len(met) == 14
    assert max(fmean(one.times) for one in met) <= 1.5
    assert sum(time > 1.5 for one in met for time in one.times) <= 1
    # Gaia's 0.2 loses 5.08 % by the fit at skew 0.75, which no controller tells from 5 %.
    beyond = [(one.setting.algorithm, one.setting.skew) for one in met for borne in one.bearable if not borne]
    assert beyond in ([], [("gaia", 0.75)])
