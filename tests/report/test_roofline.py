"""The roofline: rates and intensities of the step's own operations, under the roofs of the data sheet."""

from dataclasses import replace
from math import log10

import plotly.graph_objects as go
import pytest

from sim.engine.step import Step, simulate
from sim.report import figures
from sim.report.figures.roofline import _of, roofline_words
from sim.report.theme import PALETTE
from sim.specs import Cluster, InputError, Plan
from sim.specs.catalog import device
from tests.report.conftest import CLUSTER, model

H100 = device("h100-sxm-80gb")


def points(figure: go.Figure) -> list[go.Scatter]:
    """Return the traces of kernels."""
    return [t for t in figure.data if t.mode == "markers" and t.showlegend is not False]


def test_points_are_the_operations_of_the_step(step: Step) -> None:
    shown = [(x, y * 1e12) for t in points(figures.roofline(step)) for x, y in zip(t.x, t.y, strict=True)]
    assert len(shown) == len(step.operations)
    up = next(op for op in step.operations if op.name == "mlp up")
    assert up.flop == 2 * 1024 * 2048 * (4 * 2048 // step.plan.tp)
    assert any(x == pytest.approx(up.flop / up.bytes) and y == pytest.approx(up.flop / up.seconds) for x, y in shown)
    assert all(y <= min(H100.peak_bf16_flop_per_s.value, x * H100.memory_bytes_per_s.value) for x, y in shown)


def test_operations_add_up_to_the_compute_time_of_a_microbatch(step: Step) -> None:
    parts = sum(op.count * op.seconds for op in step.operations if op.phase == "forward")
    assert parts == pytest.approx(
        float(step.costs["forward_compute"].sum() + step.costs["embedding_forward_compute"])
        + float(step.costs["head_forward_compute"]),
        rel=1e-9,
    )


def test_roofs_are_the_data_sheets(step: Step) -> None:
    figure = figures.roofline(step)
    (roof,) = (t for t in figure.data if t.mode == "lines")
    assert roof.y[1] * 1e12 == roof.y[2] * 1e12 == H100.peak_bf16_flop_per_s.value
    assert roof.y[0] * 1e12 / roof.x[0] == pytest.approx(H100.memory_bytes_per_s.value)
    assert "FLOP per byte" in figure.layout.xaxis.title.text and "TFLOP/s" in figure.layout.yaxis.title.text
    assert not any("Warning" in a.text for a in figure.layout.annotations)


def test_roofs_of_other_memories_leave_the_kernels_where_they_are(step: Step) -> None:
    fitted = step.profile.read["elementwise", "any"].parameters["bandwidth"]
    rates = {"device": H100.memory_bytes_per_s.value, "profile": fitted, "host": step.cluster.host_bytes_per_s}
    assert len({*rates.values()}) == 3
    shown = [[list(t.x) for t in points(figures.roofline(step))]]
    for level, rate in rates.items():
        figure = figures.roofline(step, level=level)
        (roof,) = (t for t in figure.data if t.mode == "lines")
        assert roof.y[0] * 1e12 / roof.x[0] == pytest.approx(rate) and roof.y[2] * 1e12 == 989.4e12
        shown.append([list(t.x) for t in points(figure)])
        assert not any("Warning" in a.text for a in figure.layout.annotations)
    assert all(one == shown[0] for one in shown)
    hovers = [text for t in points(figures.roofline(step, level="profile")) for text in t.text]
    assert {text.rsplit("; roof: ")[1] for text in hovers} == {"bf16, data sheet", "memory, scaled by profile"}
    assert "times as long or more with all operands there" in roofline_words(step, "host")
    assert "memory bounds" in roofline_words(step)


def test_a_device_without_a_host_link_has_no_such_roof() -> None:
    step = simulate(model(), Cluster.of("cpu"), Plan(global_batch=4, precision="fp32"))
    with pytest.raises(InputError, match=r"^level: got 'host'; allowed: device or profile: cpu states no host link$"):
        figures.roofline(step, level="host")


def test_roofs_move_with_the_multipliers(step: Step) -> None:
    fast = Cluster.of("h100-sxm-80gb", nodes=CLUSTER.nodes, multipliers={"clock": 4.0, "memory_rate": 2.0})
    figure = figures.roofline(simulate(step.model, fast, step.plan))
    (roof,) = (t for t in figure.data if t.mode == "lines")
    assert roof.y[2] * 1e12 == 4 * H100.peak_bf16_flop_per_s.value
    assert roof.y[0] * 1e12 / roof.x[0] == pytest.approx(2 * H100.memory_bytes_per_s.value)
    assert not any("Warning" in a.text for a in figure.layout.annotations)


def test_a_low_precision_has_its_own_roof_and_the_legend_stays_short() -> None:
    step = simulate(model(), CLUSTER, Plan(tp=2, pp=2, global_batch=16, precision="fp8"))
    figure = figures.roofline(step)
    peaks = [t.y[-1] * 1e12 for t in figure.data if t.mode == "lines"]
    assert peaks == [H100.peak_fp8_flop_per_s.value, H100.peak_bf16_flop_per_s.value]
    assert len([t for t in figure.data if t.showlegend is not False]) <= 8


@pytest.mark.parametrize("attention", ["flash", "eager"])
def test_what_the_recipe_leaves_at_16_bit_is_below_the_16_bit_roof(attention: str) -> None:
    held, plan = replace(model(), attention=attention), Plan(tp=2, pp=2, global_batch=16)
    low, usual = (simulate(held, CLUSTER, replace(plan, precision=precision)) for precision in ("fp8", "bf16"))
    under = {p.operation.name: p for p in _of(low, "device")[1] if p.operation.flop}
    alike = {one.name for one in usual.operations if one.flop and one.seconds == under[one.name].operation.seconds}
    assert {"logits", "logits dgrad"} < alike < set(under)
    assert any("scores" in name for name in alike) if attention == "eager" else "attention forward" in alike
    assert {p.under for name, p in under.items() if name in alike} <= {"16-bit, data sheet", "memory, data sheet"}
    assert {p.under for name, p in under.items() if name not in alike} <= {"fp8, data sheet", "memory, data sheet"}
    assert under["logits"].roof == H100.peak_bf16_flop_per_s.value
    assert max(p.roof for name, p in under.items() if name not in alike) > H100.peak_bf16_flop_per_s.value


def test_a_point_above_its_roof_is_marked_and_said(step: Step) -> None:
    fast = Step(**{name: getattr(step, name) for name in step.__dataclass_fields__})
    # What a calibration with wrong units would do.
    vars(fast)["operations"] = tuple(
        replace(op, seconds=op.seconds / 1e3, name="<b>" + op.name) for op in step.operations
    )
    figure = figures.roofline(fast)
    (warning,) = (a.text for a in figure.layout.annotations if "Warning" in a.text)
    assert "above the roof" in warning and "<b>" not in warning
    (ring,) = (t for t in figure.data if t.showlegend is False)
    assert len(ring.x) == len(step.operations)
    assert figures.roofline(step).layout.annotations != figure.layout.annotations


def test_hover_has_six_lines_at_most(step: Step) -> None:
    texts = [text for t in points(figures.roofline(step)) for text in t.text]
    assert max(text.count("<br>") for text in texts) == 5
    assert any("1 per element, assumed" in text for text in texts)


def test_a_slow_device_has_a_smaller_unit_and_dark_its_colours() -> None:
    step = simulate(model(), Cluster.of("cpu"), Plan(global_batch=4, precision="fp32"))
    figure = figures.roofline(step, theme="dark")
    assert "GFLOP/s" in figure.layout.yaxis.title.text
    assert points(figure)[0].marker.color == PALETTE["forward"][1]


def test_another_plans_kernels_are_open_markers_below_a_roof_of_its_own(step: Step) -> None:
    low = simulate(model(), CLUSTER, replace(step.plan, precision="fp8"))
    figure = figures.roofline(step, reference=low)
    opened = [t for t in figure.data if t.name == "A, its roof dashed"]
    assert sorted((x, y) for t in opened for x, y in zip(t.x, t.y, strict=True)) == sorted(
        (x, y) for t in points(figures.roofline(low)) for x, y in zip(t.x, t.y, strict=True)
    )
    assert all(t.marker.symbol.endswith("-open") for t in opened) and [t.showlegend for t in opened].count(True) == 1
    (roof,) = (t for t in figure.data if t.name == "A's roof")
    assert roof.y[2] * 1e12 == H100.peak_fp8_flop_per_s.value
    assert figure.layout.yaxis.range[1] > log10(roof.y[2])
    assert not any(t.name == "A's roof" for t in figures.roofline(step, reference=step).data)
