"""Traced networks: the same numbers as the built-in layers where both know a network, and the rules of their own."""

import time
from dataclasses import replace

import numpy as np
import pytest

from sim.costs.inputs import cluster_values
from sim.costs.layers.structure import Structure
from sim.costs.profile import load_profile, profile_text
from sim.costs.run_level import RunLevel, RunLevelSet
from sim.engine.closed_form import closed_form
from sim.engine.placed import stage_costs
from sim.engine.step import simulate
from sim.specs import Cluster, InputError, Model, Plan
from sim.specs.table import Layer, LayerTable, Op
from tests.costs.hosts import hostless, write
from tests.pace import slower
from tests.traced import GPT, table

NODE = Cluster.of("a100-sxm-80gb", nodes=1)
PLAN = Plan(global_batch=64, micro_batch=2, pp=4, zero=1)


@pytest.fixture
def fast_host(tmp_path):
    """A node whose devices wait for no host."""
    return replace(NODE, profile=hostless(NODE.device, tmp_path / "hostless"))


def both(name, plan, attention="flash", node=NODE):
    return simulate(Model.from_table(table(name)), node, plan), simulate(replace(GPT, attention=attention), node, plan)


@pytest.mark.slow
def test_parameters_and_flop_are_the_built_in_ones():
    traced = Model.from_table(table("gpt"))
    assert traced.parameters == GPT.parameters
    assert traced.flop_per_token() == GPT.flop_per_token()
    core = sum(n * b.core_flop() for b, n in GPT.blocks.items())  # what the causal mask hides
    assert traced.flop_per_token("palm") == GPT.flop_per_token() + 3 * core
    assert Model.from_table(table("eager")).flop_per_token() == GPT.flop_per_token() + 3 * core


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("pp", [1, 4])
def test_a_flash_gpt_takes_what_the_built_in_one_takes(pp, recompute, fast_host):
    traced, known = both("gpt", PLAN.but(pp=pp, recompute=recompute), node=fast_host)
    # The module adds biases' and norms' weight gradients in kernels of their own and its loss is not fused.
    assert known.step_time_s < traced.step_time_s < 1.05 * known.step_time_s
    for part, most in (("forward_compute", 0.001), ("input_compute", 0.03), ("weight_compute", 0.1)):
        assert np.all(np.abs(traced.costs[part] / known.costs[part] - 1) < most)
    for here, there in zip(traced.memory, known.memory, strict=True):
        mine, others = here.composition(), there.composition()
        for part in ("parameters", "gradients", "optimizer", "communication"):
            assert mine[part] == pytest.approx(others[part], rel=1e-12)
        assert mine["activations"] == pytest.approx(others["activations"], rel=1e-3)
    assert traced.costs["send"] == pytest.approx(known.costs["send"], rel=1e-12)
    assert traced.hfu / traced.mfu == pytest.approx(known.hfu / known.mfu)


def test_an_eager_gpt_keeps_what_the_built_in_one_keeps(fast_host):
    traced, known = both("eager", PLAN, "eager", fast_host)
    assert np.all(traced.costs["saved_bytes"] == known.costs["saved_bytes"])
    # A table does not say in which order gradients are freed: the largest it can be.
    ratio = traced.costs["backward_temporary_bytes"] / known.costs["backward_temporary_bytes"]
    assert np.all((ratio >= 1) & (ratio < 1.5))
    # The module scales the scores in a kernel of its own, forward and backward.
    assert known.step_time_s < traced.step_time_s < 1.15 * known.step_time_s


def test_equal_layers_share_one_kind_and_a_large_network_is_quick():
    small = table("gpt")
    layers = [replace(x, count=96) if x.role is None else x for x in small.layers]
    deep = LayerTable(name="deep", dtype="bfloat16", seq=GPT.seq, batches=[1, 2, 3], layers=layers)
    begin = time.process_time()
    model = Model.from_table(deep)
    step = simulate(model, Cluster.of("h100-sxm-80gb", nodes=1), Plan(pp=8, global_batch=64))
    assert time.process_time() - begin < 10 * slower()  # a second, on an idle machine
    assert (len(model.blocks), model.layers) == (1, 96)
    assert step.step_time_s > 0


