"""Colours, hatches, the plotly template (light and dark) and the frame that every figure shares.

Colours keep a distance of 14 or more (CIE76) under prot-, deuter- and tritanopia, "other" excepted, which
is hatched. Red and green never carry meaning alone.
"""

import re
from collections.abc import Mapping
from html import escape
from textwrap import wrap
from typing import Any, Literal, NamedTuple

import plotly.graph_objects as go
import plotly.io as pio

from sim.report.numbers import shorten

Theme = Literal["light", "dark"]

PALETTE: Mapping[str, tuple[str, str]] = {
    "forward": ("#0072B2", "#3D9BDC"),
    "backward": ("#E69F00", "#F0B429"),
    "weight": ("#009E73", "#1FBF8F"),
    "communication": ("#CC79A7", "#D98BB6"),
    "recompute": ("#56B4E9", "#8FD0F5"),
    "optimizer": ("#8C510A", "#B5763A"),
    "idle": ("#E5E5E5", "#3A3A3A"),
    "other": ("#7F7F7F", "#9A9A9A"),
    "over": ("#B00020", "#FF8A80"),
    "text": ("#1F2933", "#E6E6E6"),
    "secondary": ("#5F6B7A", "#9AA5B1"),
    "edge": ("#5F6B7A", "#5F6B7A"),
    "page": ("#FFFFFF", "#111111"),
    "grid": ("#E4E7EB", "#2B2F33"),
}
"""Name -> (light, dark)."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
MARGIN = {"l": 64, "r": 12, "t": 56, "b": 44}
HEIGHT = 300
TRANSPARENT = "rgba(0,0,0,0)"
LETTERS, NARROW, LINE = 68, 48, 16
"""Of a line of a note in a figure of 500 pixels and in 360, which is what of it a window of 760 shows beside its list
of files, and a line's pixels; plotly.js cuts what is longer than the figure."""


class Look(NamedTuple):
    """How a kind of time or memory is drawn: palette name, hatch, text of the legend."""

    colour: str
    hatch: str
    label: str


TERMS: Mapping[str, Look] = {
    "compute": Look("forward", "", "compute"),
    "recompute": Look("recompute", "", "recompute"),
    "tp": Look("communication", "/", "tensor parallel (tp)"),
    "dp": Look("communication", "\\", "data parallel (dp)"),
    "pp": Look("communication", ".", "pipeline messages (pp)"),
    "cp": Look("communication", "-", "context parallel (cp)"),
    "ep": Look("communication", "x", "expert parallel (ep)"),
    "offload": Look("communication", "+", "offload"),
    "bubble": Look("idle", "", "pipeline idle (bubble)"),
    "optimizer": Look("optimizer", "", "optimizer"),
    "straggler": Look("idle", "/", "waiting for the slowest"),
    "other": Look("other", "|", "other"),
    "learned": Look("other", "-", "learned from executed plans"),
}
"""Terms of a step's time in the order in which they are drawn."""

CATEGORIES: Mapping[str, Look] = {
    "parameters": Look("forward", "", "parameters"),
    "gradients": Look("weight", "", "gradients"),
    "optimizer": Look("optimizer", "", "optimizer state"),
    "communication": Look("communication", "", "communication"),
    "offload": Look("communication", "+", "offload staging"),
    "activations": Look("backward", "", "activations"),
    "temporaries": Look("recompute", "", "temporaries"),
}
"""Categories of memory, those that stay first, so that the moving ones are drawn on top."""

OUTSIDE = Look("other", "|", "reserve, context")
"""Device memory that is in no tensor: the allocator's reserve, communicators, the context."""


STYLES = (
    ("forward", "circle"),
    ("backward", "square"),
    ("weight", "diamond"),
    ("communication", "triangle-up"),
    ("recompute", "cross"),
    ("optimizer", "x"),
    ("over", "star"),
    ("other", "triangle-down"),
)
"""Colour and symbol of tables or kernels in turn: the symbol tells them apart without colour."""


def colour(name: str, theme: Theme) -> str:
    """Return the palette's colour `name`."""
    return PALETTE[name][theme == "dark"]


def mixed(name: str, theme: Theme, share: float) -> str:
    """Return a colour mixed with the page: `share` 1 is the colour itself, 0 the page."""
    parts = [bytes.fromhex(colour(c, theme)[1:]) for c in (name, "page")]
    mix = (round(share * a + (1 - share) * b) for a, b in zip(*parts, strict=True))
    return "#" + "".join(f"{part:02X}" for part in mix)


