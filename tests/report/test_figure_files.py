"""Files of one figure: whole, self-contained, and harmless in a spreadsheet."""

import csv
from io import StringIO

import numpy as np
import plotly.graph_objects as go
import pytest
from plotly.offline import get_plotlyjs

from sim.engine.step import Step, simulate
from sim.report import figures
from sim.report.figure_files import figure_csv, figure_html, file_stem
from tests.report.conftest import CLUSTER, HOSTILE, model


def rows(figure: go.Figure) -> list[dict[str, str]]:
    """Return the CSV's rows by column."""
    return list(csv.DictReader(StringIO(figure_csv(figure))))


def test_csv_holds_every_point_with_the_axes_names(step: Step) -> None:
    figure = figures.breakdown(step)
    held = rows(figure)
    x = f"x: {figure.layout.xaxis.title.text}"
    total = sum(float(row[x]) for row in held if row["trace"] != "scatter")
    assert total == pytest.approx(float(figure.data[-1].x[0]), rel=1e-9)
    assert [row["trace"] for row in held][:-1] == [t.name for t in figure.data][:-1]


def test_csv_of_a_timeline_leaves_out_what_is_only_in_the_legend(step: Step) -> None:
    figure = figures.timeline(step)
    drawn = [t for t in figure.data if t.type == "bar" and np.ndim(t.base)]
    held = [row for row in rows(figure) if row["base"]]
    assert len(held) == sum(len(t.x) for t in drawn)
    assert len({row["trace"] for row in held}) >= 2


def test_csv_of_a_picture_has_a_row_a_cell() -> None:
    figure = go.Figure(go.Heatmap(x=[0.5, 1.5, 2.5], y=["a", "b"], z=np.arange(6).reshape(2, 3), name="busy"))
    held = rows(figure)
    assert [(row["x"], row["y"], row["z"]) for row in held][3:] == [
        ("0.5", "b", "3"),
        ("1.5", "b", "4"),
        ("2.5", "b", "5"),
    ]


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_csv_neutralises_formulas_and_leaves_numbers_alone(start: str) -> None:
    figure = go.Figure(go.Bar(x=[-1.5], y=[f"{start}cmd"], name=f"{start}HYPERLINK()"))
    _, row = csv.reader(StringIO(figure_csv(figure), newline=""))
    assert row == [f"'{start}HYPERLINK()", "-1.5", f"'{start}cmd"]


def test_html_is_one_figure_in_both_themes_without_a_network(step: Step) -> None:
    text = figure_html(lambda theme: figures.breakdown(step, theme=theme), HOSTILE, "4.21 s a step")
    own = text.replace(get_plotlyjs(), "")
    assert text.count(get_plotlyjs()) == 1
    assert own.count("data-plot=") == 1 and '"dark":[[' in own and "4.21 s a step" in own
    assert "src=" not in own.replace("&lt;img src=", "") and "default-src 'none'" in own and "<script>alert" not in own


def test_names_tell_plans_apart_and_are_safe(step: Step) -> None:
    other = simulate(model(), CLUSTER, step.plan.but(global_batch=32))
    assert file_stem(step).startswith("small-8xh100-sxm-80gb-") and file_stem(step) != file_stem(other)
    hostile = simulate(model("../../etc/<b> x"), CLUSTER, step.plan)
    assert set(file_stem(hostile)) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-")
