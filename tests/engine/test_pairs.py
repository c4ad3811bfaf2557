"""Fused pairs of DualPipe: collectives of one half run beside the other, and only what is waited for is charged."""

import numpy as np
import pytest

from sim.costs.run_level import RunLevel, RunLevelSet
from sim.engine.assembly import IN_TURN
from sim.engine.step import simulate
from sim.schedules import Kind
from sim.specs import Cluster, Offload, Plan
from sim.specs.catalog import models

NODES = Cluster.of("h100-sxm-80gb", nodes=8)
BARE = RunLevelSet.bare(RunLevel())
INSIDE = ("tp", "cp", "ep", "pp")


def both(model, **given):
    """Return the step by the path engine, which runs both halves in turn, and by the event engine."""
    return [simulate(models[model], NODES, Plan(pp=4, **given), e, BARE) for e in ("path", "events")]


@pytest.mark.parametrize("order", [{"schedule": "dualpipe"}, {"schedule": "dualpipev", "virtual_stages": 2}])
@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("llama3-8b", {"tp": 4}), ("llama3-8b", {"tp": 4, "zero": 3}), ("llama3-8b", {"tp": 4, "cp": 2, "zero": 1}),
        ("llama3-8b", {"tp": 4, "recompute": "full"}), ("llama3-8b", {"tp": 4, "offload": Offload(activations=0.2)}),
        ("mixtral-8x7b", {"ep": 8}),
    ],
)  # fmt: skip
def test_what_runs_beside_the_other_half_is_not_charged(order, name, given):
    """Compute is what its kernels take, and at least half of the collectives are hidden."""
    path, events = both(name, global_batch=256, **given, **order)
    compute, exposed = events.breakdown_s["compute"], {t: events.breakdown_s[t] for t in INSIDE[:3]}
    assert compute == pytest.approx(path.breakdown_s["compute"], rel=1e-5)
    assert sum(events.breakdown_s.values()) == pytest.approx(events.step_time_s)
    assert min(events.breakdown_s.values()) >= 0
    for term, seconds in exposed.items():
        whole = path.breakdown_s[term]
        assert seconds < 0.5 * whole if whole else seconds == 0


def test_pairs_of_no_collectives_hide_none():
    path, events = both("llama3-8b", global_batch=256, schedule="dualpipe")
    assert [events.breakdown_s[t] for t in INSIDE[:3]] == [path.breakdown_s[t] for t in INSIDE[:3]] == [0, 0, 0]


def test_a_pair_waits_for_the_collectives_of_its_last_layer():
    """Layer by layer both halves hide: of the last, a backward's, nothing is left to run beside."""
    step = both("llama3-8b", global_batch=64, tp=4, schedule="dualpipe")[1]
    order, rank = step.timeline.schedule, step.timeline.decides()
    forward, backward = (float(np.ravel(step.costs[n])[0]) for n in ("forward_tp", "input_tp"))
    pairs = len(order.fused[rank])
    alone = sum(a.kind in (Kind.B, Kind.I) for a in order.actions[rank]) - pairs
    exposed = pairs * backward / 8 + alone * (forward + backward)
    assert step.breakdown_s["tp"] == pytest.approx(exposed, rel=0.05)  # embedding and head have some too


def test_assumptions_say_that_the_path_runs_both_halves_in_turn():
    path, events = both("llama3-8b", global_batch=256, tp=4, schedule="dualpipe")
    flushed, _ = both("llama3-8b", global_batch=256, tp=4)
    assert [IN_TURN in step.assumptions for step in (path, events, flushed)] == [True, False, False]
