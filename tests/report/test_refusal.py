"""Why a plan cannot run, as text."""

import sim


def test_a_refusal_names_what_is_near():
    model, cluster = sim.models["llama3-8b"], sim.Cluster.of("h100-sxm-80gb")
    assert "nearest 2 or 4" in sim.report.refusal(model, cluster, sim.Plan(tp=3, global_batch=8))
    assert sim.report.refusal(model, cluster, sim.Plan(tp=4, global_batch=8)) == ""


def test_a_refusal_names_what_a_target_cannot_express():
    model, cluster = sim.models["llama3-8b"], sim.Cluster.of("h100-sxm-80gb")
    plan = sim.Plan(pp=2, virtual_stages=2, global_batch=8)
    assert sim.report.refusal(model, cluster, plan, "megatron") == ""
    assert sim.report.refusal(model, cluster, plan, "deepspeed").startswith("plan.schedule: got 'interleaved'")
    assert sim.report.refusal(model, cluster, plan, "jax").startswith("target: got 'jax'")
    assert "nearest 2 or 4" in sim.report.refusal(model, cluster, plan.but(tp=3), "megatron")
