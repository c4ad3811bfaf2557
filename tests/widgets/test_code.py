"""The panel's state as a program of one's own."""

import runpy

import sim
from sim.specs import Cluster, Plan
from sim.widgets.code import code_of


def test_code_of_a_mixed_cluster_computes_the_same(tmp_path):
    cluster = Cluster.of(groups=[{"device": "h100-sxm-80gb"}, {"device": "a100-sxm-80gb"}], multipliers={"clock": 1.2})
    model, plan, path = sim.models["gpt2-xl"], Plan(global_batch=64, zero=1), tmp_path / "again.py"
    path.write_text(code_of(model, cluster, plan))
    assert runpy.run_path(str(path))["run"].step_time_s == sim.simulate(model, cluster, plan).step_time_s
