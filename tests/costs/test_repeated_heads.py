"""Weights of keys and values where there are more tensor-parallel ranks than key-value heads."""

import pytest

from sim.costs import inputs, memory
from sim.costs.algebra import Interpreted
from sim.specs import Cluster, Model, Plan


@pytest.mark.parametrize("tp", [1, 2, 8, 16])
@pytest.mark.parametrize("biased", [False, True])
def test_every_rank_has_a_head_of_its_own_or_the_same_as_others(tp, biased):
    sizes = {"layers": 4, "hidden": 4096, "heads": 32, "kv_heads": 2, "vocab": 32_000, "seq": 2048, "ffn": 11_008}
    model = Model(**sizes, norm="rmsnorm", gated_mlp=True, positions="rope", bias=False, qkv_bias=biased)
    cluster = Cluster.of("h100-sxm-80gb", nodes=2)
    placed = Plan(tp=tp, global_batch=16, micro_batch=1).on(model, cluster)
    values = inputs.model_values(model) | inputs.plan_values(model, placed, cluster) | memory.parameter_symbols(model)
    found = Interpreted({"parameters": memory.layer_parameters(0)})(values)["parameters"]
    query, key_value = 4096 // tp, 2 * 128 * max(2 / tp, 1)
    products = (4096 + biased) * (query + key_value) + query * 4096 + 3 * 4096 * 11_008 / tp
    assert found == products + 2 * 4096
