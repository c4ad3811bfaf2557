"""What a serial run of delayed updates computes, against updates written out by hand."""

from dataclasses import replace

import pytest
import torch

from calibration.execute.delayed import serial_losses
from calibration.kernels.gpt import SmallGpt
from tests.calibration.execute.cases import SMALL, plan

MODEL = replace(SMALL, tied_embeddings=False)
BATCH = torch.randint(MODEL.vocab, (4, MODEL.seq + 1), generator=torch.Generator().manual_seed(0))


def losses(name: str, microbatches: int) -> list[float]:
    given = plan(pp=2, schedule=name, global_batch=4, micro_batch=1)
    return serial_losses(MODEL, given, BATCH, microbatches, seed=0)


def test_the_delay_of_one_update_by_hand():
    """2BW: two groups with the first weights; the third with those that the first group has updated."""
    module = SmallGpt(MODEL, 0)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    first = [module.loss(row[None, :-1], row[None, 1:]) for row in BATCH]
    (sum(first) / 4).backward()
    optimizer.step()
    second = [module.loss(row[None, :-1], row[None, 1:]) for row in BATCH]
    wanted = [float(x.detach()) for x in [*first, *first, *second]]
    assert losses("2bw", 12) == pytest.approx(wanted, rel=1e-5)


def test_pipedream_is_not_2bw():
    assert losses("pipedream", 4)[0] == losses("2bw", 4)[0]
    assert losses("pipedream", 4)[2:] != pytest.approx(losses("2bw", 4)[2:], rel=1e-5)


def test_the_last_stage_uses_the_newest_weights_and_the_first_older_ones():
    """Two stages: after one update the second microbatch still meets the first weights of the first stage."""
    module = SmallGpt(MODEL, 0)
    own = [*module.blocks[1].parameters(), *module.norm.parameters(), *module.head.parameters()]
    module.loss(BATCH[:1, :-1], BATCH[:1, 1:]).backward()
    torch.optim.Adam(own, lr=1e-3).step()
    wanted = float(module.loss(BATCH[1:2, :-1], BATCH[1:2, 1:]).detach())
    assert losses("pipedream", 2)[1] == pytest.approx(wanted, rel=1e-6)
