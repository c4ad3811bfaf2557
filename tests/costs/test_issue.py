"""What issuing adds where a device waits for its host: recompute, checkpoints of operations and Tempo's layers."""

from dataclasses import replace

import numpy as np
import pytest

from sim.costs.layers.issue import (
    EXPERT_PRODUCT_ISSUE,
    EXPERTS_ISSUE,
    FUSED_EXPERT_ISSUE,
    MEGATRON_ISSUE,
    in_core,
)
from sim.costs.profile import load_profile
from sim.costs.run_level import RunLevel, RunLevelSet
from sim.engine.placed import stage_costs
from sim.engine.step import simulate
from sim.specs import Cluster, InputError, Model, Plan

SMALL = Model(layers=2, hidden=64, heads=2, vocab=64, seq=8)
GPU = Cluster.of("h200-sxm-141gb", nodes=1, gpus_per_node=1)
MEASURED = {"issue_s": 3e-3, "full_issue_s": 2e-3, "selective_issue_s": 5e-3, "tempo_issue_s": 1e-3}


def issued(measured=MEASURED, framework="torch", model=SMALL, cluster=GPU, **given):
    """Return seconds of a layer, forward and backward, that is all issue, with its kernels'."""
    unknown = dict.fromkeys(("full_issue_s", "selective_issue_s", "tempo_issue_s"))
    profile = replace(load_profile("h200-sxm-141gb"), **unknown | measured)
    placed = Plan(global_batch=1, framework=framework, **given).on(model, cluster)
    costs = stage_costs(model, cluster, placed, profile, RunLevelSet.bare(RunLevel()))
    passes = ("forward_host", "forward_compute"), ("backward_host", "input_compute", "weight_compute", "recompute")
    return [float(sum(costs[name][0] for name in names)) / model.layers for names in passes]


def test_usual_layers():
    assert issued() == pytest.approx([1e-3, 2e-3])


def test_whole_layers_are_repeated_in_the_backward_pass():
    assert issued(recompute="full") == pytest.approx([1e-3, 4e-3])
    assert issued({"issue_s": 3e-3}, recompute="full") == pytest.approx([1e-3, 3e-3])
    assert issued(recompute="full", recompute_layers=1) == pytest.approx([1e-3, 3e-3])


def test_a_checkpoint_of_operations_looks_at_each_of_them_twice():
    assert issued(recompute="selective") == pytest.approx([3.5e-3, 4.5e-3])
    assert issued({"issue_s": 3e-3}, recompute="selective") == pytest.approx([1e-3, 2e-3])
    forward, backward = MEGATRON_ISSUE["forward"], MEGATRON_ISSUE["backward"]
    assert issued(framework="megatron", recompute="selective") == pytest.approx([forward * 1e-3, backward * 2e-3])


def test_megatrons_modules_take_longer():
    forward, backward = MEGATRON_ISSUE["forward"], MEGATRON_ISSUE["backward"]
    assert issued(framework="megatron") == pytest.approx([forward * 1e-3, backward * 2e-3])
    repeated = [forward * 1e-3, backward * 2e-3 + MEASURED["full_issue_s"] + (forward - 1) * 1e-3]
    assert issued(framework="megatron", recompute="full") == pytest.approx(repeated)


def test_megatrons_experts_take_longer_still():
    mixture = Model(layers=2, hidden=64, heads=2, vocab=64, seq=8, experts=4, experts_per_token=2, moe_ffn=64)
    forward, backward = (EXPERTS_ISSUE[way] * MEGATRON_ISSUE[way] for way in ("forward", "backward"))
    product = 3 * EXPERT_PRODUCT_ISSUE * MEASURED["issue_s"]  # of three experts beside the first
    expected = [forward * 1e-3 + 2 * product, backward * 2e-3 + 4 * product]
    assert issued(framework="megatron", model=mixture) == pytest.approx(expected)
    assert issued(model=mixture) == pytest.approx([1e-3, 2e-3])  # plain layers with experts: not known
    blackwell = Cluster.of("b200", nodes=1, gpus_per_node=1)
    given = {"framework": "megatron", "model": mixture, "precision": "mxfp8", "cluster": blackwell}
    apart, fused = (np.array(issued(**given, fused_experts=on)) for on in (False, True))
    one = np.array([FUSED_EXPERT_ISSUE[way] for way in ("forward", "backward")]) * 3 * MEASURED["issue_s"]
    assert apart - fused == pytest.approx(np.array([2, 4]) * product - one, rel=1e-6)
    more = issued(framework="megatron", model=mixture, recompute="full")[1] - expected[1]
    assert more == pytest.approx(MEASURED["full_issue_s"] + (forward - 1) * 1e-3 + 2 * product)


