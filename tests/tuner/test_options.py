"""Options of a stage: what is left out before the frontier is found changes nothing on it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.specs import Cluster, Model
from sim.tuner import options
from sim.tuner.options import Question, Techniques, _needless
from sim.tuner.stages import StageTables

EIGHTHS = tuple(i / 8 for i in range(9))
WIDE = Model(name="wide", layers=12, hidden=6144, heads=64, vocab=50_304, seq=2048)


def points(tables):
    """Return t, x, d and o of every cell of every stage, and the shares on the host behind them."""
    chain, found = tables.chain(), []
    for stage in range(chain.stages):
        for cell in chain.cells(stage, 0, (chain.devices[0] // chain.stages * (chain.stages - 1 - stage),)):
            found.append((stage, cell.layers, cell.t, cell.x, cell.d, cell.o, cell.table.share[cell.options]))
    return found


@pytest.mark.parametrize(("device", "stages"), [("l4", 2), ("l4", 1), ("a100-sxm-40gb", 4)])
def test_frontiers_are_those_of_all_options(monkeypatch, device, stages):
    asked = Question(WIDE, Cluster.of(device, nodes=1, gpus_per_node=8), 32, stages, 4)
    host = {"optimizer": EIGHTHS, "activations": EIGHTHS, "weights": (0.0, 1.0)}
    techniques = Techniques((1, 2, 4), (0, 3), ("none", "full"), (), host)
    left = StageTables(asked, techniques)
    found = points(left)
    monkeypatch.setattr(options, "_needless", lambda room, times, shares: np.zeros(room.shape[1:], dtype=bool))
    every = StageTables(asked, techniques)
    wanted = points(every)
    assert left.evaluated == every.evaluated
    assert left.tables[0].t.shape[-1] < every.tables[0].t.shape[-1] / 2
    assert len(found) == len(wanted) > 0
    for one, other in zip(found, wanted, strict=True):
        assert one[:2] == other[:2]
        for a, b in zip(one[2:], other[2:], strict=True):
            np.testing.assert_array_equal(a, b)


@given(st.integers(0, 2**32 - 1))
def test_needless_options_have_one_that_is_as_good(seed):
    draw = np.random.default_rng(seed)
    room, time = draw.integers(0, 3, (2, 2, 3, 4)), draw.integers(0, 3, (1, 2, 2, 3, 4))
    along = draw.integers(0, 3, (1, 1, 1, 3, 1))
    gone = _needless(room, [time, along, np.asarray(0.0)], 2)
    whole = np.broadcast_to(along, time.shape)
    for i, k, n in np.argwhere(gone):
        better = [
            (room[:, i, a, b] >= room[:, i, k, n]).all()
            and (time[0, :, i, a, b] <= time[0, :, i, k, n]).all()
            and (whole[0, :, i, a, b] <= whole[0, :, i, k, n]).all()
            for a in range(k + 1)
            for b in range(n + 1)
            if not gone[i, a, b]
        ]
        assert any(better)
