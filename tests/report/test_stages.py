"""Unequal stages of a plan as rows."""

import sim


def test_every_stage_is_a_row():
    kept = sim.Offload(activations=0.375)
    own = sim.StagePlan(layers=5, recompute="selective", offload=kept)
    some = sim.StagePlan(layers=4, recompute="full", recompute_layers=3)
    plan = sim.Plan(pp=3, stages=(own, some, sim.StagePlan(layers=3)), global_batch=8)
    rows = sim.report.stages(plan)
    assert [row["recomputing_layers"] for row in rows] == [5, 3, 0]
    assert [row["on_host"] for row in rows] == ["37.5 % of activations", "nothing", "nothing"]
    assert sim.report.stages(sim.Plan(global_batch=8)) == []
