"""What stale weights do to training: a small network trained by following the orders action by action.

Three linear stages with tanh between, mean squared error, double precision, CPU; autograd is the oracle of gradients.
"""

from dataclasses import dataclass, field

import pytest
import torch

from sim.engine.path import run_path
from sim.engine.timeline import Durations
from sim.schedules import Kind, Schedule, Shape, build, versions

P, WIDTH, SAMPLES, RATE = 3, 8, 16, 0.05
Weights = tuple[torch.Tensor, ...]


def data(microbatches):
    """Inputs and targets [microbatch, sample, width] of a teacher network."""
    source = torch.Generator().manual_seed(0)
    teacher = [torch.randn(WIDTH, WIDTH, generator=source, dtype=torch.float64) / WIDTH**0.5 for _ in range(P)]
    x = torch.randn(microbatches, SAMPLES, WIDTH, generator=source, dtype=torch.float64)
    return x, network(teacher, x)


def start():
    source = torch.Generator().manual_seed(1)
    return [torch.randn(WIDTH, WIDTH, generator=source, dtype=torch.float64) / WIDTH**0.5 for _ in range(P)]


def network(weights, x):
    for w in weights[:-1]:
        x = torch.tanh(x @ w)
    return x @ weights[-1]


def true_gradient(weights, x, target):
    """Gradients per stage of the loss of one microbatch, all stages at the given weights (autograd)."""
    leaves = [w.clone().requires_grad_() for w in weights]
    return torch.autograd.grad(torch.nn.functional.mse_loss(network(leaves, x), target), leaves)


@dataclass
class Trained:
    """history[stage][version]: weights; gradient[stage, microbatch]: as the pipeline computed it."""

    history: list[list[torch.Tensor]]
    gradient: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)

    def loss(self, x, target):
        return float(torch.nn.functional.mse_loss(network([h[-1] for h in self.history], x), target))


def train(order: Schedule, x, target, stashing=True, rate=RATE) -> Trained:
    """Follow the actions in time; each pass takes the weights that `versions` gives it."""
    uses = versions(order, stashing)
    timeline = run_path(order, Durations.uniform(order.stages, {Kind.F: 2, Kind.B: 4, Kind.OPTIMIZER: 1}))
    run = Trained([[w] for w in start()])
    kept, passed, waiting = {}, {}, [[] for _ in range(P)]
    for i in sorted(range(len(timeline.graph)), key=lambda i: timeline.start[i]):
        stage, kind, k = timeline.action(i)
        weights = run.history[stage]
        if kind is Kind.OPTIMIZER:
            weights.append(weights[-1] - rate * sum(waiting[stage]) / len(waiting[stage]))
            waiting[stage].clear()
        elif kind is Kind.F:
            entering = x[k] if stage == 0 else passed[stage - 1, k]
            leaving = entering @ weights[uses[stage, k].forward]
            passed[stage, k] = torch.tanh(leaving) if stage < P - 1 else leaving
            kept[stage, k] = entering, passed[stage, k]
        else:
            entering, leaving = kept.pop((stage, k))
            if stage == P - 1:
                error = 2 * (leaving - target[k]) / leaving.numel()
            else:
                error = passed.pop((stage + 1, k, "back")) * (1 - leaving**2)
            passed[stage, k, "back"] = error @ weights[uses[stage, k].backward].T
            run.gradient[stage, k] = entering.T @ error
            waiting[stage].append(run.gradient[stage, k])
    return run


def worst(run, order, x, target):
    """Largest relative error of the pipeline's gradients against autograd's at each forward's weights, per stage."""
    uses, error = versions(order), [0.0] * P
    for k in range(order.microbatches):
        weights = [run.history[s][uses[s, k].forward] for s in range(P)]
        for s, true in enumerate(true_gradient(weights, x[k], target[k])):
            error[s] = max(error[s], float((run.gradient[s, k] - true).norm() / true.norm()))
    return error


PIPEDREAM = build("pipedream", Shape(P, 40))
SYNCHRONISED = build("pipedream", Shape(P, 40, vertical_sync=True))
TWO_BW = build("2bw", Shape(P, 40, group=4))


