"""What a move costs a predicted job."""

import pytest

from sim.checkpointing import times
from sim.cluster.moves import switch_s
from sim.engine.step import simulate
from sim.specs import Checkpointing, Cluster, Plan
from sim.specs.catalog import models


def test_a_state_is_written_and_read():
    step = simulate(models["bert-large"], Cluster.of("a100-sxm-80gb", nodes=1), Plan(global_batch=64))
    slow, usual = Checkpointing(storage="hdd"), times(step, Checkpointing())
    assert switch_s(step) == pytest.approx(usual.persist_s + usual.reload_s)
    assert switch_s(step, slow) > 2 * switch_s(step, Checkpointing(storage="nvme")) > 0
