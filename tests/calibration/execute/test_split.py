"""What PyTorch's tensor parallelism keeps and sends, on a rank of a fake process group, against the simulator's law."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.testing._internal.distributed.fake_pg import FakeStore

import sim
from calibration.execute.network import Chunk
from calibration.execute.split import Split, local
from calibration.execute.traffic import Traffic
from calibration.kernels.gpt import SmallGpt
from sim.plans.traffic import Counted, traffic
from sim.specs import PlacedPlan
from tests.calibration.execute.cases import DEEP, cluster, plan, profile

RANKS = 2


@pytest.fixture(scope="module")
def group() -> Iterator[dist.ProcessGroup | None]:
    dist.init_process_group("fake", rank=1, world_size=RANKS, store=FakeStore())
    yield dist.group.WORLD
    dist.destroy_process_group()


def made(group: dist.ProcessGroup | None, sequence: bool) -> Chunk:
    split = Split.of(group, torch.device("cpu"), sequence)
    return Chunk(SmallGpt(DEEP), range(DEEP.layers), split=split)


def hidden(sequence: bool) -> Tensor:
    return torch.randn(1, DEEP.seq // (RANKS if sequence else 1), DEEP.hidden, requires_grad=True)


@pytest.mark.parametrize("sequence", [False, True])
def test_a_layer_keeps_what_the_simulator_says(group, sequence, tmp_path):
    chunk = made(group, sequence)
    own = {local(p).untyped_storage()._cdata for p in chunk.parameters()}
    kept = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = local(tensor).untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage  # held, so that no other takes its place
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        chunk.blocks["3"](hidden(sequence))
    given = plan(tp=RANKS, sequence_parallel=sequence, micro_batch=1)
    costs = sim.simulate(DEEP, cluster(profile(tmp_path / "core"), RANKS), given).costs
    assert sum(storage.nbytes() for storage in kept.values()) == costs["saved_bytes"][0] / DEEP.layers


@pytest.mark.parametrize("sequence", [False, True])
def test_a_pass_sends_what_the_simulator_says(group, sequence):
    chunk, tokens = made(group, sequence), torch.zeros(1, DEEP.seq, dtype=torch.int64)
    with chunk.split.losses(), Traffic({"tp": group}) as found:
        chunk.loss(chunk(tokens), tokens).backward()
    given = plan(tp=RANKS, sequence_parallel=sequence, global_batch=1, micro_batch=1)
    said: Counted = traffic(DEEP, PlacedPlan(plan=given, dp=1, microbatches=1))[0]
    once = {"tp all_reduce"} if sequence else set()  # partial gradients are added up at the end of the step
    assert {k: v for k, v in said.items() if k not in once} == {k: v for k, v in found.found.items() if k not in once}
    assert found.found["tp all_reduce"][0] == said["tp all_reduce"][0] - sequence


def test_parts_of_a_whole_model_are_those_that_ranks_hold(group):
    chunk, whole = made(group, True), dict(SmallGpt(DEEP).named_parameters())
    for name, parameter in chunk.named_parameters():
        assert torch.equal(chunk.split.own(whole[name], parameter), local(parameter))


def test_nothing_is_split_without_a_group():
    split = Split.of(None, torch.device("cpu"), True)
    module = SmallGpt(DEEP)
    split.apply(module)
    assert split.size == 1
    assert not any(hasattr(p, "placements") for p in module.parameters())
