"""Training in fp32 on the cores of a host processor: defaults, refusals, sizes, and times from a profile of its own."""

import json
from dataclasses import replace

import pytest
import torch

from calibration.tracing.trace import trace
from sim.catalog import folder
from sim.costs import kernels
from sim.costs.carry import nearest
from sim.costs.profile import load_profile
from sim.engine.step import simulate
from sim.specs import Cluster, InputError, Model, Plan
from sim.specs.catalog import device, devices
from sim.tuner.tune import tune
from tests import reference_modules as ref
from tests.costs.hosts import write
from tests.traced import WithLoss

MODEL = Model(layers=4, hidden=256, heads=4, vocab=2048, seq=128)


@pytest.fixture
def cores(tmp_path):
    return Cluster.of("cpu", profile=write(tmp_path / "cpu"))


def test_what_a_plan_leaves_out_is_torchs_training_in_fp32(cores):
    step = simulate(MODEL, cores, Plan(global_batch=4))
    assert (step.plan.precision, step.plan.framework, step.plan.fused_wgrad) == ("fp32", "torch", False)
    assert step.plan.cross_entropy == "autograd"
    assert "plan.precision = fp32 (on host processors)" in step.assumptions
    assert Plan(global_batch=4).suited(Cluster.of("l4")).precision == "bf16"
    kept = Plan(global_batch=4, framework="megatron").suited(cores)
    assert (kept.precision, kept.framework) == ("fp32", "megatron")


def test_utilisation_is_of_the_fp32_peak(cores):
    step = simulate(MODEL, cores, Plan(global_batch=4))
    flop = 4 * MODEL.flop_per_sample()
    assert step.mfu == pytest.approx(flop / step.step_time_s / (2 * device("cpu").peak_fp32_flop_per_s.value))
    assert 0 < step.mfu < step.hfu + 1e-12


def test_no_figures_of_accelerators_enter(cores):
    step = simulate(MODEL, cores, Plan(global_batch=4))
    assert step.level.parameters.host_s_per_launch == step.level.parameters.straggler == 0
    assert step.level.parameters.gemm_slowdown == 1
    low, high = step.step_time_interval_s
    assert low < step.step_time_s < high


def test_what_processes_of_one_host_add_to_each_other_is_counted_and_told(cores, tmp_path):
    beside = Cluster.of("cpu", profile=write(tmp_path / "beside", beside={"memory": 0.5, "product": 0.25}))
    step, alone = (simulate(MODEL, cluster, Plan(global_batch=4)) for cluster in (beside, cores))
    assert step.level.parameters.gemm_slowdown == 1.25 and step.step_time_s > 1.2 * alone.step_time_s
    (told,) = (text for text in step.assumptions if text.startswith("run level: host processors"))
    assert told.endswith("; with 1 process beside: products x 1.25, memory-bound kernels x 1.50")
    assert not [text for text in alone.assumptions if "beside:" in text]


def test_tuner_and_step_agree(cores):
    found = tune(MODEL, cores, 8, {"micro_batch": [1, 2]})
    assert found.best.step.plan.precision == "fp32"
    again = simulate(MODEL, cores, found.best.plan)
    assert again.step_time_s == pytest.approx(found.best.step.step_time_s)


@pytest.mark.parametrize(
    ("name", "precision", "message"),
    [
        ("cpu", "bf16", r"plan\.precision: got 'bf16'; allowed: fp32: profile own is of fp32 kernels"),
        ("t4", "fp32", r"plan\.precision: got 'fp32'; allowed: bf16, fp16, .*: profile t4 is of 16-bit kernels"),
    ],
)
def test_a_profile_serves_the_precision_of_its_kernels(tmp_path, name, precision, message):
    profile = write(tmp_path / "own") if name == "cpu" else name
    with pytest.raises(InputError, match=message):
        simulate(MODEL, Cluster.of(name, profile=profile), Plan(global_batch=8, precision=precision))


def test_an_accelerator_with_a_profile_of_fp32_kernels(tmp_path):
    profile = write(tmp_path / "own")
    step = simulate(MODEL, Cluster.of("t4", profile=profile), Plan(global_batch=8, precision="fp32"))
    assert step.costs["optimizer_bytes_only"] == 8 * MODEL.parameters


def test_fp32_has_no_16_bit_gradients():
    with pytest.raises(InputError, match=r"gradient_dtype: got 'bf16'; allowed: fp32 with precision fp32"):
        Plan(global_batch=8, precision="fp32", gradient_dtype="bf16")


def test_without_a_profile_the_error_says_how_to_get_one(monkeypatch):
    monkeypatch.setattr("sim.costs.profile._shipped_names", lambda: frozenset({"t4"}))
    with pytest.raises(
        InputError, match=r"cluster\.profile: got 'cpu'; .*none is shipped for cpu, `trainsim calibrate`"
    ):
        load_profile("cpu")


def test_hosts_and_accelerators_are_not_alike():
    assert nearest(device("cpu"), devices.values()).name == "cpu"
    assert not nearest(replace(device("t4"), name="own"), devices.values()).on_host