def test_kernels_that_a_table_states_itself_are_told_to_be_ignored():
    plan = Plan(global_batch=8, cross_entropy="fused", recurrent_kernel="fused")
    own = Plan(global_batch=8)
    model = Model.from_table(table("gpt"))
    ignored = [text for text in plan.assumed_of(model) if "is ignored" in text]
    assert [text.split(" ")[0] for text in ignored] == ["plan.recurrent_kernel", "plan.cross_entropy"]
    assert set(ignored) <= set(simulate(model, NODE, plan).assumptions)
    assert own.assumed_of(model) == own.assumptions
    assert [text for text in plan.assumed_of(GPT) if "ignored" in text] == [
        "plan.recurrent_kernel = fused is ignored: no layer is recurrent"
    ]


@pytest.mark.slow
def test_resnet_runs_on_one_device_and_in_a_pipeline():
    model = Model.from_table(table("resnet-50"))
    assert (model.layers, model.tokens_per_sample, model.parameters) == (16, 1, 25_557_032)
    assert len(model.blocks) == 8
    assert any("counts as one token" in text for text in model.assumptions)
    alone = simulate(model, NODE, Plan(global_batch=256, micro_batch=32))
    piped = simulate(model, NODE, Plan(global_batch=256, micro_batch=8, pp=4, schedule="zb-h1"), "events")
    assert alone.tokens_per_step == 256
    # 3.8e9 multiply-adds (arXiv 1512.03385, table 1); a stride in the 3 x 3 and not the 1 x 1 convolution adds 6 %.
    assert model.flop_per_sample() == pytest.approx(3 * 2 * 3.8e9, rel=0.1)
    largest = max(layer.boundary_bytes[1] for layer in table("resnet-50").layers)
    assert piped.costs["boundary_buffer_bytes"] == 2 * 8 * largest


@pytest.mark.slow
def test_closed_form_memory_is_the_engine_s():
    model, plan = Model.from_table(table("bert")), Plan(global_batch=64, micro_batch=4, zero=2, recompute="full")
    step = simulate(model, NODE, plan)
    costs = stage_costs(model, NODE, plan.on(model, NODE), load_profile("a100-sxm-80gb"))
    assert costs["saved_bytes"] == 4 * 4 * table("bert").layers[0].boundary_bytes[1]
    assert step.peak_memory_bytes > costs["saved_bytes"]
    assert closed_form(Structure.of(model), "1f1b").outputs == ("step_time_s", "peak_memory_bytes")


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"tp": 2}, "plan.tp"),
        ({"cp": 2}, "plan.cp"),
        ({"ep": 2}, "plan.ep"),
        ({"etp": 2}, "plan.etp"),
        ({"recompute": "selective"}, "plan.recompute"),
    ],
)
def test_layers_stay_whole(change, path):
    with pytest.raises(InputError) as caught:
        simulate(Model.from_table(table("bert")), NODE, Plan(global_batch=64, **change))
    assert caught.value.path == path
    assert "traced network" in caught.value.allowed


@pytest.mark.slow
def test_layers_that_share_parameters_are_not_spread():
    model = Model.from_table(table("t5"))  # the decoder's embedding is the encoder's
    assert simulate(model, NODE, Plan(global_batch=64)).step_time_s > 0
    with pytest.raises(InputError, match="share parameters"):
        simulate(model, NODE, Plan(global_batch=64, pp=2))


def kernel(**sizes):
    return Op(**{"kind": "gemm" if "m" in sizes else "elementwise", "count": 3, **sizes})


def one(forward, **given):
    fixed = {"parameters": 10, "trainable_parameters": 10, "saved_bytes": (0, 100), "boundary_bytes": (0, 40)}
    return Layer(**{"name": "x", "temporary_bytes": (0, 0), "forward": forward} | fixed | given)


def costs_of(*layers, batch=1):
    made = LayerTable(name="t", dtype="bfloat16", batches=[1, 2, 3], layers=list(layers))
    model, plan = Model.from_table(made), Plan(global_batch=64, micro_batch=batch)
    return stage_costs(model, NODE, plan.on(model, NODE), load_profile("a100-sxm-80gb"))


