"""A panel, its knobs and its tabs."""

import pytest

import sim
from sim.specs import Plan

PLAN = Plan(tp=8, pp=4, virtual_stages=2, global_batch=1024, zero=1, recompute="selective")


@pytest.fixture
def panel(gpt3, h100s):
    shown = sim.whatif(gpt3, h100s, PLAN)
    shown.sensor.width = 900  # as the browser tells once it shows it
    return shown


def set_knob(panel, **values):
    for name, value in values.items():
        panel.plans.knobs[name].value = value


def open_tab(panel, title):
    panel.panes.selected_index = list(panel.panes.titles).index(title)
    return [canvas.plot for canvas in panel.panes.panes[title].canvases]