@pytest.mark.parametrize("framework", ["megatron", "torch"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_graphs_leave_the_kernels(framework, recompute):
    """Of a layer, and of embedding, head and loss: a device waits for no host but for PyTorch's optimizer."""
    given = {"framework": framework, "recompute": recompute}
    launched, replayed = (issued(cuda_graphs=on, **given) for on in (False, True))
    kernels = issued(dict.fromkeys(MEASURED, 0.0), **given)
    assert replayed == pytest.approx(kernels, rel=1e-3) and replayed[0] < launched[0] / 10
    step = simulate(SMALL, GPU, Plan(global_batch=4, cuda_graphs=True, **given))
    assert step.waiting < simulate(SMALL, GPU, Plan(global_batch=4, **given)).waiting
    assert (step.waiting > 0) == (framework == "torch")
    assert "memory of its own" in " ".join(step.assumptions)


def test_graphs_of_layers_leave_what_experts_add():
    """Of dense layers nothing, of plain PyTorch's everything; what repeats experts is issued too."""
    kernels = issued(dict.fromkeys(MEASURED, 0.0), framework="megatron")
    assert issued(framework="megatron", layer_graphs=True) == pytest.approx(kernels, rel=1e-3)
    assert issued(layer_graphs=True) == pytest.approx([1e-3, 2e-3])
    mixture = Model(layers=2, hidden=64, heads=2, vocab=64, seq=8, experts=4, experts_per_token=2, moe_ffn=64)
    given = {"framework": "megatron", "model": mixture}
    product = 3 * EXPERT_PRODUCT_ISSUE * MEASURED["issue_s"]
    added = {way: MEGATRON_ISSUE[way] * (EXPERTS_ISSUE[way] - 1) for way in ("forward", "backward")}
    left = [added["forward"] * 1e-3 + 2 * product, added["backward"] * 2e-3 + 4 * product]
    assert issued(**given, layer_graphs=True) == pytest.approx(left)
    both = issued(**given, layer_graphs=True, recompute="selective", recompute_experts=True)
    again = MEGATRON_ISSUE["forward"] * (EXPERTS_ISSUE["forward"] - 0.5) * 1e-3 + 2 * product
    assert both == pytest.approx([left[0], left[1] + again])
    step = simulate(SMALL, GPU, Plan(global_batch=4, framework="megatron", layer_graphs=True))
    assert "plan.layer_graphs: kernels as long as launched ones" in " ".join(step.assumptions)


@pytest.mark.parametrize("name", ["cuda_graphs", "layer_graphs"])
def test_host_processors_have_no_graphs(name):
    with pytest.raises(InputError, match=rf"plan.{name}.*false on .*for GPUs alone"):
        simulate(SMALL, Cluster.of("cpu", nodes=1, gpus_per_node=1), Plan(global_batch=1, **{name: True}))


@pytest.mark.parametrize(("framework", "core"), [("megatron", True), ("torch", False)])
def test_megatron_lm_before_its_core_issues_like_plain_layers(framework, core):
    assert in_core(SMALL, Plan(global_batch=1, framework=framework)) == core
    assert issued(framework=framework, core_modules=False) == pytest.approx([1e-3, 2e-3])


def test_tempos_layers():
    assert issued(tempo=True) == pytest.approx([1e-3 + 1e-3 / 3, 2e-3 + 2e-3 / 3])


def backward(vocab, layers, heads=2, **given):
    """Return the seconds of a whole backward pass with the head's forward in front, and (kernels, issue) of each."""
    model = Model(layers=layers, hidden=64 * heads, heads=heads, vocab=vocab, seq=1024)
    profile = replace(load_profile("h200-sxm-141gb"), **MEASURED | given)
    placed = Plan(global_batch=1, framework="torch").on(model, GPU)
    costs = stage_costs(model, GPU, placed, profile, RunLevelSet.bare(RunLevel()))
    head_s = sum(float(v) for name, v in costs.items() if name.startswith("head_") and name.endswith(ENDS_OF_TIMES))
    kernels_s = sum(float(costs[name][0]) for name in ("input_compute", "weight_compute", "recompute")) / layers
    spent = (
        head_s + layers * kernels_s + float(costs["backward_host"][0]) + float(np.ravel(costs["head_backward_host"])[0])
    )
    return spent, [(head_s, profile.ends_issue_s)] + [(kernels_s, 2 * profile.issue_s / 3)] * layers


ENDS_OF_TIMES = ("forward_compute", "input_compute", "weight_compute")


def queued(passes):
    """Return when a device has done passes of (kernels, issue) seconds that its host issues without a stop."""
    device = host = 0.0
    for kernels, issue in passes:
        host += issue
        device = max(device + kernels, host)
    return device


@pytest.mark.parametrize("ends_issue_s", [0.0, 1e-3, 0.02, 0.2])
@pytest.mark.parametrize(("vocab", "layers"), [(64, 1), (64, 5), (50_304, 1), (500_000, 3), (500_000, 40)])
def test_a_host_that_has_run_ahead_beside_the_head(vocab, layers, ends_issue_s):
    spent, passes = backward(vocab, layers, ends_issue_s=ends_issue_s)
    assert spent == pytest.approx(queued(passes))


def test_a_device_whose_layers_never_wait_gains_nothing_from_the_head():
    spent, passes = backward(50_304, 4, heads=128, issue_s=0.0, ends_issue_s=0.0)
    assert spent == pytest.approx(sum(kernels for kernels, _ in passes))


@pytest.mark.parametrize("microbatches", [1, 2, 4, 16])
@pytest.mark.parametrize(("hidden", "vocab"), [(1024, 2048), (3072, 2048), (2048, 32_000), (4096, 2048)])
def test_a_host_runs_ahead_from_one_microbatch_to_the_next(hidden, vocab, microbatches):
    """Megatron's forwards take long to issue, beside the kernels of the backward before; a step's first has none."""
    model, layers = Model(layers=24, hidden=hidden, heads=hidden // 64, vocab=vocab, seq=2048), 24
    profile = load_profile("h200-sxm-141gb")
    placed = Plan(global_batch=microbatches, micro_batch=1, framework="megatron").on(model, GPU)
    costs = stage_costs(model, GPU, placed, profile, RunLevelSet.bare(RunLevel()))
    parts = {
        way: sum(float(np.ravel(costs[name])[0]) for name in names)
        for way, names in {
            "forward": ["forward_compute"],
            "backward": ["input_compute", "weight_compute", "recompute"],
            "head": [f"head_{name}" for name in ENDS_OF_TIMES],
            "waiting": ["forward_host", "backward_host", "head_backward_host"],
        }.items()
    }
    issue = {way: MEGATRON_ISSUE[way] * n * profile.issue_s / 3 for way, n in (("forward", 1), ("backward", 2))}
    head = parts["head"], MEGATRON_ISSUE["ends"] * profile.ends_issue_s
    forward, backward = ([(parts[way] / layers, issue[way])] * layers for way in ("forward", "backward"))
    spent = microbatches * sum(parts.values())
    assert spent == pytest.approx(queued([*forward, head, *backward] * microbatches), rel=0.03)


def updated(layers, framework="torch", device=GPU, precision="bf16", **model):
    """Return the seconds of the optimizer's step, those of its kernels, and what issuing a tensor takes."""
    model = Model(**{"layers": layers, "hidden": 64, "heads": 2, "vocab": 64, "seq": 8} | model)
    profile = load_profile(device.device)
    placed = Plan(global_batch=1, framework=framework, precision=precision).on(model, device)
    costs = stage_costs(model, device, placed, profile, RunLevelSet.bare(RunLevel(step_overhead_s=0.0)))
    adam = profile.read["adam", "any"]
    kernels = adam.seconds({"bytes": (26 + 3 * 4 if precision == "bf16" else 28 + 4) * model.parameters})
    return float(costs["optimizer_only"][0]), kernels, adam.parameters["t0"] / 8


def test_an_optimizer_issues_every_tensor_by_itself():
    for layers in (1, 8, 40):
        seconds, _, each = updated(layers)
        assert seconds == pytest.approx((12 * layers + 4) * each)
    seconds, kernels, _ = updated(40, framework="megatron")
    assert seconds == pytest.approx(kernels, rel=0.05)


def test_a_host_that_is_ahead_of_its_device_issues_the_update_meanwhile():
    seconds, kernels, each = updated(12, hidden=4096, heads=32, vocab=50_304, seq=4096)
    assert seconds == pytest.approx(kernels, rel=0.01) and kernels > 12 * 12 * each


def test_on_a_host_processor_issue_and_kernels_of_an_update_take_turns():
    alone = Cluster.of("cpu", nodes=1, gpus_per_node=1)
    seconds, kernels, each = updated(8, device=alone, precision="fp32")
    assert seconds == pytest.approx(kernels + (12 * 8 + 4 - 8) * each, rel=0.05)


def test_pytorch_copies_the_mask_to_where_the_scores_come():
    model = Model(layers=1, hidden=1024, heads=16, vocab=64, seq=1024, attention="eager")
    held = {}
    for framework in ("torch", "megatron"):
        placed = Plan(global_batch=8, micro_batch=8, framework=framework).on(model, GPU)
        costs = stage_costs(model, GPU, placed, load_profile(GPU.profile), RunLevelSet.bare(RunLevel()))
        held[framework] = float(costs["forward_compute"][0])
    rate = load_profile(GPU.profile).read["elementwise", "any"].parameters["bandwidth"]
    scores = 8 * 16 * 1024**2
    assert held["torch"] - held["megatron"] == pytest.approx(2 * 2 * scores / rate, rel=0.03)
