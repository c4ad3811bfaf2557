"""Multi-head latent attention on tensor-parallel ranks: who makes the latents, what crosses the group."""

from dataclasses import replace

import pytest

from sim.costs import inputs, memory
from sim.costs.algebra import Interpreted
from sim.costs.layers.block import block
from sim.costs.layers.ops import tp_group
from sim.costs.layers.structure import Structure
from sim.costs.profile import load_profile
from sim.costs.run_level import RunLevel, symbol_values
from sim.specs import Cluster, Plan
from sim.specs.catalog import models

V3 = models["deepseek-v3"]
LITE = replace(V3, q_lora_rank=0)
TP, BYTES = 4, 2
WIDE, QUERY, KEY_VALUE, ROTARY = 7_168, 1_536, 512, 64
TOKENS = 4_096


def values(model, **given):
    cluster = Cluster.of("h100-sxm-80gb", nodes=8)
    placed = Plan(**{"global_batch": 1024, "tp": TP, "ep": 8} | given).on(model, cluster)
    assert model.seq == TOKENS
    return (
        inputs.model_values(model) | inputs.cluster_values(cluster, load_profile("h100-sxm-80gb"))
        | inputs.plan_values(model, placed, cluster) | symbol_values(RunLevel())
    )  # fmt: skip


def operations(model, quantity, **given):
    """Return seconds, or bytes, of the operations of the model's first layer by name."""
    held = {op.name: getattr(op, quantity) for op in block(Structure.of(model).kinds[0], 0)}
    return {name: float(x) for name, x in Interpreted(held)(values(model, **given)).items()}


def collective(kind, columns, **given):
    size = BYTES * TOKENS * columns
    return float(Interpreted({"x": getattr(tp_group, kind)(size)})(values(V3, **given))["x"])


@pytest.mark.parametrize(("model", "read"), [(V3, QUERY), (LITE, WIDE)])
def test_latents_are_gathered_where_each_rank_makes_those_of_its_own_tokens(model, read):
    """Query and key-value latents and the rotary key, 2,112 columns in place of 7,168; without a query latent its
    product reads the hidden state."""
    found = operations(model, "seconds", sequence_parallel=True)
    gathers = {n: collective("all_gather", n) for n in (read, KEY_VALUE, ROTARY, WIDE)}
    latents = [gathers[read], gathers[KEY_VALUE], gathers[ROTARY]]
    assert found["attention reduce"] == pytest.approx(gathers[WIDE] + sum(latents))
    assert found["attention gradient gather"] == pytest.approx(gathers[WIDE])
    back = [found[f"{n} gradient reduce"] for n in ("query up", "key-value up", "rotary key")]
    assert back == pytest.approx(latents)
    again = [found[f"{n} input gather"] for n in ("query up", "key-value up")]
    assert again == pytest.approx(latents[:2])


def test_all_latents_are_made_everywhere_from_gathered_hidden_states_in_torchtitan():
    given = {"sequence_parallel": True, "framework": "torch"}
    found = operations(V3, "seconds", **given)
    assert found["attention reduce"] == pytest.approx(2 * collective("all_gather", WIDE, **given))
    assert found["query up input gather"] == found["key-value up input gather"] == 0
    back = [found[f"{n} gradient reduce"] for n in ("query up", "key-value up", "rotary key")]
    assert back == pytest.approx([collective("all_reduce", n, **given) for n in (QUERY, KEY_VALUE, ROTARY)])


def test_gradients_of_latents_are_summed_without_sequence_parallelism():
    given = {"sequence_parallel": False}
    found = operations(V3, "seconds", **given)
    assert found["attention reduce"] == pytest.approx(collective("all_reduce", WIDE, **given))
    assert found["attention gradient gather"] == found["query up input gather"] == 0
    assert found["query up gradient reduce"] == pytest.approx(collective("all_reduce", QUERY, **given))


@pytest.mark.parametrize(
    ("given", "ranks"),
    [({"sequence_parallel": True}, TP), ({"sequence_parallel": False}, 1), ({"framework": "torch"}, 1)],
)
def test_latents_have_norms_of_their_own(given, ranks):
    """x read and y written; dy and x read, dx written: of the tokens whose latents a rank makes."""
    found = operations(V3, "bytes", **given)
    for name, columns in (("query", QUERY), ("key-value", KEY_VALUE)):
        element = BYTES * TOKENS / ranks * columns
        assert found[f"{name} latent norm"] == pytest.approx(2 * element)
        assert found[f"{name} latent norm dgrad"] == pytest.approx(3 * element)
    assert "query latent norm" not in operations(LITE, "bytes", **given)


@pytest.mark.parametrize(("framework", "ranks"), [("megatron", TP), ("torch", 1)])
def test_latents_are_saved_where_they_are_made(framework, ranks):
    """Inputs and outputs of both norms; beside them queries, keys, values and context of a rank's heads."""
    mixer = Interpreted({"x": memory.saved(Structure.of(V3).kinds[0], 0, 1).mixer})
    found = mixer(values(V3, sequence_parallel=True, framework=framework))["x"]
    heads = 2 * 128 * (128 + 64) + 2 * 128 * 128
    assert found == BYTES * TOKENS * (heads / TP + 2 * (QUERY + KEY_VALUE) / ranks)
