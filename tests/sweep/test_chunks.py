"""Analytic rows of models with several kinds of layers, whose pipelines have chunks that differ: as the engine."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.step import simulate
from sim.specs.catalog import models
from sim.sweep.evaluate import Evaluate
from sim.sweep.grid import Grid
from sim.sweep.outcome import OK
from sim.sweep.sections import changes
from sim.tuner.chunks import Stacks, stack
from tests.full import full
from tests.sweep.conftest import BASE

LONG_ENCODER = {"model.seq": [128], "model.encoder_seq": [1024]}
EXPERTS = {"plan.ep": [4]}
OFFLOADED = {
    "plan.offload": [{"optimizer": 0.5, "activations": 0.5}],
    "plan.schedule": ["1f1b", "gpipe", "interleaved"],
}
AXES = {
    "plan.schedule": ["1f1b", "gpipe", "zb-h1", "zb-h2", "interleaved", "looped-bfs"],
    "plan.tp": [1, 2],
    "plan.pp": [2, 4, 8],
    "plan.virtual_stages": [1, 2, 3],
    "plan.global_batch": [16, 32, 128, 512],
    "plan.zero": [0, 1, 2, 3],
    "plan.recompute": ["none", "full"],
}
CASES = {
    "t5": ("t5-base", {}),
    "t5, a long encoder": ("t5-base", LONG_ENCODER),
    "t5, offloaded": ("t5-base", OFFLOADED),
    "t5, torch's updates": ("t5-base", {"plan.framework": ["torch"]}),
    "dense, then experts": ("deepseek-v2", EXPERTS),
    "hybrid": ("nemotron-3-nano", EXPERTS),
}


@cache
def swept(case):
    """Return a grid, and what becomes of all that it has."""
    name, further = CASES[case]
    grid = Grid(**BASE | {"model": name}, axes=AXES | further)
    return grid, Evaluate(grid).outcome(0, grid.size)


@pytest.mark.slow
@pytest.mark.parametrize("case", [*list(CASES)[:-1], full("hybrid")])
@given(st.data())
def test_agree_with_the_engine(case, data):
    grid, found = swept(case)
    number = data.draw(st.sampled_from(np.flatnonzero(found.outcome == OK).tolist()))
    columns, sections = grid.numbering.columns(number, number + 1), Evaluate(grid).sections
    model, cluster, plan = (
        sections[name].at(changes({p: c for p, c in columns.items() if p.startswith(name)}, 0))
        for name in ("model", "cluster", "plan")
    )
    step = simulate(model, cluster, plan)
    assert found.numbers["step_time_s"][number] == pytest.approx(step.step_time_s, rel=0.01)
    assert found.numbers["peak_memory_bytes"][number] == pytest.approx(step.peak_memory_bytes, rel=1e-6)


def test_chunks_of_a_stack():
    """Twelve layers of an encoder, then twelve of a decoder."""
    one = stack(models["t5-base"], 4, 2)
    assert one.chunks[:, one.of_stage].tolist() == [[3] * 4 + [0] * 4, [0] * 4 + [3] * 4]
    assert one.ranks[:, one.of_rank].tolist() == [[3] * 4] * 2
    assert not one.equal
    assert stack(models["t5-base"], 1, 1).equal


def test_stacks_of_rows_stand_in_one_array():
    model, pp = np.array([0, 1, 0]), np.array([2, 3, 4])
    stacks = Stacks.of([models["t5-base"], models["t5-large"]], model, pp, np.ones(3, dtype=np.int64))
    layers = stacks.layers()
    assert stacks.uneven.all()
    for row, (k, ranks) in enumerate(zip(model, pp, strict=True)):
        one = stack((models["t5-base"], models["t5-large"])[k], int(ranks), 1)
        for kind in range(2):
            assert layers[f"layers_{kind}"][row, one.of_stage, 0].sum() == (12, 24)[k]
            assert layers[f"rank_layers_{kind}"][row, 0, one.of_rank].sum() == (12, 24)[k]
    kept = stacks.of_rows(np.array([1]))
    assert kept.every == [stacks.every[stacks.which[1]]]
