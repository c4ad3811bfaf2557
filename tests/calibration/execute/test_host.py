"""What host memory keeps: how much, for how long, and that nothing else changes."""

from contextlib import contextmanager
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calibration.execute.host import HostMemory
from calibration.execute.memory import LiveBytes
from calibration.execute.moved import Mover
from calibration.execute.swapped import SwappedAdam
from calibration.execute.trainer import Trainer
from sim.specs import Offload
from tests.calibration.execute.cases import SMALL, plan

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_swapped_states_update_as_torchs_own_adam(dtype):
    weights = torch.linspace(-1, 1, 100).to(dtype)
    gradients = torch.linspace(-2, 3, 100)
    own = torch.nn.Parameter(weights.float())
    adam = torch.optim.Adam([own], lr=1e-2, fused=True)
    swapped = SwappedAdam(weights, gradients, 7, HostMemory(CPU), 1e-2)
    for _ in range(3):
        own.grad = gradients
        adam.step()
        swapped.step()
    assert torch.equal(weights, own.detach().to(dtype))


def test_three_pieces_of_states_are_on_the_device():
    weights, gradients, memory = torch.zeros(1_000), torch.ones(1_000), HostMemory(CPU)
    swapped = SwappedAdam(weights, gradients, 10, memory, 1e-2)
    assert memory.live_bytes == 2 * 4 * 1_000
    with LiveBytes([weights, gradients, swapped.steps], memory.has) as live:
        swapped.step()
    held = 2 * 4 * 1_000 + 4
    assert live.peak_bytes == held + 3 * 2 * 4 * 100 + 4  # and the count of steps once more
    assert live.live_bytes == held


@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_a_share_of_the_layers_moves_evenly_spread(sizes):
    layers, moved = sizes
    mover = Mover(HostMemory(CPU), moved / layers)
    where = [n for n in range(layers) if mover.moves(n)]
    assert len(where) == moved
    gaps = [b - a for a, b in pairwise(where)]
    assert not gaps or max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_activations_come_back_for_the_backward_and_leave_nothing_behind(recompute):
    given_ = plan(offload=Offload(optimizer=0.5, activations=0.5), recompute=recompute)
    trainer = Trainer(SMALL, given_, 0, 1, CPU, seed=1)
    states = trainer.host.live_bytes
    assert states == pytest.approx(8 * SMALL.parameters / 2, abs=8)
    assert trainer.gradient_error() < 1e-5
    assert trainer.host.live_bytes == states < trainer.host.peak_bytes


class Waits(HostMemory):
    """Host memory that notes which copies compute waits for."""

    def __init__(self) -> None:
        super().__init__(CPU)
        self.waited: list[str] = []

    @contextmanager
    def copying(self, way):
        yield [way]

    def wait(self, done):
        self.waited += done


def test_a_backward_waits_for_what_comes_back_and_not_for_what_still_leaves():
    memory = Waits()
    mover, x = Mover(memory, 1.0), torch.ones(4, 4, requires_grad=True)
    layers = [torch.nn.Linear(4, 4) for _ in range(4)]
    before = None
    for number, layer in enumerate(layers):
        with mover.layer(layer, number, before, None) as before:
            x = layer(x).relu()
    assert memory.waited == ["out"] * 2  # the first two leave before the third and the fourth run
    x.sum().backward()
    assert set(memory.waited[2:]) == {"in"}
    assert all(layer.weight.grad is not None for layer in layers)
