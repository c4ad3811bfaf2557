"""Why a plan cannot run, as text."""

import sim


def test_a_refusal_names_what_is_near():
    model, cluster = sim.models["llama3-8b"], sim.Cluster.of("h100-sxm-80gb")
    assert "nearest 2 or 4" in sim.report.refusal(model, cluster, sim.Plan(tp=3, global_batch=8))
    assert sim.report.refusal(model, cluster, sim.Plan(tp=4, global_batch=8)) == ""
