"""What issuing takes: lines through models of no size, chains of operations, and what is counted in a layer."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from calibration.issue import with_issue
from calibration.kernels.gpt import SmallGpt
from calibration.kernels.overhead import small
from calibration.tracing.trace import trace
from sim.costs.profile import KERNELS_A_LAYER, POINTWISE_A_LAYER, Profile, load_profile
from sim.specs.table import PHASES


@pytest.fixture
def host() -> Profile:
    return load_profile("cpu")


def launches(direction: str, seconds: dict[int, float], use: str = "fit", name: str = "layers") -> list[dict[str, Any]]:
    common = {"op": "launch", "direction": direction, "use": use}
    return [common | {"shape": {name: float(n)}, "t_s": t} for n, t in seconds.items()]


PASSES = launches("pass", {n: 1e-3 + 2e-3 * n for n in (1, 2, 4)}) + launches("pass", {8: 1.0}, "larger")


def test_issue_is_what_small_layers_and_ends_take_beside_their_kernels(host: Profile) -> None:
    found = with_issue(host, PASSES)
    assert 1e-3 < found.issue_s < 2e-3 and 0 < found.ends_issue_s < 1e-3
    gaps = launches("gaps", {n: 4e-4 * n for n in (1, 2, 4)})
    assert with_issue(host, PASSES + gaps).issue_s == pytest.approx(found.issue_s - 4e-4)
    assert with_issue(host, PASSES[:1]) == host


def test_kernels_of_a_device_beside_its_host_are_not_taken_off() -> None:
    found = with_issue(load_profile("a100-sxm-80gb").with_issue_of(None), PASSES)
    assert (found.issue_s, found.ends_issue_s) == pytest.approx((2e-3, 1e-3))


def test_layers_that_take_longer_to_issue_are_known_by_what_they_take_more() -> None:
    known = with_issue(load_profile("a100-sxm-80gb").with_issue_of(None), PASSES)
    assert (known.full_issue_s, known.selective_issue_s, known.tempo_issue_s) == (None, None, None)
    more = {"full": 1.5e-3, "selective": 4e-3, "tempo": -1e-4}
    held = [row for kind, s in more.items() for row in launches(kind, {n: 2e-3 + (2e-3 + s) * n for n in (1, 3)})]
    found = with_issue(known, PASSES + held)
    assert (found.full_issue_s, found.selective_issue_s) == pytest.approx((1.5e-3, 4e-3))
    assert found.tempo_issue_s == 0  # and never less than nothing


def test_issue_of_an_operation_is_of_chains_and_of_what_is_left_of_a_hot_layer(host: Profile) -> None:
    chains = launches("passes", {10: 9e-6, 30: 8e-6}, name="kernels")
    hot = launches("hot", {n: 1e-3 + 1e-3 * n for n in (1, 2, 4)})
    found = with_issue(host, hot + chains)
    floor = host.read["elementwise", "any"].parameters["t0"]
    assert found.pointwise_issue_s == pytest.approx(8e-6 - floor, rel=1e-4)
    others = (1e-3 - POINTWISE_A_LAYER * 8e-6) / (KERNELS_A_LAYER - POINTWISE_A_LAYER) - floor
    assert found.product_issue_s == pytest.approx(others, rel=1e-4)
    assert with_issue(host, hot) == with_issue(host, chains) == host


def test_beside_a_host_operations_are_issued_as_in_any_model() -> None:
    chains = launches("passes", {10: 9e-6, 30: 8e-6}, name="kernels")
    found = with_issue(load_profile("a100-sxm-80gb").with_issue_of(None), PASSES + chains)
    assert found.pointwise_issue_s == pytest.approx(8e-6)
    others = KERNELS_A_LAYER - POINTWISE_A_LAYER
    assert found.product_issue_s == pytest.approx((2e-3 - POINTWISE_A_LAYER * 8e-6) / others, rel=1e-4)


def test_convolutions_are_issued_as_chains_of_them_are_three_times_each() -> None:
    found = with_issue(
        load_profile("a100-sxm-80gb").with_issue_of(None),
        launches("convolutions", {4: 3.3e-4, 8: 3e-4}, name="modules"),
    )
    assert found.convolution_issue_s == pytest.approx(1e-4)


def test_a_convolution_has_the_operations_that_are_counted() -> None:
    """The first has no gradient of inputs, all others are three operations."""

    def convolutions(n: int) -> int:
        stack = torch.nn.Sequential(*(torch.nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(n)))
        made = trace(stack, lambda b: (torch.zeros(b, 8, 8, 8),), [stack], torch.float32)
        ops = [op for layer in made.layers for phase in PHASES for op in layer.ops(phase)]
        return sum(op.count for op in ops if op.kind == "convolution")

    assert [convolutions(n) for n in (1, 2, 3)] == [2, 5, 8]


class Loss(torch.nn.Module):
    """The model of `calibration.kernels.overhead` with its loss."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.gpt = SmallGpt(small(layers), 0)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self.gpt.loss(tokens, targets)


def operations(layers: int) -> tuple[int, int]:
    """All operations of both passes, and the point-wise ones."""
    module = Loss(layers)
    made = trace(module, lambda b: (torch.zeros(b, 8, dtype=torch.long),) * 2, [module], torch.float32)
    ops = [op for layer in made.layers for phase in PHASES for op in layer.ops(phase)]
    return sum(op.count for op in ops), sum(op.count for op in ops if op.kind == "elementwise")


@pytest.mark.slow
def test_a_layer_of_that_model_has_the_operations_that_are_counted() -> None:
    (one, pointwise), (two, more) = operations(1), operations(2)
    assert (two - one, more - pointwise) == (KERNELS_A_LAYER, POINTWISE_A_LAYER)


def test_a_profile_with_issue_is_as_it_was_otherwise(host: Profile) -> None:
    found = with_issue(host, PASSES)
    assert found != host
    assert replace(found, issue_s=host.issue_s, ends_issue_s=host.ends_issue_s) == host
