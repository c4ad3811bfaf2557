"""The export buttons' own half: CSV and HTML on request, nothing for what nobody offers."""

import gzip

import plotly.graph_objects as go
import pytest

from sim.widgets.export import ExportBar


@pytest.fixture
def bar(monkeypatch):
    figure = go.Figure(go.Bar(x=[1, 2], y=[3, 4], name="a"), layout={"height": 200})
    one = ExportBar(lambda theme: figure, "small-8xh100", "a sentence")
    one.sent = []
    monkeypatch.setattr(one, "send", lambda content, buffers=None: one.sent.append((content, buffers)))
    return one


@pytest.mark.parametrize(
    ("wanted", "kind", "start"), [("csv", "text/csv", "trace,x,y\r\na,1,3\r\n"), ("html", "text/html", "<!DOCTYPE")]
)
def test_a_file_is_sent(bar, wanted, kind, start):
    bar._handle_custom_msg({"format": wanted}, [])
    ((content, (packed,)),) = bar.sent
    assert content == {"name": f"small-8xh100.{wanted}", "type": kind}
    assert gzip.decompress(packed).decode().startswith(start)
    assert len(packed) < 2_000_000


@pytest.mark.parametrize("content", [{"format": "exe"}, {}, "csv", None])
def test_what_is_not_offered_is_ignored(bar, content):
    bar._handle_custom_msg(content, [])
    assert bar.sent == []


def test_no_figure_is_said(bar):
    bar._draw = lambda theme: None
    bar._handle_custom_msg({"format": "csv"}, [])
    assert bar.sent == [({"error": "no figure is shown"}, None)]
