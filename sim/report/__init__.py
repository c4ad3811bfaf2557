"""Answers for a reader: sentences, tables, figures, traces and the self-contained page.

`text` and `table` hold words and rows, `figures` the plotly figures, `trace` the traces, `html` the
page. The names below are imported when first used, so that a command that only prints a table loads no
plotly.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.report.figures import breakdown, difference, front, memory, memory_peaks, timeline, timeline_difference
    from sim.report.html import save_html
    from sim.report.ranked import ranking_table
    from sim.report.table import ranking, stages
    from sim.report.text import answer, answer_trained, answer_tuned, refusal
    from sim.report.trace import save_trace

_HOME = {
    "answer": "sim.report.text",
    "answer_trained": "sim.report.text",
    "answer_tuned": "sim.report.text",
    "breakdown": "sim.report.figures",
    "difference": "sim.report.figures",
    "front": "sim.report.figures",
    "memory": "sim.report.figures",
    "memory_peaks": "sim.report.figures",
    "ranking": "sim.report.table",
    "ranking_table": "sim.report.ranked",
    "refusal": "sim.report.text",
    "save_html": "sim.report.html",
    "save_trace": "sim.report.trace",
    "stages": "sim.report.table",
    "timeline": "sim.report.figures",
    "timeline_difference": "sim.report.figures",
}

__all__ = [
    "answer",
    "answer_trained",
    "answer_tuned",
    "breakdown",
    "difference",
    "front",
    "memory",
    "memory_peaks",
    "ranking",
    "ranking_table",
    "refusal",
    "save_html",
    "save_trace",
    "stages",
    "timeline",
    "timeline_difference",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'sim.report' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
