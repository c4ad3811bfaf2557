"""Kernels' intervals carried to a step, and shapes outside the fitted ones."""

from dataclasses import replace
from math import exp, hypot, log

import pytest

import sim
from sim.costs import spread, usage
from sim.costs.fitted import LEVELS, Z80, KernelModel, SizeBin
from sim.costs.profile import Profile, load_profile
from sim.costs.run_level import run_level
from sim.costs.usage import Used
from sim.engine.certainty import carried_sigma, step_sigma
from sim.specs.table import Layer, LayerTable, Op
from tests.costs.hosts import hostless

PLAN = sim.Plan(tp=2, pp=2, global_batch=16, micro_batch=1)


def bins(*widths: float) -> list[SizeBin]:
    return [
        SizeBin(from_size=10.0 ** (3 * n), n=100, half_widths=dict.fromkeys(LEVELS, w * Z80))
        for n, w in enumerate(widths)
    ]


def measured(**changed: object) -> Profile:
    """Return A100's profile as if measured: 5 % on every kernel, half of that for every factor of e outside."""
    base = load_profile("a100-pcie-80gb")
    models = [replace(m, bins=bins(0.05), outside_slope=0.025, domain={}) for m in base.models]
    return replace(base, session="s", models=models, **changed)


def used(op: str, direction: str, share: float, **inputs: float) -> Used:
    return Used(op, direction, share, inputs)


def gemm(share: float, m: float = 100.0, direction: str = "forward") -> Used:
    return used("gemm", direction, share, m=m, n=100.0, k=100.0, batch=1.0)


def test_errors_add_within_a_family_and_as_squares_between() -> None:
    profile = measured()
    one = [gemm(0.4), gemm(0.2, direction="wgrad")]
    assert spread.kernel_sigma(profile, one) == pytest.approx(0.6 * 0.05)
    both = [*one, used("norm", "any", 0.3, bytes=1e6, columns=1e3)]
    assert spread.kernel_sigma(profile, both) == pytest.approx(hypot(0.6, 0.3) * 0.05)


def test_kernels_of_one_fit_err_together() -> None:
    """A100's profile times activations and residuals as element-wise kernels; a model of one's own errs by itself."""
    profile = measured()
    sizes = {"bytes": 1e6}
    shared = [used("gelu", "forward", 0.2, **sizes), used("residual", "backward", 0.1, **sizes)]
    assert spread.kernel_sigma(profile, shared) == pytest.approx(0.3 * 0.05)
    assert spread.family_sigmas(profile, shared) == pytest.approx({"elementwise": 0.3 * 0.05})
    gelu = replace(profile.model_of(("gelu", "forward")), op="gelu", direction="forward")
    own = replace(profile, models=[*profile.models, gelu])
    assert spread.kernel_sigma(own, shared) == pytest.approx(hypot(0.2, 0.1) * 0.05)


def test_the_bin_of_the_size_counts() -> None:
    base = measured()
    models = [replace(m, bins=bins(0.3, 0.2, 0.1)) if m.op == "norm" else m for m in base.models]
    profile = replace(base, models=models)
    for size, sigma in ((0.5, 0.3), (10.0, 0.3), (1e3, 0.2), (1e9, 0.1)):
        kernel = used("norm", "any", 1.0, bytes=size, columns=64.0)
        assert spread.kernel_sigma(profile, [kernel]) == pytest.approx(sigma)


def test_outside_the_domain_the_interval_grows_with_the_distance() -> None:
    base = measured()
    models = [replace(m, domain={"m": [10.0, 100.0]}) if m.op == "gemm" else m for m in base.models]
    profile = replace(base, models=models)
    for m, distance in ((10.0, 0.0), (100.0, 0.0), (100.0 * exp(2), 2.0), (10.0 / exp(1), 1.0)):
        found = spread.kernel_sigma(profile, [gemm(1.0, m)])
        assert found == pytest.approx(hypot(0.05, 0.025 * distance))
        assert spread.widening(profile, [gemm(1.0, m)]) == pytest.approx(0.025 * distance)
    (line,) = spread.outside_domain(profile, [gemm(0.1, 200.0), gemm(0.1, 800.0), gemm(0.1, 50.0)])
    assert line == "gemm forward m = 800 (fitted to 10 .. 100)"


def test_a_profile_without_intervals_has_its_constant() -> None:
    base = load_profile("a100-pcie-80gb")
    profile = replace(base, models=[replace(m, bins=[]) for m in base.models], kernel_sigma_log=0.07)
    assert spread.kernel_sigma(profile, [gemm(1.0)]) == 0.07


def test_nothing_is_counted_twice() -> None:
    """Public profiles: the run level holds the kernels' errors. Measured ones: the larger of both."""
    level, kernels = run_level(), [gemm(1.0)]
    public = load_profile("a100-pcie-80gb")
    assert step_sigma(public, level, kernels) == step_sigma(public, level)
    assert step_sigma(measured(), level, kernels) == pytest.approx(level.sigma_log)
    rough = replace(measured(), models=[replace(m, bins=bins(0.4)) for m in public.models])
    inside = [gemm(1.0, m=8192.0, direction="forward")]
    assert step_sigma(rough, level, inside) > level.sigma_log
    assert spread.kernel_sigma(rough, inside, outside=False) == pytest.approx(0.4)