@pytest.mark.slow
def test_a_count_multiplies_time_and_launches():
    many = one([kernel(bytes=(0, 10**9))])
    single = one([Op(kind="elementwise", bytes=(0, 10**9))])
    assert costs_of(many)["forward_compute"] == pytest.approx(3 * costs_of(single)["forward_compute"], rel=1e-12)
    idle = one([kernel(bytes=(1, 0))] * 1000)
    host = costs_of(idle)["forward_host"] + costs_of(idle)["forward_compute"]
    assert host >= 3000 * 1e-7


def test_empty_kernels_take_no_time():
    nothing = {"n": (4, 0), "k": (4, 0), "batch": (1, 0)}
    assert costs_of(one([kernel(m=(0, 0), **nothing)]))["forward_compute"] == 0
    assert np.isfinite(costs_of(one([kernel(m=(0, 1), **nothing)]))["forward_compute"])


def test_full_recompute_keeps_the_boundary_in_front():
    layers = [one([], boundary_bytes=(0, 7), role="first"), one([], count=2)]
    made = LayerTable(name="t", dtype="bfloat16", batches=[1, 2, 3], layers=layers)
    model = Model.from_table(made)
    plan = Plan(global_batch=64, micro_batch=2, recompute="full")
    costs = stage_costs(model, NODE, plan.on(model, NODE), load_profile("a100-sxm-80gb"))
    assert costs["saved_bytes"] == 2 * (7 + 40)  # another front makes another kind
    assert costs["backward_temporary_bytes"] == 2 * max(100 - 7, 100 - 40) + 2 * 40


def with_convolutions(folder, factor):
    """The node with a profile whose convolutions are `factor` times as fast as its products."""
    held = load_profile("a100-sxm-80gb").with_issue_of(None)
    models = [m for m in held.models if m.op == "gemm"]
    more = [
        replace(m, op="convolution", parameters=m.parameters | {"rate": factor * m.parameters["rate"]}) for m in models
    ]
    folder.mkdir()
    (folder / "profile.json").write_text(profile_text(replace(held, models=[*held.models, *more])))
    return Cluster.of("a100-sxm-80gb", nodes=1, profile=str(folder))


def test_convolutions_take_the_time_of_their_own_kernel_or_of_products(tmp_path, fast_host):
    resnet, gpt = Model.from_table(table("resnet-50")), Model.from_table(table("gpt"))
    plan = Plan(global_batch=256, micro_batch=32)
    alone = simulate(resnet, fast_host, plan)
    same, faster = (with_convolutions(tmp_path / str(f), f) for f in (1.0, 2.0))
    assert simulate(resnet, same, plan).step_time_s == alone.step_time_s
    assert simulate(resnet, faster, plan).step_time_s < 0.9 * alone.step_time_s
    assert simulate(gpt, faster, PLAN).step_time_s == simulate(gpt, fast_host, PLAN).step_time_s
    launched = [op for layer in table("resnet-50").each() for op in layer.forward for _ in range(op.count)]
    assert [op.kind for op in launched].count("convolution") == 17
    products = [op for op in launched if op.kind == "gemm"]
    assert len(products) == 36 + 1  # convolutions that see one place at a time, and the head
    assert (products[-1].n, products[-1].k) == ((1000, 0), (2048, 0))


def first_convolution(groups=1, channels=3, few=8.0):
    """Seconds of a convolution of 32 outputs and 3 x 3 places, by a profile that knows few channels (or does not)."""
    held = load_profile("a100-sxm-80gb")
    known = {"few": few, "few_k0": 72.0, "few_t0": 1e-3} if few else {}
    plain = {"m0": 0.0, "n0": 0.0, "k0": 0.0, "waves": 0.0, "p": 1.0, "bandwidth": 1e17, "t0": 0.0}
    models = [
        replace(m, op="convolution", parameters=m.parameters | plain | known) for m in held.models if m.op == "gemm"
    ]
    sizes = {"m": (0, 10**8), "n": (32, 0), "k": (27, 0), "batch": (groups, 0), "channels": channels}
    made = LayerTable(name="t", dtype="bfloat16", batches=[1, 2, 3], layers=[one([Op(kind="convolution", **sizes)])])
    model, plan = Model.from_table(made), Plan(global_batch=64)
    profile = replace(held, models=[*held.models, *models])
    costs = stage_costs(model, NODE, plan.on(model, NODE), profile, RunLevelSet.bare(RunLevel()))
    return costs["forward_compute"].item()


