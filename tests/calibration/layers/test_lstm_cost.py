"""Costs of recurrent layers by hand, and that a fit finds them again."""

import pytest

from calibration.layers.layouts import CHOICES, COLUMNS, ROWS, Choice
from calibration.layers.lstm import Sizes
from calibration.layers.lstm_cost import FITTED, HOST, LayerCosts, fit

SIZES = Sizes(seq=3, batch=2, inputs=5, hidden=7, gates=4)
HOISTED, BY_STEP, TURNED = Choice(ROWS), Choice(ROWS, hoisted=False), Choice(COLUMNS)


def seconds(choice, **constants):
    return LayerCosts(dict.fromkeys(FITTED, 0.0) | constants).seconds(SIZES, choice)


def test_launches_by_hand():
    """Each way one product of all inputs or 3, 3 of the state, 3 kernels between; two of the weights' gradients."""
    assert seconds(HOISTED, launch_s=1.0) == seconds(TURNED, launch_s=1.0) == 2 * (1 + 3 + 3) + 2
    assert seconds(BY_STEP, launch_s=1.0) == 2 * (3 + 3 + 3) + 2


def test_products_by_hand():
    """2 FLOP a multiply-add of 28 gates with 5 inputs and 7 states for 6 samples, three times over."""
    flop = 3 * 2 * 28 * (5 + 7) * 6
    assert [seconds(choice, flop_s=1.0) for choice in CHOICES] == [flop] * 4
    # Beside 6 samples (3 products of all steps) or 2 (3 steps each way) every product takes half a one more.
    small = 2 * 28 * (3 * 5 + 7 + 2 * 3 * 7)
    assert seconds(HOISTED, flop_s=1.0, rows_half=1.0, columns_half=9.0) == flop + small
    assert seconds(TURNED, flop_s=1.0, rows_half=9.0, columns_half=1.0) == flop + small
    assert seconds(BY_STEP, flop_s=1.0, rows_half=1.0) == flop + 2 * 28 * (5 + 7 + 2 * 3 * (5 + 7))


def test_kernels_between_by_hand():
    """Twice 3 steps over 14 numbers, in runs of 4 gates for 2 samples or for 7 features; 42 numbers laid otherwise."""
    assert seconds(HOISTED, element_s=1.0) == seconds(TURNED, element_s=1.0) == 2 * 3 * 14
    assert (seconds(HOISTED, run_s=1.0), seconds(TURNED, run_s=1.0)) == (2 * 3 * 8, 2 * 3 * 28)
    assert (seconds(HOISTED, turn_s=1.0), seconds(TURNED, turn_s=1.0)) == (0, 42)


def test_the_pick_follows_the_constants():
    slow = dict.fromkeys(FITTED, 0.0) | {"flop_s": 1.0, "launch_s": 1.0, "rows_half": 2.0, "columns_half": 1.0}
    assert LayerCosts(slow).pick(SIZES) == TURNED
    assert LayerCosts(slow | {"columns_half": 3.0}).pick(SIZES) == HOISTED


def test_a_fit_finds_the_constants_again():
    true = {name: 3.0 * value for name, value in HOST.items()}
    sizes = [Sizes(16, 4, 64, 64), Sizes(8, 64, 96, 160), Sizes(24, 16, 256, 256), Sizes(6, 96, 48, 320)]
    made = LayerCosts(true)
    measured = [(each, choice, made.seconds(each, choice)) for each in sizes for choice in CHOICES]
    found = fit(measured, HOST)
    assert found.sigma_log < 0.02
    for each, choice, taken in measured:
        assert found.seconds(each, choice) == pytest.approx(taken, rel=0.03)
    unseen = Sizes(12, 32, 128, 192)
    assert found.seconds(unseen, TURNED) == pytest.approx(made.seconds(unseen, TURNED), rel=0.05)