def states(cluster, **given):
    c = simulate(MODEL, cluster, Plan(global_batch=8, **given)).costs
    return {k: c[f"{k}_only"].item() for k in ("parameters", "gradients", "optimizer_bytes")}


@pytest.mark.parametrize(("zero", "each"), [(0, (4, 4, 8)), (1, (4, 4, 4)), (2, (4, 2, 4)), (3, (2, 2, 4))])
@pytest.mark.parametrize("framework", ["torch", "megatron"])
def test_sixteen_bytes_a_parameter_without_master_weights(cores, zero, each, framework):
    found = states(cores, zero=zero, framework=framework)
    assert list(found.values()) == pytest.approx([b * MODEL.parameters for b in each])


def test_an_update_moves_28_bytes_a_parameter_and_zeroes_its_gradient(cores):
    profile = load_profile(cores.profile).values
    c = simulate(MODEL, cores, Plan(global_batch=8)).costs
    expected = (28 + 4) * MODEL.parameters / profile["adam_any_bandwidth"] + profile["adam_any_t0"]
    assert c["optimizer_only"].item() == pytest.approx(expected)


def test_messages_take_four_bytes_an_element(cores):
    step = simulate(MODEL, cores, Plan(global_batch=8, pp=2))
    assert float(step.costs["boundary_buffer_bytes"]) == 2 * 4 * MODEL.seq * MODEL.hidden


OPTIONAL = sorted(key for key in kernels.FALLBACK if key[0] != "convolution")
"""But those that traced networks alone have (`test_traced`)."""


@pytest.mark.parametrize("key", OPTIONAL, ids="/".join)
def test_a_kernel_of_its_own_changes_the_step_and_without_it_nothing_does(tmp_path, key):
    """Each optional kernel is read by some layer: at half the bandwidth of what it falls back on, a step is longer.

    Where an update is not issued tensor by tensor, as is told of an optimizer that was timed.
    """
    plan = Plan(global_batch=4, framework="megatron")
    op, direction = kernels.FALLBACK[key]
    raw = json.loads((folder("profiles") / "t4" / "profile.json").read_text())["models"]
    base = next(m for m in raw if (m["op"], m["direction"]) == (op, direction))
    times = []
    for factor in (1.0, 0.5):
        numbers = base["parameters"] | {"bandwidth": 2e10 * factor}
        more = [base | {"op": key[0], "direction": key[1], "parameters": numbers}]
        cluster = Cluster.of("cpu", profile=write(tmp_path / str(factor), more=more))
        model = replace(MODEL, gated_mlp=key[0] == "swiglu", attention="eager", dropout=0.1)
        times.append(simulate(model, cluster, plan).step_time_s)
    plain = simulate(model, Cluster.of("cpu", profile=write(tmp_path / "plain")), plan).step_time_s
    assert times[0] == plain < times[1]


def test_every_microbatch_adds_the_gradients_of_layers_and_tables(cores):
    """12 bytes a parameter; the embedding's gradient is as large as its table, and zero at first."""
    one, two = (simulate(replace(MODEL, vocab=v), cores, Plan(global_batch=2)).costs for v in (1024, 2048))
    bandwidth, tables = load_profile(cores.profile).values["elementwise_any_bandwidth"], 1024 * MODEL.hidden
    more = two["embedding_weight_compute"].item() - one["embedding_weight_compute"].item()
    assert more == pytest.approx((4 + 12) * tables / bandwidth)


@pytest.mark.slow
def test_a_network_traced_in_fp32(cores):
    """It takes a plan in fp32 and no other."""
    network = ref.GPT(4, 256, 4, 2048, 128)
    table = trace(WithLoss(network), lambda b: (torch.zeros(b, 128, dtype=torch.long),) * 2, dtype=torch.float32)
    traced = Model.from_table(table)
    ours, theirs = (simulate(m, cores, Plan(global_batch=4)) for m in (replace(MODEL, tied_embeddings=True), traced))
    assert theirs.plan.precision == "fp32"
    assert theirs.costs["parameters_only"] == ours.costs["parameters_only"]
    assert theirs.costs["saved_bytes"] == ours.costs["saved_bytes"]
    assert theirs.step_time_s == pytest.approx(ours.step_time_s, rel=0.1)
    with pytest.raises(InputError, match=r"plan\.precision: got 'bf16'; allowed: fp32: the table is of float32"):
        simulate(traced, Cluster.of("l4"), Plan(global_batch=8))


def test_devices_without_bf16_train_in_fp16():
    step = simulate(MODEL, Cluster.of("v100-sxm-32gb"), Plan(global_batch=8))
    assert step.plan.precision == "fp16"
    assert "plan.precision = fp16 (no bf16 on these devices)" in step.assumptions
    with pytest.raises(InputError, match=r"plan\.precision: got 'bf16'; .* has units for: fp16"):
        simulate(MODEL, Cluster.of("t4"), Plan(global_batch=8, precision="bf16"))
