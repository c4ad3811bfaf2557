"""Every input of a panel says what it is: as a knob, or by a label, which may be one that is only read out."""

import ipywidgets as w
import plotly.graph_objects as go
from ipywidgets.widgets.widget_description import DescriptionWidget

import sim
from sim.widgets.knob import Knob

READ = (w.HTML, w.FloatProgress, w.Button)
"""What is described, and no input."""


def inputs(widget):
    """Yield what is set by hand in a panel, a knob as one."""
    if isinstance(widget, Knob) or (isinstance(widget, DescriptionWidget) and not isinstance(widget, READ)):
        yield widget
        return
    for child in getattr(widget, "children", ()):
        yield from inputs(child)


def test_every_input_of_every_panel_is_named(panel, tmp_path):
    explorer = sim.explore(lambda theme, n: go.Figure(), n=[1, 2])
    view = sim.watch_sweep(sim.notebook_file("jobs/sweeps/llama3-70b.yaml"), tmp_path / "none.db")
    for one, least in ((panel, 45), (explorer, 1), (view, 3)):
        found = list(inputs(one))
        assert len(found) >= least
        names = [knob.words if isinstance(knob, Knob) else knob.description for knob in found]
        assert all(name.strip() for name in names), names
