"""The fit of contention matrices: found again, robust, and as good as stated on the published benchmark."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from calibration.contention import Together, fit, fit_device, levels, usable
from calibration.published.tables import read_public
from sim.costs.contention import makespan, rows
from sim.costs.profile import load_profile
from sim.specs import InputError
from tests.oracle import reference

TRUTH = [0.8, 0.0, 0.1, 0.3, 0.0, 0.5, 0.2, 0.1, 0.4, 0.0, 0.6, 0.2]


def made(noise=0.0, session="one", n_in=8):
    """Return the full design of three sizes a stream, in a world that the model describes."""
    amount = np.array(list(product((0.0, 4.0, 10.0, 18.0), repeat=4)))
    amount = amount[amount.any(axis=1)]
    rng = np.random.default_rng(1)
    seconds = makespan(amount * 1e-3, rows(TRUTH)) * np.exp(noise * rng.normal(size=len(amount)))
    return Together("toy", n_in, 1, session, amount, seconds, 0.001 * seconds, "a toy")


def test_a_known_matrix_is_found_again():
    found = fit(made())
    assert np.array(found.contention.matrix) == pytest.approx(np.array(rows(TRUTH)), abs=0.005)
    assert found.contention.mape < 0.01
    assert found.longest > 10
    assert found.total > 10


def test_one_wild_row_in_ten_moves_it_little():
    samples = made(noise=0.003)
    wild = samples.seconds * np.where(np.arange(len(samples)) % 10 == 3, 1.5, 1.0)
    several = (samples.amount > 0).sum(axis=1) > 1
    matrix = fit(replace(samples, seconds=np.where(several, wild, samples.seconds))).contention.matrix
    assert np.array(matrix) == pytest.approx(np.array(rows(TRUTH)), abs=0.12)


def test_rows_that_shook_are_left_out():
    samples = made()
    shook = replace(samples, spread=np.where(np.arange(len(samples)) % 3 == 0, samples.seconds, samples.spread))
    assert len(levels(shook).seconds) < len(levels(samples).seconds)
    assert usable(samples)
    assert not usable(replace(samples, spread=samples.seconds))


@pytest.mark.slow
def test_a_device_keeps_to_one_session():
    noisy, calm = made(noise=0.05, session="noisy"), made(session="calm")
    assert [c.session for c in fit_device([noisy, calm])] == ["calm"]
    more = fit_device([noisy, replace(noisy, n_in=2), calm])
    assert [(c.session, c.n_in) for c in more] == [("noisy", 2), ("noisy", 8)]
    assert fit_device([replace(calm, spread=calm.seconds)]) == []


@pytest.mark.parametrize(
    ("device", "mean", "worst"), [("a100-sxm-40gb", 1.6, 2.8), ("v100-sxm-32gb", 1.4, 2.7), ("l4", 0.8, 1.0)]
)
def test_shipped_matrices_are_as_good_as_the_published_ones(device, mean, worst):
    """Earlier fits: 2.1, 2.8 and 0.8 % held out. V100 has shapes whose rows shake by half; those are not shipped."""
    assert len({c.session for c in load_profile(device).contention}) == 1
    errors = [c.mape for c in load_profile(device).contention]
    assert np.mean(errors) < mean
    assert max(errors) < worst


@pytest.mark.slow
def test_sessions_do_not_mix():
    """One L4 shape in two sessions: each predicts the other ten times worse than itself."""
    public = read_public([reference("collectives/contention.csv.gz")])
    one, other = (each for each in public.together if (each.device, each.n_in) == ("l4", 8))
    data, found = levels(other), fit(one).contention
    error = np.abs(makespan(data.alone[data.which], found.matrix) / data.seconds - 1).mean()
    assert 100 * error > 10 * found.mape


def test_a_damaged_file_is_one_clear_error(tmp_path):
    path = tmp_path / "contention.csv.gz"
    path.write_bytes(reference("collectives/contention.csv.gz").read_bytes()[:5000])
    with pytest.raises(InputError, match=r"contention\.csv\.gz"):
        read_public([path])
