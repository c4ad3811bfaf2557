"""What a step says of precisions and experts that nobody has stated or measured."""

from dataclasses import replace

import pytest

import sim


def told(begin: str, model: str = "mixtral-8x7b", device: str = "gb200", **plan: object) -> list[str]:
    step = sim.simulate(sim.models[model], sim.Cluster.of(device, nodes=8), sim.Plan(global_batch=64, **plan))
    return [line for line in step.assumptions if line.startswith(begin)]


@pytest.mark.parametrize(
    ("device", "precision", "expected"),
    [
        ("gb200", "bf16", None),
        ("gb200", "mxfp8", "large products on gb200 are 1.98 times as fast as in 16 bits; github"),
        ("gb200", "nvfp4", "large products on gb200 are 4 times as fast as in 16 bits by the ratio of dense peaks"),
        ("h100-sxm-80gb", "fp8", "large products on h100-sxm-80gb are 1.76 times as fast as in 16 bits; github"),
    ],
)
def test_how_fast_products_of_few_bits_are_taken_to_be_is_told(device, precision, expected):
    lines = told("precision ", "llama3-8b", device, precision=precision)
    assert len(lines) == (expected is not None)
    assert all(expected in line and line.startswith(f"precision {precision}: ") for line in lines)


@pytest.mark.parametrize(
    ("device", "profile", "expected"),
    [
        ("a100-sxm-80gb", "h100-sxm-80gb-2026", "h100-sxm-80gb's kernel times as they are, though a100-sxm-80gb"),
        ("h200-sxm-141gb", "h100-sxm-80gb", "1 times its 16-bit peak and 1.43 times its memory bandwidth"),
        ("h100-sxm-80gb", "h100-sxm-80gb-2026", None),
        *((name, None, None) for name in ("h200-sxm-141gb", "gb300", "cpu", "v100-sxm-16gb")),
    ],
)  # fmt: skip
def test_a_profile_of_another_chip_is_told(device, profile, expected):
    cluster = sim.Cluster.of(device, nodes=1, profile=profile)
    step = sim.simulate(sim.models["gpt2"], cluster, sim.Plan(global_batch=64))
    lines = [line for line in step.assumptions if line.startswith("profile of another device")]
    assert len(lines) == (expected is not None)
    assert all(expected in line for line in lines)


def test_balanced_experts_are_an_assumption_until_something_is_said_of_them():
    assert told("experts are balanced", ep=8)
    assert not told("experts are balanced", ep=1)
    for said in ({"imbalance": 1.3}, {"capacity_factor": 1.2}):
        model = replace(sim.models["mixtral-8x7b"], **said)
        step = sim.simulate(model, sim.Cluster.of("gb200", nodes=8), sim.Plan(ep=8, global_batch=64))
        assert not any(line.startswith("experts are balanced") for line in step.assumptions)


def test_a_wider_interval_for_experts_is_told():
    (line,) = told("experts beside state spaces or sinks were in no fitted run", "gpt-oss-20b")
    assert "public runs that have them ask for 45 % by themselves" in line
    assert not told("experts beside") and not told("experts", "llama3-8b")
