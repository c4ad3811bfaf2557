"""The figure of what a run takes in turn."""

from types import SimpleNamespace

import pytest

from sim.report.figures import in_turn
from sim.specs import InputError


def taken(days, usd=None):
    return SimpleNamespace(
        days=days, days_interval=(days - 1, days + 2), cost_usd=usd, cost_usd_interval=usd and (usd - 1e3, usd + 2e3),
        energy_kwh=1e3 * days, energy_kwh_interval=(900.0 * days, 1_200.0 * days),
        gpu_hours=24 * days, gpu_hours_interval=(24 * days, 24 * days),
    )  # fmt: skip


def test_a_mark_with_its_interval_for_every_row_and_measure():
    figure = in_turn({"alone": taken(10.0, 5e3), "<b>": taken(12.0)})
    days, usd, energy = figure.data
    assert (list(days.x), list(days.y)) == ([10.0, 12.0], ["alone", "&lt;b&gt;"])
    assert (list(days.error_x.array), list(days.error_x.arrayminus)) == ([2.0, 2.0], [1.0, 1.0])
    assert (list(usd.x), list(usd.y)) == ([5.0], ["alone"])  # the other has no price
    assert list(energy.error_x.array) == pytest.approx([2.0, 2.4])
    assert [figure.layout[f"xaxis{n}"].title.text for n in ("", 2, 3)] == ["days", "thousand USD", "MWh"]
    assert not figure.layout.showlegend


def test_what_it_was_before_stands_beside_it():
    figure = in_turn({"alone": taken(10.0, 5e3)}, {"alone": taken(11.0, 5e3), "gone": taken(9.0, 1e3)})
    assert [trace.name for trace in figure.data] == ["before", "now"] * 3
    assert list(figure.layout.yaxis.categoryarray) == ["alone", "gone"]


def test_nothing_is_refused():
    with pytest.raises(InputError, match=r"turns: got \{\}; allowed: one row or more"):
        in_turn({})