@pytest.fixture
def folder_profile(tmp_path):
    """Write a measured profile whose products were only fitted up to 64 rows."""
    from calibration.published.profiles import write  # noqa: PLC0415

    base = measured(name="mine")
    models = [replace(m, domain={"m": [16.0, 64.0]}) if m.key == ("gemm", "forward") else m for m in base.models]
    write([replace(base, models=models)], tmp_path)
    return str(tmp_path / "mine")


def test_a_step_outside_the_domain_says_so_and_is_less_certain(folder_profile) -> None:
    model = sim.models["gpt3-175b"]
    near = sim.simulate(model, sim.Cluster.of("a100-pcie-80gb", nodes=1), PLAN)
    far = sim.simulate(model, sim.Cluster.of("a100-pcie-80gb", nodes=1, profile=folder_profile), PLAN)
    (line,) = [text for text in far.assumptions if text.startswith("outside the fitted shapes")]
    assert "gemm forward m = 2048 (fitted to 16 .. 64)" in line
    assert "the interval is wider" in line
    share = sum(k.share for k in far.kernels if (k.op, k.direction) == ("gemm", "forward"))
    added = share * hypot(0.05, 0.025 * log(2048 / 64)) - share * 0.05
    assert far.profile.measured
    assert far.sigma_log > far.level.sigma_log
    assert far.sigma_log**2 - far.level.sigma_log**2 > added**2
    assert near.sigma_log == hypot(near.level.sigma_log, carried_sigma(near.profile, near.level))


def test_shares_are_those_of_the_breakdown() -> None:
    step = sim.simulate(sim.models["gpt3-175b"], sim.Cluster.of("a100-sxm-80gb", nodes=1), PLAN)
    busy = sum(step.breakdown_s[k] for k in ("compute", "recompute", "bubble", "optimizer")) / step.step_time_s
    assert sum(k.share for k in step.kernels) == pytest.approx(busy, abs=0.02)
    assert all(k.share >= 0 for k in step.kernels)
    products = {k.inputs["m"] for k in step.kernels if k.direction == "forward" and k.op == "gemm"}
    assert products == {2048.0}


def test_a_kernel_that_a_layer_repeats_has_its_share_of_every_launch(tmp_path) -> None:
    """`count` of a layer table: of two products of one size, launched 9 times and once, the first takes 9 times."""
    once = Op(kind="gemm", m=(0, 4096), n=(4096, 0), k=(4096, 0), batch=(1, 0))
    fixed = {"parameters": 10, "trainable_parameters": 10, "saved_bytes": (0, 100), "boundary_bytes": (0, 40)}
    layer = Layer(name="x", temporary_bytes=(0, 0), forward=[replace(once, count=9), once], **fixed)
    network = sim.Model.from_table(LayerTable(name="t", dtype="bfloat16", batches=[1, 2, 3], layers=[layer]))
    held = hostless("a100-sxm-80gb", tmp_path / "hostless")
    step = sim.simulate(network, sim.Cluster.of("a100-sxm-80gb", nodes=1, profile=held), sim.Plan(global_batch=8))
    nine, one = (k.share for k in step.kernels if (k.op, k.direction) == ("gemm", "forward"))
    assert nine == pytest.approx(9 * one)
    assert one > 0.01


@pytest.mark.parametrize(
    ("framework", "recompute", "times"),
    [("megatron", "selective", 1.0), ("megatron", "full", 2.0), ("torch", "selective", 1.5), ("torch", "full", 2.0)],
)
def test_a_shape_that_the_backward_pass_repeats_has_its_share_of_both(framework, recompute, times) -> None:
    """Products of the layers are launched again, the head's is not: its seconds stay what they are."""

    def seconds(which: str) -> dict[float, float]:
        plan = PLAN.but(tp=8, pp=1, recompute=which, framework=framework)
        step = sim.simulate(sim.models["gpt3-175b"], sim.Cluster.of("a100-sxm-80gb", nodes=1), plan)
        products = (k for k in step.kernels if (k.op, k.direction) == ("gemm", "forward"))
        return {k.inputs["n"] * k.inputs["k"]: k.share * step.step_time_s for k in products}

    once, again = seconds("none"), seconds(recompute)
    head = next(size for size in once if size / 12288 == pytest.approx(51200 / 8))
    assert again.pop(head) == pytest.approx(once.pop(head))
    assert again == pytest.approx({size: times * took for size, took in once.items()})


@pytest.mark.parametrize("own", ["cudnn", "default", "fused"])
def test_layouts_that_a_recurrent_layer_never_takes_are_no_kernels_of_it(own) -> None:
    """Fused layers lie as is better, others in rows alone."""
    lm = sim.models["lstm-lm"]
    plan = sim.Plan(global_batch=64, micro_batch=64, framework="torch", recurrent_kernel=own)
    kernels = sim.simulate(lm, sim.Cluster.of("v100-sxm-16gb", nodes=1, gpus_per_node=1), plan).kernels
    rows = {k.inputs["m"] for k in kernels if (k.op, k.direction) == ("gemm", "forward")}
    assert (4 * lm.hidden in rows) is (own == "fused")


def test_distances_of_one_model() -> None:
    model: KernelModel = load_profile("a100-pcie-80gb").model_of(("gemm", "forward"))
    low, high = model.domain["m"]
    assert model.distance({"m": low}) == model.distance({"m": high}) == model.distance({"other": 1.0}) == 0
    assert model.distance({"m": 2 * high, "n": model.domain["n"][0] / 4}) == pytest.approx(log(4))
    assert usage.Used("gemm", "forward", 1.0, {"m": 2.0, "n": 3.0, "k": 4.0, "batch": 1.0}).size == 48
