"""What an update waits for host memory and the room that it takes, as a rank gets more layers."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.costs import inputs, offload, stage
from sim.costs.algebra import Interpreted
from sim.costs.layers.structure import Structure
from sim.costs.profile import load_profile
from sim.costs.run_level import run_level, symbol_values
from sim.specs import Cluster, Offload, Plan
from sim.specs.catalog import models

NODES = Cluster.of("h100-sxm-80gb", nodes=2)
RANK = ("first", "middle", "last", "only")
UPDATE = ("optimizer_offload", "staged_update", "update_pieces", "update_h2d", "update_d2h", "moved_optimizer")
SHARES = st.floats(0.0, 1.0)
MODELS = ("llama3-8b", "deepseek-v2")


@cache
def update_model(name):
    structure = Structure.of(models[name])
    updates = {n: e for n, e in offload.parts(structure).items() if n.startswith((*UPDATE, "staged_bytes"))}
    own = {where: stage.states(structure)[f"optimizer_{where}"] for where in RANK}
    late = stage.late_updates(structure, own)
    return Interpreted(updates | {f"optimizer_{where}": own[where] + late[where] for where in RANK})


def updates(name, layers, moved, host_bytes_per_s=50.4e9, cluster=NODES, **plan):
    """Return what an update of a rank takes; layers: how many of each kind, one array a kind."""
    model = models[name]
    placed = Plan(**{"global_batch": 16, "offload": moved} | plan).on(model, cluster)
    values = inputs.model_values(model) | inputs.cluster_values(cluster, load_profile(cluster.profile))
    values |= symbol_values(run_level().parameters) | inputs.plan_values(model, placed, cluster)
    values |= {f"{of}layers_{k}": n for k, n in enumerate(layers) for of in ("", "rank_")} | {
        "host_bytes_per_s": host_bytes_per_s
    }
    return update_model(name)(values)


def test_states_of_an_embedding_come_and_go_in_pieces_as_large_as_a_layers():
    """A Llama 3 8B embedding has 2.4 times a layer's states: in and out beside nothing is a layer's part, not half."""
    out = updates("llama3-8b", [np.arange(1, 9)], Offload(optimizer=1.0))
    model = models["llama3-8b"]
    embedding, layer = model.embedding_parameters, next(iter(model.blocks)).parameters
    n, update = np.arange(1, 9), out["optimizer_first"]
    pieces = n + embedding / layer
    assert out["update_pieces_first"] == pytest.approx(pieces)
    alone, copy = 2 * 12 * layer / 50.4e9, 12 * pieces * layer / 50.4e9
    slow = run_level().parameters.overlap_slowdown
    beside = (1 + 2 * slow) * update  # both ways at once
    copied = beside + copy - beside / (1 + slow)
    assert out["optimizer_offload_first"] == pytest.approx(alone + (1 - 1 / pieces) * (copied - update))
    assert out["staged_update_first"] == pytest.approx(12 * np.minimum(n * layer + embedding, 3 * layer))


def test_an_update_that_waits_for_its_host_hides_copies_as_long_as_it_takes():
    """They hid behind its kernels alone, a third of it: faster ones made a step longer."""
    measured = Cluster.of("h200-sxm-141gb", nodes=2)
    given = {"cluster": measured, "framework": "torch", "zero": 3}
    out = updates("gpt2", [np.arange(1, 9)], Offload(optimizer=1.0), 1e10, **given)
    copy, update, pieces = (out[f"{n}_middle"] for n in ("update_h2d", "optimizer", "update_pieces"))
    assert np.all(copy < update)
    slow = run_level().parameters.overlap_slowdown
    slowed = copy * (1 + slow) * 2 * slow / (1 + 2 * slow)
    assert out["optimizer_offload_middle"] == pytest.approx(2 * copy / pieces + (1 - 1 / pieces) * slowed)


def test_room_beside_passes_is_that_of_the_largest_layers():
    """Two dense layers of DeepSeek-V2 and one of experts: two layers' room for weights is for all but a dense one."""
    moved = Offload(weights=1.0)
    dense, expert = (
        updates("deepseek-v2", [np.array([float(k == n)]) for n in range(2)], moved)["staged_bytes"] for k in range(2)
    )
    assert expert > 10 * dense
    several = updates("deepseek-v2", [np.arange(4.0), np.ones(4)], moved)["staged_bytes"]
    assert several == pytest.approx(np.minimum(expert + np.arange(4) * dense, 2 * expert))


@pytest.mark.parametrize("name", MODELS)
@given(
    shares=st.tuples(st.floats(0.01, 1.0), SHARES, SHARES, SHARES),
    zero=st.integers(0, 3),
    precision=st.sampled_from(["bf16", "fp32"]),
    framework=st.sampled_from(["megatron", "torch"]),
    rate=st.floats(1e9, 1e13),
    kind=st.integers(0, 1),
    others=st.integers(0, 3),
)
def test_more_layers_never_wait_less_nor_take_less_room(name, shares, zero, precision, framework, rate, kind, others):
    kinds = len(models[name].blocks)
    layers = [np.arange(9) if k == kind % kinds else np.full(9, others) for k in range(kinds)]
    moved = Offload(optimizer=shares[0], weights=shares[1], gradients=shares[2], activations=shares[3])
    out = updates(name, layers, moved, rate, zero=zero, precision=precision, framework=framework)
    grown = [out["staged_bytes"]]
    for where in RANK:
        wait, update, room = (out[f"{n}_{where}"] for n in ("optimizer_offload", "optimizer", "staged_update"))
        grown += [wait + update, room]
    for found in (each + np.zeros(9) for each in grown):
        assert np.all(np.diff(found) >= -1e-9 * found[1:])
