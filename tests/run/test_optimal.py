"""Compute-optimal answers: the minimum is one, it is the published one, and a budget is what it buys."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from sim.engine.step import simulate
from sim.run import Budget, compute_optimal, whole_run
from sim.run.optimal import balanced_flop, optimal_parameters
from sim.specs import Checkpointing, Cluster, Dataset, Failures, InputError, Loading, Plan, Training
from sim.specs.catalog import models, scaling_law

LAWS = ("besiroglu-2024", "hoffmann-2022")
CHINCHILLA_FLOP = 5.76e23
budgets = st.floats(18, 28).map(lambda e: 10.0**e)


@given(flop=budgets, law=st.sampled_from(LAWS), factor=st.floats(0.01, 100))
def test_no_other_size_of_the_same_budget_is_better(flop, law, factor):
    best = compute_optimal(1e9, flop, law).best
    other = compute_optimal(best.parameters * factor, flop, law).given
    assert best.loss <= other.loss + 1e-12
    assert best.flop == pytest.approx(other.flop) == pytest.approx(flop)


@pytest.mark.parametrize("law", LAWS)
def test_the_closed_form_is_the_numerical_minimum(law):
    found = scaling_law(law)
    least = minimize_scalar(
        lambda n: found.loss(np.exp(n), 1e24 / 6 / np.exp(n)),
        bounds=(18, 32),
        options={"xatol": 1e-9},
        method="bounded",
    )
    assert np.log(optimal_parameters(found, 1e24)) == pytest.approx(least.x, abs=1e-4)


@given(parameters=st.floats(7, 13).map(lambda e: 10.0**e), law=st.sampled_from(LAWS))
def test_at_its_balanced_budget_a_model_is_the_best_size(parameters, law):
    found = scaling_law(law)
    assert optimal_parameters(found, balanced_flop(found, parameters)) == pytest.approx(parameters)
    assert compute_optimal(parameters, 1e24, law).balanced.flop == pytest.approx(balanced_flop(found, parameters))


def test_chinchilla_as_refitted_is_20_tokens_a_parameter():
    """Besiroglu et al. 2024: at Chinchilla's budget the refit agrees with its 70 B parameters and 1.4 T tokens."""
    best = compute_optimal(70e9, CHINCHILLA_FLOP).best
    assert best.parameters == pytest.approx(70e9, rel=0.05)
    assert best.tokens == pytest.approx(1.4e12, rel=0.06)
    assert 15 < best.tokens_per_parameter < 25


def test_chinchilla_as_published_asks_for_a_smaller_model():
    """Hoffmann et al. 2022: a = 0.46 in approach 3 (table 2), and 40 B at Gopher's budget (figure 4).

    The constants rounded for print give 32 B.
    """
    found = scaling_law("hoffmann-2022")
    growth = np.log10(optimal_parameters(found, 1e24) / optimal_parameters(found, 1e23))
    assert growth == pytest.approx(0.46, abs=0.01)
    best = compute_optimal(70e9, CHINCHILLA_FLOP, "hoffmann-2022").best
    assert 25e9 < best.parameters < 45e9


def test_tokens_of_a_budget_in_flop():
    found = compute_optimal(models["llama3-8b"], 1e23)
    assert found.given.tokens == pytest.approx(1e23 / 6 / models["llama3-8b"].parameters)
    assert found.given_tokens_interval == (found.given.tokens, found.given.tokens)


@given(days=st.floats(0.01, 1e4), goodput=st.floats(0.05, 1.0))
def test_days_buy_the_tokens_that_a_run_of_so_many_days_trains_on(step, days, goodput):
    training = Training(steps=1, goodput=goodput)
    found = compute_optimal(step.model, Budget.on(step, days=days, training=training))
    run = whole_run(step, Training(tokens=found.given.tokens, goodput=goodput))
    a_step = whole_run(step, training).days
    assert run.days == pytest.approx(days, abs=1.01 * a_step)
    low, high = found.given_tokens_interval
    assert low < found.given.tokens < high


def test_days_lose_what_the_run_loses_to_data_checkpoints_and_failures(step):
    data = Loading(dataset=Dataset(samples=10**7, sample_bytes=32_768.0), prep_s=2.0)
    around = {"loading": data, "checkpointing": Checkpointing(failures=Failures(device_mtbf_s=1e6))}
    budget = Budget.on(step, days=30.0, **around)
    run = whole_run(step, Training(tokens=compute_optimal(step.model, budget).given.tokens), **around)
    assert run.losses["data"] > 0.1 and run.losses["failures"] > 0.1
    assert run.days == pytest.approx(30.0, rel=1e-3)


def test_the_same_budget_in_three_units(step):
    gpus, price = step.placed.gpus, step.cluster.usd_per_gpu_hour
    by_days = Budget.on(step, days=2.0)
    assert Budget.on(step, gpu_hours=2.0 * 24 * gpus).flop == pytest.approx(by_days.flop)
    assert Budget.on(step, usd=2.0 * 24 * gpus * price).flop == pytest.approx(by_days.flop)
    cheaper = Training(steps=1, usd_per_gpu_hour=price / 2)
    assert Budget.on(step, usd=24 * gpus * price, training=cheaper).flop == pytest.approx(by_days.flop)


def test_the_law_and_the_convention_are_stated(step):
    listed = " ".join(compute_optimal(step.model, Budget.on(step, days=1.0)).assumptions)
    assert "arXiv 2404.10102" in listed and "C = 6 N D" in listed and "same 6 N D FLOP/s" in listed


@pytest.mark.parametrize(
    ("flop", "size", "law", "path"),
    [
        (float("nan"), 1e9, LAWS[0], "budget_flop"),
        (0.0, 1e9, LAWS[0], "budget_flop"),
        (float("inf"), 1e9, LAWS[0], "budget_flop"),
        (True, 1e9, LAWS[0], "budget"),
        (1e23, 0.5, LAWS[0], "parameters"),
        (1e23, "8b", LAWS[0], "model"),
        (1e23, 1e9, "kaplan", "scaling"),
    ],
)
def test_bad_input(flop, size, law, path):
    with pytest.raises(InputError) as caught:
        compute_optimal(size, flop, law)
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("given_", "path", "allowed"),
    [
        ({}, "budget", "exactly one of days"),
        ({"days": 1.0, "usd": 1.0}, "budget", "exactly one of days"),
        ({"days": -1.0}, "days", "a number from"),
        ({"usd": float("nan")}, "usd", "a number from"),
        ({"days": 1e-6}, "days", "enough for one step"),
    ],
)
def test_bad_budget(step, given_, path, allowed):
    with pytest.raises(InputError) as caught:
        Budget.on(step, **given_)
    assert caught.value.path == path and allowed in caught.value.allowed


def test_usd_without_a_price_are_refused():
    unpriced = simulate(models["llama3.2-1b"], Cluster.of("b200"), Plan(global_batch=8))
    with pytest.raises(InputError, match=r"usd_per_gpu_hour: got None; allowed: a price above 0 for b200"):
        Budget.on(unpriced, usd=100.0)
