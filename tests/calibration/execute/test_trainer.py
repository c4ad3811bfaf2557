"""What a rank computes: parameters, gradients, losses, bytes; and that two processes are one."""

from shutil import which

import pytest
import torch

from calibration.execute.limits import check_model
from calibration.execute.measure import Measured, Run, Setting, measure, measure_all
from calibration.execute.memory import LiveBytes
from calibration.execute.trainer import Trainer
from calibration.kernels.gpt import SmallGpt
from sim.plans.traffic import traffic
from sim.specs import InputError, Model, Plan
from sim.specs.plan import PlacedPlan
from tests.calibration.execute.cases import SMALL, plan

CPU = torch.device("cpu")
STATE = 4 * SMALL.parameters


@pytest.fixture(scope="module")
def two() -> dict[str, Measured]:
    """Ten steps of two processes: one reduction at the end, block by block beside backward, ZeRO-1."""
    plans = {"plain": plan(dp=2), "overlapped": plan(dp=2, overlap_dp=True), "zero": plan(dp=2, zero=1)}
    return dict(zip(plans, measure_all([Run(SMALL, each) for each in plans.values()], Setting()), strict=True))


@pytest.fixture(scope="module")
def alone() -> dict[str, Measured]:
    """Ten steps of one process with the same global batch, the same in one microbatch, and of a block alone."""
    block = Run(SMALL, plan(global_batch=2), what="block")
    found = measure_all([Run(SMALL, plan()), Run(SMALL, plan(micro_batch=8)), block], Setting())
    return dict(zip(("one", "wide", "block"), found, strict=True))


@pytest.fixture(scope="module")
def one(alone) -> Measured:
    """Ten steps of one process with the same global batch."""
    return alone["one"]


@pytest.mark.slow
@pytest.mark.skipif(which("g++") is None, reason="needs a C++ compiler")
def test_compiled_layers_train_alike(one):
    """Compiling takes a quarter of a minute."""
    compiled = measure(SMALL, plan(compiled=True), "cpu")
    assert compiled.losses == pytest.approx(one.losses, rel=1e-5)
    assert 0 < compiled.max_gradient_error < 1e-5


@pytest.mark.parametrize("sizes", [(1, 64, 2, 100, 16), (3, 128, 4, 999, 65)])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_the_network_has_exactly_the_parameters_that_the_simulator_counts(sizes, tied, bias):
    layers, hidden, heads, vocab, seq = sizes
    biases = dict.fromkeys(("bias", "norm_bias", "head_bias"), bias)
    model = Model(
        layers=layers,
        hidden=hidden,
        heads=heads,
        vocab=vocab,
        seq=seq,
        tied_embeddings=tied,
        max_positions=99,
        **biases,
    )
    check_model(model)
    assert sum(p.numel() for p in SmallGpt(model).parameters()) == model.parameters


@pytest.mark.parametrize("change", [{"tied_embeddings": False}, {"attention": "eager"}, {"bias": False}])
def test_other_networks_of_its_kind_train_too(change):
    model = Model(**{n: getattr(SMALL, n) for n in ("layers", "hidden", "heads", "vocab", "seq")}, **change)
    trainer = Trainer(model, plan(), 0, 1, CPU, seed=1)
    assert trainer.gradient_error() < 1e-5
    first, *_, last = (trainer.step() for _ in range(5))
    assert last < first


def test_microbatches_add_up_to_the_batch():
    assert Trainer(SMALL, plan(), 0, 1, CPU, seed=1).gradient_error() < 1e-5


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_one_step_is_torchs_own_step(precision):
    given = plan(global_batch=4, micro_batch=4, precision=precision)
    trainer = Trainer(SMALL, given, 0, 1, CPU, seed=3)
    module = SmallGpt(SMALL, 3)
    module.load_state_dict({k: v.float() for k, v in trainer.module.state_dict().items()})
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    module.loss(trainer.batch[:, :-1], trainer.batch[:, 1:]).backward()
    optimizer.step()
    trainer.step()
    found = torch.cat([p.detach().flatten().float() for p in trainer.module.parameters()])
    wanted = torch.cat([p.detach().flatten() for p in module.parameters()])
    moved = 1e-3  # Adam's first step moves every weight by the learning rate, up or down
    tolerance = 1e-6 if precision == "fp32" else 4e-3
    assert (found - wanted).abs().quantile(0.99) <= tolerance
    assert precision == "bf16" or (found - wanted).abs().max() < 2 * moved


