"""The eight networks: their contract, and what the papers say of single parts."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from calibration.workloads import adversarial, boxes
from calibration.workloads.recurrent import Lstm
from calibration.workloads.registry import WORKLOADS
from calibration.workloads.registry import workload as named
from calibration.workloads.reinforcement import DISCOUNT, ROWS, played, returns
from calibration.workloads.speech import temporal_loss
from calibration.workloads.training import Training
from sim.specs.fields import InputError
from tests.contracts.workload import WorkloadContract, workload

__all__ = ["workload"]


class TestWorkloads(WorkloadContract):
    pass


def test_there_are_eight_of_six_domains():
    assert len(WORKLOADS) == 8
    assert len({each.domain for each in WORKLOADS.values()}) == 6
    assert WORKLOADS["resnet-50"].parameters == 25_557_032
    assert WORKLOADS["inception-v3"].parameters == 27_161_264
    with pytest.raises(InputError, match="workload: got 'vgg'; allowed: one of resnet-50"):
        named("vgg")


@pytest.mark.parametrize("reverse", [False, True])
def test_the_lstm_written_out_is_torchs(reverse):
    torch.manual_seed(0)
    own, x = Lstm(5, 7, reverse), torch.randn(3, 6, 5)
    other = nn.LSTM(5, 7, batch_first=True)
    with torch.no_grad():
        other.weight_ih_l0.copy_(own.of_input.weight)
        other.weight_hh_l0.copy_(own.of_state.weight)
        other.bias_ih_l0.copy_(own.of_input.bias)
        other.bias_hh_l0.zero_()
        wanted = other(x.flip(1))[0].flip(1) if reverse else other(x)[0]
        torch.testing.assert_close(own(x), wanted)


def test_the_temporal_loss_is_torchs():
    torch.manual_seed(0)
    x = torch.randn(4, 12, 6, requires_grad=True)
    labels = torch.tensor([[1, 2, 3], [2, 2, 1], [5, 5, 5], [4, 1, 4]])  # a label that comes twice needs a blank
    own = temporal_loss(x.log_softmax(-1), labels)
    lengths = torch.full((4,), 12), torch.full((4,), 3)
    wanted = functional.ctc_loss(x.log_softmax(-1).transpose(0, 1), labels, *lengths)
    torch.testing.assert_close(own, wanted)
    gradients = [torch.autograd.grad(loss, x)[0] for loss in (own, wanted)]
    torch.testing.assert_close(*gradients)


def test_returns_look_ahead_to_the_end_of_a_ball():
    rewards = torch.tensor([[0.0, 1.0, 0.0]])
    going = torch.tensor([[1.0, 0.0, 1.0]])
    assert returns(rewards, going, torch.tensor([2.0]))[0].tolist() == pytest.approx([DISCOUNT, 1.0, 2 * DISCOUNT])


def test_a_game_pays_for_a_ball_that_is_caught_and_shows_it():
    seen, actions, rewards, going = played(400, ROWS, torch.Generator().manual_seed(0))
    assert seen.shape == (400, 6, 4, ROWS, ROWS)
    assert torch.equal(going == 0, rewards != 0)
    assert (rewards == 1).any() and (rewards == -1).any()
    assert set(actions.flatten().tolist()) == {0, 1, 2}
    assert torch.equal(seen[:, 1, :3], seen[:, 0, 1:])
    squares = seen.sum((-2, -1))
    assert set(squares.flatten().tolist()) == {1.0, 2.0}
    # A ball ends in the last row: all squares of the newest frame are there.
    assert torch.equal(seen[:, :-1, -1, -1].sum(-1) == squares[:, :-1, -1], going == 0)


def test_the_critic_is_clipped_and_each_network_learns_from_its_own_loss():
    training = Training(named("wgan"), "tiny")
    training.step()
    critic = [*training.model.critic.parameters()]
    assert max(float(p.detach().abs().max()) for p in critic) <= adversarial.CLIP
    noise, real = training.batch
    made = training.model.generator(noise).detach()
    alone = training.model.critic(made).mean() - training.model.critic(real).mean()
    wanted = torch.autograd.grad(alone, critic)
    training.forget()
    training.loss(training.model, training.batch).backward()
    for own, other in zip(critic, wanted, strict=True):
        torch.testing.assert_close(own.grad, other, rtol=1e-4, atol=1e-7)


def test_offsets_move_a_box_to_another():
    a = torch.tensor([[[10.0, 20.0, 30.0, 60.0]]])
    b = torch.tensor([[[15.0, 10.0, 55.0, 70.0]]])
    torch.testing.assert_close(boxes.moved(a, boxes.offsets(b, a), (100, 100)), b)
    assert boxes.overlaps(a, a).item() == 1.0
    assert boxes.overlaps(a, b).item() == pytest.approx(15 * 40 / (20 * 40 + 40 * 60 - 15 * 40))


def test_boxes_that_overlap_a_better_one_come_last():
    held = torch.tensor([[[0.0, 0, 10, 10], [0, 0, 10, 11], [50, 50, 60, 60]]])
    kept = boxes.best(held, torch.tensor([[0.9, 0.8, 0.1]]), tried=3, kept=2, most=0.7)
    assert torch.equal(kept, held[:, [0, 2]])


def test_features_are_read_where_a_region_is():
    features = torch.arange(8.0).expand(1, 1, 8, 8)  # the column's number
    region = torch.tensor([[[32.0, 16.0, 96.0, 112.0]]])
    found = boxes.aligned(features, region, stride=16, side=2)
    # Bins' middles lie at pixels 48 and 80; column c is centred at pixel 16 c + 8.
    torch.testing.assert_close(found, torch.tensor([2.5, 4.5]).expand(1, 1, 2, 2))


def test_anchors_cover_the_places():
    made = boxes.anchors(torch.zeros(1, 1, 2, 3), 16, (32,))
    assert made.shape == (2 * 3 * 3, 4)
    assert made[1].tolist() == [8 - 16, 8 - 16, 8 + 16, 8 + 16]
    sizes = made[:, 2:] - made[:, :2]
    torch.testing.assert_close(sizes.prod(-1), torch.full((18,), 32.0**2))
    torch.testing.assert_close((sizes[:3, 1] / sizes[:3, 0]), torch.tensor(boxes.RATIOS))
