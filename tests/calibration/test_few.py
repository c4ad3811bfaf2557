"""Constants from few times: what made them is found, one that nothing says of stays, a disturbed time moves little."""

import numpy as np
import pytest

from calibration.few import fit_few

SIZES = np.array([1.0, 3.0, 10.0, 30.0, 100.0, 300.0])
START = {"floor_s": 1.0, "each_s": 0.1, "unseen_s": 7.0}
TRUE = {"floor_s": 3.0, "each_s": 0.2, "unseen_s": 50.0}


def seconds(values):
    return values["floor_s"] + values["each_s"] * SIZES


def test_what_made_the_times_is_found():
    found, sigma = fit_few(START, seconds, seconds(TRUE))
    assert found["floor_s"] == pytest.approx(3.0, rel=0.02)
    assert found["each_s"] == pytest.approx(0.2, rel=0.02)
    assert found["unseen_s"] == pytest.approx(7.0)
    assert sigma < 0.01


def test_a_disturbed_time_moves_little_and_widens_the_errors():
    times = seconds(TRUE)
    times[2] *= 4
    found, sigma = fit_few(START, seconds, times)
    assert found["each_s"] == pytest.approx(0.2, rel=0.1)
    assert sigma > 0.5
