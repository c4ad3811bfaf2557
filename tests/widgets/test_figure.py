"""What a browser is told of a figure: with the figure itself, and of that as it is now."""

import asyncio

import plotly.graph_objects as go
import pytest

from sim.widgets import figure
from sim.widgets.figure import Figure, library


@pytest.fixture
def opened(monkeypatch):
    """What a browser is told where a widget opens."""
    states = []
    create = figure.w.widgets.widget.comm.create_comm
    monkeypatch.setattr(
        figure.w.widgets.widget.comm, "create_comm", lambda **told: states.append(told["data"]) or create(**told)
    )
    return states


def made(renewed=lambda: None):
    return Figure(go.Figure(go.Bar(y=[1, 2]), {"width": 640}), {"displaylogo": False}, renewed)


def test_data_come_with_the_figure_and_no_script_of_megabytes(opened):
    library()
    opened.clear()
    made()
    (state,) = (told["state"] for told in opened)
    assert (state["_widget_data"][0]["y"], state["_widget_layout"]["width"]) == ([1, 2], 640)
    assert state["_config"] == {"displaylogo": False} and len(state["_esm"]) < 10_000
    assert library().source.startswith(str(go.FigureWidget._esm)[:1_000])


def test_a_browser_that_comes_later_is_told_what_is_shown_now():
    one = made()
    one.data[0].y, one.layout.width = [3, 4], 900
    state = one.get_state()
    assert (state["_widget_data"][0]["y"], state["_widget_layout"]["width"]) == ([3, 4], 900)


def test_a_closed_library_is_opened_again():
    before = library()
    before.close()
    assert library() is library() is not before


@pytest.mark.parametrize("hears", [True, False])
def test_a_figure_that_does_not_hear_is_sent_again(monkeypatch, hears):
    monkeypatch.setattr(figure, "DEAF_S", 0.01)
    renewed = []
    one = made(lambda: renewed.append(one.model_id))
    first = one.model_id

    async def shown():
        one._told(one, "shown", [])
        if hears:
            one._told(one, "hears", [])
        await asyncio.sleep(0.05)

    for _ in range(figure.RENEWALS + 2):  # a browser that never hears is not asked forever
        asyncio.run(shown())
    assert len(set(renewed)) == len(renewed) == (0 if hears else figure.RENEWALS)
    assert (one.model_id == first) == hears


def test_a_figure_closed_meanwhile_stays_closed(monkeypatch):
    monkeypatch.setattr(figure, "DEAF_S", 0.01)
    one = made()

    async def shown():
        one._told(one, "shown", [])
        one.close()
        await asyncio.sleep(0.05)

    asyncio.run(shown())
    assert one.comm is None
