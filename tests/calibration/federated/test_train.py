"""Training in one process: what it counts, and theta on the move."""

import pytest
import torch

from calibration.federated.setting import Setting
from calibration.federated.train import train
from calibration.federated.transport import everyone, nobody, onward
from sim.decentralized.communication import Communication
from sim.specs.fields import InputError
from tests.calibration.federated.scripted import Scripted

SETTING = Setting(partitions=4, steps=20, travel_every=8, batch=8, skew=1.0)


def test_traffic_is_that_of_every_link():
    run = train(SETTING, Communication(algorithm="fedavg", theta=5.0))
    model = 4 * run.state_values
    assert [one.step for one in run.exchanges] == [5, 10, 15, 20]
    assert run.travel_bytes == 2 * 4 * model
    assert run.traffic_bytes == 4 * 12 * model + run.travel_bytes
    assert run.sent_bytes == model / 5


def test_a_controller_moves_theta_by_what_travel_showed():
    made = Scripted((5.0, 2.0, 4.0))
    run = train(SETTING, Communication(algorithm="fedavg", theta=50.0), made)
    assert run.thetas == (5.0,) * 8 + (2.0,) * 8 + (4.0,) * 4
    assert [one.step for one in run.exchanges] == [5, 9, 11, 13, 15, 19]
    assert [(seen.theta, seen.sent_bytes, seen.model_bytes) for seen in made.seen] == [
        (theta, 4 * run.state_values / theta, 4 * run.state_values) for theta in (5.0, 2.0)
    ]
    assert [seen.accuracy_loss for seen in made.seen] == [travel.accuracy_loss for travel in run.travels]


def test_what_an_update_by_significance_sends_is_counted_between_travels():
    made = Scripted((0.05,))
    run = train(SETTING, Communication(algorithm="gaia", theta=0.05), made)
    second = [sum(one.sent_bytes) / 4 for one in run.exchanges if 8 < one.step <= 16]
    assert made.seen[1].sent_bytes == pytest.approx(sum(second) / 8)
    assert 0 < run.sent_fraction < 1


def test_a_theta_that_the_algorithm_cannot_have_is_refused():
    with pytest.raises(InputError, match="theta"):
        train(SETTING, Communication(algorithm="fedavg", theta=5.0), Scripted((5.0, 0.5)))


@pytest.mark.slow
def test_models_on_other_data_lose_accuracy_and_on_like_data_do_not():
    how = Communication(algorithm="fedavg", theta=20.0)
    at = {"partitions": 3, "steps": 100, "travel_every": 50}
    skewed, iid = (train(Setting(skew=skew, **at), how) for skew in (1.0, 0.0))
    assert skewed.accuracy_loss > 0.3
    assert abs(iid.accuracy_loss) < 0.05
    assert iid.accuracy > skewed.accuracy
    late = [sum(travel.home) - sum(travel.away) for travel in skewed.travels[1:]]
    assert skewed.accuracy_loss == pytest.approx(sum(late) / len(late) / 3)


def test_threads_are_as_before():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        train(Setting(steps=1), Communication(algorithm="bsp"))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_an_algorithm_takes_no_longer_than_its_gradients():
    bsp, gaia = (train(Setting(steps=60), Communication(algorithm=name, theta=1.0)) for name in ("bsp", "gaia"))
    assert bsp.seconds >= sum(bsp.compute_s) > 0
    assert sum(gaia.compute_s) < 2 * sum(bsp.compute_s)


def test_a_model_travels_to_each_of_the_others_in_turn():
    for members in ((0, 1, 2, 3), (0, 2, 5)):
        routes = [onward(travel)(members) for travel in range(len(members) - 1)]
        assert all({receiver for _, receiver in route} == {*members} for route in routes)
        assert sorted(link for route in routes for link in route) == sorted(everyone(members))
    assert onward(3)((4,)) == everyone((4,)) == nobody((4, 5)) == []