@pytest.mark.parametrize("order", [PIPEDREAM, SYNCHRONISED, TWO_BW], ids=["pipedream", "vertical sync", "2bw"])
def test_stashing_makes_every_gradient_a_true_one(order):
    x, target = data(order.microbatches)
    assert max(worst(train(order, x, target), order, x, target)) < 1e-12


def test_without_stashing_gradients_are_not_true():
    x, target = data(PIPEDREAM.microbatches)
    error = worst(train(PIPEDREAM, x, target, stashing=False), PIPEDREAM, x, target)
    # The last stage's backward follows its forward at once, so what it passes on is true; the stage before it passes
    # the error back through weights that are one update newer than those of its forward.
    assert error[1:] == pytest.approx([0, 0], abs=1e-12)
    assert error[0] > 1e-2


def test_one_backward_uses_its_forwards_version():
    """On the first stage of three microbatch 10 was forwarded at version 8 and meets version 10 on its way back."""
    x, target = data(PIPEDREAM.microbatches)
    run, k = train(PIPEDREAM, x, target), 10
    assert versions(PIPEDREAM)[0, k][:4] == (8, 8, 11, 10)
    update = run.history[0][k] - run.history[0][k + 1]
    assert torch.allclose(update, RATE * run.gradient[0, k])
    later = [run.history[0][10], run.history[1][9], run.history[2][10]]
    assert not torch.allclose(run.gradient[0, k], true_gradient(later, x[k], target[k])[0], rtol=1e-3)


def test_vertical_sync_is_gradient_descent_with_one_delay():
    """w(t + 1) = w(t) - lr grad f(w(t - p + 1)) on all stages (arXiv 1806.03377, section 3.3), written out."""
    x, target = data(SYNCHRONISED.microbatches)
    run, old = train(SYNCHRONISED, x, target), [start()]
    for t in range(SYNCHRONISED.microbatches):
        gradient = true_gradient(old[max(t - P + 1, 0)], x[t], target[t])
        old.append([w - RATE * g for w, g in zip(old[-1], gradient, strict=True)])
    for stage, history in enumerate(run.history):
        for mine, theirs in zip(history, old, strict=True):
            torch.testing.assert_close(mine, theirs[stage], rtol=0, atol=1e-6)


def test_2bw_is_gradient_descent_with_a_delay_of_one():
    """W(t + 1) = W(t) - lr grad f(W(t - 1)) (arXiv 2006.09503, section 3.2), written out for the whole network."""
    x, target = data(TWO_BW.microbatches)
    run, old, m = train(TWO_BW, x, target), [start()], 4
    for t in range(TWO_BW.microbatches // m):
        batch = slice(m * t, m * (t + 1))
        gradient = true_gradient(old[max(t - 1, 0)], x[batch], target[batch])
        old.append([w - RATE * g for w, g in zip(old[-1], gradient, strict=True)])
    for stage, history in enumerate(run.history):
        assert len(history) == len(old)
        for mine, theirs in zip(history, old, strict=True):
            torch.testing.assert_close(mine, theirs[stage], rtol=0, atol=1e-6)
    undelayed = true_gradient(old[3], x[12:16], target[12:16])
    assert not torch.allclose(undelayed[0], (old[3][0] - old[4][0]) / RATE, rtol=1e-3)


def descend(x, target, batch):
    """Data parallel: the mean gradient of each batch at the newest weights."""
    weights = start()
    for at in range(0, len(x), batch):
        gradient = true_gradient(weights, x[at : at + batch], target[at : at + batch])
        weights = [w - RATE * g for w, g in zip(weights, gradient, strict=True)]
    return float(torch.nn.functional.mse_loss(network(weights, x), target))


@pytest.mark.slow
def test_final_loss_is_data_parallels_within_1_percent():
    """After the same number of updates of the same size, at less than a quarter of the first loss."""
    x, target = data(1200)
    before = float(torch.nn.functional.mse_loss(network(start(), x), target))
    for name, shape, batch in (
        ("pipedream", Shape(P, 1200), 1),
        ("pipedream", Shape(P, 1200, vertical_sync=True), 1),
        ("2bw", Shape(P, 1200, group=4), 4),
    ):
        reached, goal = train(build(name, shape), x, target).loss(x, target), descend(x, target, batch)
        assert reached == pytest.approx(goal, rel=0.01)
        assert goal < 0.25 * before