def test_few_channels_are_padded_and_slow_where_the_profile_knows_it():
    plain = first_convolution(channels=None)
    # 3 channels count as 8, 32 outputs as 64, and of the 8 x 9 elements that a result sums up 72 reach half the rate.
    assert first_convolution() == pytest.approx(8.0 * (8 / 3) * 2 * 2 * plain + 1e-3, rel=1e-3)
    assert first_convolution(channels=8) == first_convolution(few=None) == plain
    assert first_convolution(groups=2, channels=3) == first_convolution(groups=2, channels=None)


def issued_on_host(tmp_path, *layers, **plan):
    """What issuing adds to the forward and the backward pass of a chunk, by a profile of 2 us and 5 us an operation."""
    folder = tmp_path / "cpu"
    name = str(folder) if folder.exists() else write(folder)
    profile = replace(load_profile(name), pointwise_issue_s=2e-6, product_issue_s=5e-6, convolution_issue_s=9e-6)
    cores = Cluster.of("cpu", profile=name)
    made = LayerTable(name="t", dtype="float32", batches=[1, 2, 3], layers=list(layers))
    model = Model.from_table(made)
    placed = Plan(global_batch=8, **plan).suited(cores).on(model, cores)
    return stage_costs(model, cores, placed, profile, RunLevelSet.bare(RunLevel()))


SIZE = (0, 10)
WORK = [kernel(m=SIZE, n=SIZE, k=SIZE, batch=(1, 0)), kernel(bytes=SIZE)]


def test_a_host_issues_every_operation_of_a_table(tmp_path):
    costs = issued_on_host(tmp_path, one(WORK, backward_input=WORK, backward_weight=WORK[:1]))
    assert costs["forward_host"] == pytest.approx(3 * 5e-6 + 3 * 2e-6)
    assert costs["backward_host"] == pytest.approx(6 * 5e-6 + 3 * 2e-6)
    again = issued_on_host(tmp_path, one(WORK, backward_input=WORK), recompute="full")
    assert again["backward_host"] == pytest.approx(2 * again["forward_host"])


def test_convolutions_have_an_issue_of_their_own(tmp_path):
    costs = issued_on_host(tmp_path, one([kernel(kind="convolution", m=SIZE, n=SIZE, k=SIZE, batch=(1, 0))]))
    assert costs["forward_host"] == pytest.approx(3 * 9e-6)


def test_a_host_issues_the_operations_of_ends_too(tmp_path):
    ends = [one(WORK, role="first"), one([]), one(WORK[1:], role="last")]
    with_ends = issued_on_host(tmp_path, *ends)
    assert with_ends["embedding_forward_compute"] > 3 * 7e-6
    assert with_ends["head_forward_compute"] > 3 * 2e-6


def test_without_samples_an_operation_is_issued_as_those_of_a_layer(tmp_path):
    cores = Cluster.of("cpu", profile=write(tmp_path / "cpu"))
    profile = replace(load_profile(str(tmp_path / "cpu")), issue_s=31e-6)
    values = cluster_values(cores, profile)
    kinds = ("pointwise", "product", "convolution")
    assert [values[f"{kind}_issue_s"] for kind in kinds] == pytest.approx([1e-6] * 3)


def test_what_convolutions_copy_counts_on_a_host_where_it_is_most(tmp_path):
    small = one(WORK, saved_bytes=(0, 1000), temporary_bytes=(0, 10), boundary_bytes=(0, 0))
    large = replace(small, forward_bytes=(0, 5000))
    kept = replace(small, forward_bytes=(0, 1005))
    held = [issued_on_host(tmp_path, layer)["backward_temporary_bytes"] for layer in (small, kept, large)]
    assert held[0] == held[1] == pytest.approx(20)
    assert held[2] == pytest.approx(4000)
    assert costs_of(large)["backward_temporary_bytes"] == costs_of(small)["backward_temporary_bytes"]