def test_two_processes_have_the_gradients_of_one(two):
    for measured in two.values():
        assert measured.max_gradient_error < 1e-5


def test_losses_are_those_of_one_process_and_fall(one, two):
    assert one.losses[-1] < one.losses[0]
    for measured in two.values():
        assert measured.losses[-1] < measured.losses[0]
    for name in ("plain", "zero"):
        assert two[name].losses == pytest.approx(one.losses, rel=1e-4)  # of the whole batch, not of a rank's part
    assert two["plain"].losses == pytest.approx(two["overlapped"].losses, rel=1e-3)


@pytest.mark.parametrize("name", ["plain", "overlapped", "zero"])
def test_bytes_sent_are_exactly_the_predicted_ones(two, name):
    given = plan(dp=2, zero=int(name == "zero"), overlap_dp=name == "overlapped")
    assert two[name].traffic == tuple(traffic(SMALL, PlacedPlan(plan=given, dp=2, microbatches=2)) * 2)
    assert two[name].bytes_sent == (4.0 * SMALL.parameters,) * 2


def test_one_process_sends_nothing(one):
    assert one.traffic == ({},)
    assert traffic(SMALL, PlacedPlan(plan=plan(), dp=1, microbatches=4)) == [{}]


def test_zero_1_halves_the_moments(two):
    plain, sharded = (max(two[name].peak_memory_bytes) for name in ("plain", "zero"))
    assert plain - sharded == pytest.approx(STATE, rel=0.01)


def test_the_peak_holds_states_and_more_for_larger_microbatches(alone):
    assert 4 * STATE < alone["one"].peak_memory_bytes[0] < alone["wide"].peak_memory_bytes[0]


def test_a_block_takes_less_than_the_step(alone):
    assert 0 < alone["block"].step_time_s < alone["one"].median_s


def test_times_are_of_as_many_steps_as_asked_for(one):
    assert one.steps == 10
    assert one.step_time_s <= one.median_s
    with pytest.raises(InputError, match="steps: got 9; allowed: 10 to 10000"):
        measure(SMALL, plan(), "cpu", steps=9)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(InputError, match="--device: got 'cuda'"):
        measure(SMALL, plan(), "cuda")


def test_live_bytes_count_storages_until_they_are_freed():
    held = torch.zeros(100)
    with LiveBytes([held]) as live:
        kept = held + 1
        view = kept[:50]
        gone = kept * 2
        del gone
        small = torch.zeros(10)
    assert live.live_bytes == 4 * (100 + 100 + 10)
    assert live.peak_bytes == 4 * (100 + 100 + 100)
    assert len(view) + len(small) == 60


def test_a_resized_storage_counts_with_its_new_size():
    held = torch.zeros(100)
    with LiveBytes([held]) as live:
        made = held + 1
        made.untyped_storage().resize_(0)
        assert live.live_bytes == 400
        held.untyped_storage().resize_(4 * 300)
    assert live.live_bytes == live.peak_bytes == 1200
    resize = torch.UntypedStorage.resize_
    with LiveBytes([]):
        assert torch.UntypedStorage.resize_ is not resize
    assert torch.UntypedStorage.resize_ is resize


def test_a_seed_makes_the_same_run():
    def losses(seed: int, given: Plan) -> list[float]:
        trainer = Trainer(SMALL, given, 0, 1, CPU, seed)
        return [trainer.step() for _ in range(3)]

    assert losses(5, plan()) == losses(5, plan())
    assert losses(5, plan()) != losses(6, plan())
