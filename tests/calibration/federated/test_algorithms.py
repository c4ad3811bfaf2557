"""The algorithms: the contract, and what is each one's own."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from calibration.federated.algorithms import ALGORITHMS
from calibration.federated.flat import Flat
from calibration.federated.message import Message, whole
from calibration.federated.models import network
from calibration.federated.setting import Setting
from calibration.federated.train import train
from sim.decentralized.communication import KNOBS, WARM_UP, Communication, kept_by_dgc, sparse_bytes, warmed_up
from tests.contracts.federated import FederatedContract

SETTING = Setting(partitions=2, batch=8)


class TestBsp(FederatedContract):
    name, whole = "bsp", 1.0

    def test_less_is_sent_with_every_further_theta(self):
        assert KNOBS["bsp"].thetas == (1.0,)

    def test_models_never_differ(self):
        assert all(travel.home != () and travel.accuracy_loss == 0 for travel in self.trained(skew=1.0).travels)


class TestGaia(FederatedContract):
    name, whole = "gaia", 0.0


class TestFedAvg(FederatedContract):
    name, whole = "fedavg", 1.0


class TestDgc(FederatedContract):
    name, whole = "dgc", 0.0


class TestDiLoCo(FederatedContract):
    name, whole = "diloco", 1.0


def at(name: str, setting: Setting = SETTING, gradient: float = 1.0):
    """Return an algorithm on a small model with the same gradient everywhere."""
    model = Flat(network("group", (1, 8, 8)))
    model.gradient.fill_(gradient)
    return ALGORITHMS[name](model, setting)


def test_every_algorithm_of_the_simulation_is_real():
    assert set(ALGORITHMS) == set(KNOBS)


def test_gaia_sends_what_is_relatively_large_and_holds_back_the_rest():
    made = at("gaia", replace(SETTING, momentum=0.0))
    before = made.model.weights.clone()
    change = torch.full_like(before, -SETTING.lr / 2)
    message = made.step(1, 0.5)
    sent = (change.abs() > 0.5 * (before + change).abs()).nonzero().flatten()
    assert 0 < len(sent) < len(before) / 2
    assert message.indices.tolist() == sent.tolist()
    assert torch.allclose(message.values, change[sent])
    held = change.clone()
    held[sent] = 0
    assert torch.allclose(made.unsent, held)
    assert torch.allclose(made.model.weights, before + change)


def test_the_threshold_of_gaia_falls_with_the_learning_rate():
    def sent(decays: tuple[int, ...]) -> int:
        made = at("gaia", replace(SETTING, momentum=0.0, lr_decays=decays))
        made.model.gradient.fill_(0.0)
        made.unsent.copy_(0.1 * made.model.weights)
        return made.step(2, 0.2).significant

    assert sent(()) == 0
    assert sent((1,)) > 0.9 * at("gaia").model.weights.numel()


def test_dgc_sends_the_largest_of_each_tensor():
    made = at("dgc", replace(SETTING, clip_norm=1e6))
    made.model.gradient.copy_(torch.randn(made.model.gradient.shape, generator=torch.Generator().manual_seed(0)))
    gradient = made.model.gradient.clone()
    message = made.step(10**6, 0.9)
    sent = torch.zeros_like(gradient, dtype=torch.bool)
    sent[message.indices.long()] = True
    for of, part in zip(sent.split(made.model.sizes), gradient.abs().split(made.model.sizes), strict=True):
        assert of.sum() == max(1, round(0.1 * len(of)))
        assert part[of].min() >= part[~of].max()
    assert (made.unsent[sent] == 0).all()
    assert (made.velocity[sent] == 0).all()
    assert (made.velocity[~sent] == gradient[~sent]).all()


def test_dgc_corrects_momentum():
    made = at("dgc", replace(SETTING, clip_norm=1e6, momentum=0.5))
    for _ in range(2):
        message = made.step(10**6, 0.999)
        made.model.gradient.fill_(1.0)
    # A value that is held back twice: momentum 1, then 1.5; together 2.5.
    assert message.values.max() == 2.5
    assert sorted({*made.velocity.tolist()}) == [0.0, 1.0, 1.5]


def test_dgc_clips_at_home():
    made = at("dgc", replace(SETTING, clip_norm=1.0))
    made.step(1, 0.75)
    assert float(made.model.gradient.norm()) == pytest.approx(1 / 2**0.5, rel=1e-4)


@pytest.mark.slow
def test_dgc_warms_up_to_theta_and_its_bytes_are_those_of_the_formula():
    assert [warmed_up(0.99, step, 2) for step in range(1, 13)] == [
        *(s for s in WARM_UP[:3] for _ in range(2)),
        *[0.99] * 6,
    ]
    run = train(replace(SETTING, partitions=3, batch=60, steps=60), Communication(algorithm="dgc", theta=0.99))
    sizes = Flat(network("group", (1, 8, 8))).sizes
    stage = replace(SETTING, partitions=3, batch=60).epoch_steps
    for one in run.exchanges:
        theta = warmed_up(0.99, one.step, stage)
        assert one.sent_bytes == (sum(sparse_bytes(kept_by_dgc(theta, size), size) for size in sizes),) * 3


def test_diloco_takes_an_outer_step_with_nesterov_momentum():
    made = at("diloco", replace(SETTING, outer_lr=0.5, outer_momentum=0.8))
    begin = made.model.weights.clone()
    for change in (1.0, 1.0):
        state = made.model.state.clone()
        state[: len(begin)] = made.anchor - change
        made.receive([whole(state), whole(state)], 0)
    # Velocity 1, then 1.8; steps 0.5 (1 + 0.8) and 0.5 (1 + 0.8 1.8).
    assert torch.allclose(made.model.weights, begin - 0.9 - 1.22, atol=1e-6)


def test_averages_include_the_statistics_of_batch_norm_and_gradients_do_not():
    for name, theta in (("fedavg", 2.0), ("bsp", 1.0)):
        run = train(replace(SETTING, norm="batch", steps=2), Communication(algorithm=name, theta=theta))
        assert run.exchanges[0].sent_bytes == (4 * (run.state_values if name == "fedavg" else run.values),) * 2
        assert run.state_values > run.values
        assert run.sent_fraction == 1


def test_a_message_is_whole_where_indices_would_make_it_larger():
    made = at("gaia")
    message = made.step(1, 0.0)
    assert isinstance(message, Message)
    assert message.indices is None
    assert message.sent_bytes == 4 * made.model.weights.numel()
    assert np.count_nonzero(message.values) == message.significant