def _template(theme: Theme) -> go.layout.Template:
    text, secondary, grid = (colour(c, theme) for c in ("text", "secondary", "grid"))
    axis = {
        "gridcolor": grid,
        "linecolor": grid,
        "zeroline": False,
        "nticks": 8,
        "separatethousands": True,  # as all other numbers: 40 000, not 40k
        "minexponent": 6,
        "automargin": True,  # names of rows and columns are of any length
        "tickfont": {"color": secondary},
        "title": {"font": {"color": secondary, "size": 12}, "standoff": 8},
    }
    # In the whole figure: beside long names of rows the plot is too narrow for a legend.
    legend = {"orientation": "h", "xref": "container", "x": 0.01, "xanchor": "left"}
    legend |= {"yref": "container", "y": 0.995, "yanchor": "top"}
    return go.layout.Template(
        layout={
            "font": {"family": FONT, "size": 12, "color": text},
            "title": {"font": {"size": 14}, "x": 0},
            "paper_bgcolor": TRANSPARENT,
            "plot_bgcolor": TRANSPARENT,
            "colorway": [colour(c, theme) for c in ("forward", "backward", "weight", "communication")],
            "xaxis": axis,
            "yaxis": axis,
            "legend": legend | {"itemsizing": "constant", "traceorder": "normal"},
            "margin": MARGIN,
            "hoverlabel": {"align": "left", "namelength": -1, "font": {"family": FONT, "size": 12}},
            "separators": ".\u2009",
            "modebar": {"bgcolor": TRANSPARENT, "color": secondary, "activecolor": text},
        }
    )


for _theme in ("light", "dark"):
    pio.templates[f"trainsim_{_theme}"] = _template(_theme)


def frame(theme: Theme, height: int, x_title: str, y_title: str, **layout: Any) -> go.Figure:
    """Return an empty figure with the shared template, fixed margins and axis titles."""
    axes = {"xaxis": {"title": {"text": x_title}}, "yaxis": {"title": {"text": y_title}}}
    # In one piece: every later change would be checked together with the whole template.
    return go.Figure(layout=go.Layout(template=f"trainsim_{theme}", height=height, **layout, **axes))


def marker(look: Look, theme: Theme) -> dict[str, Any]:
    """Return a bar's marker: colour, 1 px edge (some colours are under 3:1 on white), hatch."""
    style: dict[str, Any] = {
        "color": colour(look.colour, theme),
        "line": {"width": 1, "color": colour("edge", theme)},
    }
    return style | ({"pattern": pattern(look, theme)} if look.hatch else {})


def outline(theme: Theme) -> dict[str, Any]:
    """Return the marker of a bar of the plan that is compared with: a frame that lets through what is below it."""
    return {"color": TRANSPARENT, "line": {"width": 2, "color": colour("text", theme)}}


def pattern(look: Look, theme: Theme) -> dict[str, Any]:
    """Return the hatch of a filled area or bar: lines of the page's colour over the look's colour."""
    return {
        "shape": look.hatch,
        "bgcolor": colour(look.colour, theme),
        "fgcolor": colour("page", theme),
        "fillmode": "replace",
        "size": 6,
        "solidity": 0.25,
    }


def legend_entry(figure: go.Figure, look: Look, theme: Theme, group: str | None = None) -> None:
    """Add a legend entry without data; clicking it hides the traces of `group`."""
    figure.add_bar(x=[None], y=[None], name=look.label, marker=marker(look, theme), hoverinfo="skip", legendgroup=group)


def overflow_pattern(theme: Theme) -> dict[str, Any]:
    """Return the hatch of what lies over the capacity; it veils what is below, so that it stands out."""
    red, green, blue = bytes.fromhex(colour("page", theme)[1:])
    veil = f"rgba({red},{green},{blue},0.5)"
    return {"shape": "x", "bgcolor": veil, "fgcolor": colour("over", theme), "size": 7, "solidity": 0.35}


def whiskers(value: Any, low: Any, high: Any, theme: Theme) -> dict[str, Any]:
    """Return the error bars of an 80 % interval, all in axis units."""
    style = {"color": colour("text", theme), "thickness": 1.5, "width": 3}
    return {"array": high - value, "arrayminus": value - low, **style}


def label(text: str, theme: Theme, shade: str = "text") -> dict[str, Any]:
    """Return an annotation's text that stays readable over bars and areas."""
    back = colour("page", theme)
    return {"text": text, "bgcolor": back, "opacity": 0.9, "borderpad": 1, "font": {"color": colour(shade, theme)}}


def safe(text: str) -> str:
    """Return text from input for a figure: 40 characters, markup escaped (plotly renders some tags)."""
    return escape(shorten(text), quote=False)


def wrapped(text: str, letters: int = LETTERS) -> tuple[str, int]:
    """Return a note in lines of so many letters, and the pixels that its lines after the first need."""
    whole = re.sub(r"(?<=\d) (?=[a-z])", "\u00a0", text)  # a number keeps its unit
    lines = wrap(whole, letters, break_long_words=False, break_on_hyphens=False)
    return "<br>".join(lines), LINE * (len(lines) - 1)


def capacity_line(figure: go.Figure, at: float, text: str, theme: Theme) -> None:
    """Draw the labelled line of the device's capacity across `figure` at `at` (axis units)."""
    across = {"xref": "x domain", "yref": "y"}
    # As plotly's `add_hline` does, which looks through all axes for it and takes four times as long.
    line = {"color": colour("text", theme), "width": 1.5}
    figure.add_shape(type="line", x0=0, x1=1, y0=at, y1=at, line=line, **across)
    place = {"x": 1, "y": at, "xanchor": "right", "yanchor": "bottom", "yshift": 2, "showarrow": False}
    figure.add_annotation(**label(text, theme), **place, **across)
