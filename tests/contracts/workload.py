"""What every workload of the benchmark does: data and weights by seed, a loss that falls, a gradient everywhere."""

import time

import pytest
import torch

from calibration.workloads.registry import WORKLOADS
from calibration.workloads.reinforcement import returns
from calibration.workloads.training import Training
from calibration.workloads.workload import SIZES

STEPS = 6


def wrong_values(model, batch):
    """The squared advantage of A3C: its policy's loss falls for no fixed batch, as what it multiplies changes."""
    seen, _, rewards, going = batch
    values = model(seen.flatten(0, 1))[1].unflatten(0, seen.shape[:2])
    return (returns(rewards, going, values[:, -1]) - values[:, :-1]).square().mean()


LOWERED = {"a3c": wrong_values}
"""What training lowers, where that is not the loss."""


@pytest.fixture(scope="module", params=WORKLOADS.values(), ids=list(WORKLOADS))
def workload(request):
    return request.param


class WorkloadContract:
    """Inherit with the fixture `workload` imported."""

    def test_the_seed_decides_data_and_weights(self, workload):
        first, again, other = (workload.batch("tiny", seed) for seed in (3, 3, 4))
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
        assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
        before = torch.random.get_rng_state()
        weights = [[*workload.build("tiny", seed).parameters()] for seed in (3, 3, 4)]
        assert torch.equal(before, torch.random.get_rng_state())
        assert all(torch.equal(a, b) for a, b in zip(*weights[:2], strict=True))
        assert not all(torch.equal(a, b) for a, b in zip(*weights[1:], strict=True))

    def test_a_step_has_its_samples(self, workload):
        for size in SIZES[:1]:
            assert {len(t) for t in workload.batch(size)} == {workload.samples[size]}
            assert {len(t) for t in workload.batch(size, samples=3)} == {3}

    def test_the_loss_falls_in_a_second_and_every_parameter_has_a_gradient(self, workload):
        training = Training(workload, "tiny")
        lowered = LOWERED.get(workload.name, workload.loss)
        training.step()
        losses, seconds = [], []
        for _ in range(STEPS):
            with torch.no_grad():
                losses.append(float(lowered(training.model, training.batch)))
            begin = time.process_time()
            assert training.step().isfinite()
            seconds.append(time.process_time() - begin)
        assert min(seconds) < 1.0
        assert losses[-1] < losses[0]
        lacking = [n for n, p in training.model.named_parameters() if p.grad is None or not p.grad.any()]
        assert lacking == []

    def test_full_parameters_are_exact(self, workload):
        with torch.device("meta"):
            assert sum(p.numel() for p in workload.make("full").parameters()) == workload.parameters
