"""Pieces of the page. Every string passes through `escape`; what returns here is finished HTML."""

import json
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

import plotly.graph_objects as go

from sim.report.theme import Theme
from sim.units import THIN_SPACE

NARROW_NO_BREAK_SPACE = "\u202f"


def section(title: str, *parts: str) -> str:
    """Return a titled section."""
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>\n"


def pair(left: str, right: str, kind: str = "") -> str:
    """Return two parts side by side where the window is wide enough; kind "text" needs less than figures."""
    return f'<div class="pair {escape(kind)}"><div>{left}</div><div>{right}</div></div>'


def heading(text: str) -> str:
    """Return a third-level heading."""
    return f"<h3>{escape(text)}</h3>"


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph of the CSS class `kind`."""
    return f'<p class="{escape(kind)}">{escape(text)}</p>'


def bullets(items: Iterable[str]) -> str:
    """Return a list."""
    return "<ul>" + "".join(f"<li>{escape(i)}</li>" for i in items) + "</ul>"


def folded(summary: str, inside: str) -> str:
    """Return a part that opens on a click (and in print)."""
    return f"<details><summary>{escape(summary)}</summary>{inside}</details>"


def code(text: str) -> str:
    """Return preformatted text."""
    return f"<pre><code>{escape(text)}</code></pre>"


class Card(NamedTuple):
    """A number of the strip: what it is, its value, its interval or remark; badge: measured, fitted or assumed.

    why: how it comes about, shown where the pointer rests on it.
    """

    label: str
    value: str
    note: str
    badge: str = ""
    why: str = ""


def cards(items: Iterable[Card | tuple[str, str, str]]) -> str:
    """Return the strip of cards."""
    return f'<div class="cards">{"".join(_card(Card(*item)) for item in items)}</div>'


def _card(card: Card) -> str:
    badge = f' <span class="badge">{escape(card.badge)}</span>' if card.badge else ""
    return (
        f'<div class="card" title="{escape(card.why)}"><span class="label">{escape(card.label)}{badge}</span>'
        f'<span class="value">{escape(card.value)}</span><span class="note">{escape(_whole(card.note))}</span></div>'
    )


def _whole(text: str) -> str:
    """Return text in whose numbers no line ends: a browser may break at a thin space."""
    return text.replace(THIN_SPACE, NARROW_NO_BREAK_SPACE)


def table(headings: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of (heading, explanation) columns."""
    return f"<table>{head(headings)}<tbody>{''.join(row(cells) for cells in rows)}</tbody></table>"


def head(headings: Sequence[tuple[str, str]]) -> str:
    """Return a table's head; explanations appear as tooltips."""
    cells = (
        f'<th scope="col">{f"""<abbr title="{escape(why)}">{escape(name)}</abbr>""" if why else escape(name)}</th>'
        for name, why in headings
    )
    return f"<thead><tr>{''.join(cells)}</tr></thead>"


def row(cells: Iterable[str], kind: str = "") -> str:
    """Return one row of a table."""
    return f'<tr class="{escape(kind)}">' + "".join(f"<td>{escape(c)}</td>" for c in cells) + "</tr>"


def figure(name: str, draw: Callable[[Theme], go.Figure], caption: str, data: str = "") -> str:
    """Return a figure with its text alternative.

    draw: makes the figure in a theme; the page keeps the light one and the values that differ in the dark one.
    data: finished HTML of the numbers behind it, folded.
    """
    light, dark = (json.loads(draw(theme).to_json()) for theme in ("light", "dark"))
    height = int(light["layout"]["height"])
    held = script_json({"figure": light, "dark": differences(light, dark)})
    return (
        f'<figure><div class="plot" id="{escape(name)}" style="height:{height}px" role="img" '
        f'aria-label="{escape(caption)}"></div>'
        f'<script type="application/json" data-plot="{escape(name)}">{held}</script>'
        f"<figcaption>{escape(caption)}</figcaption></figure>" + (folded("Data", data) if data else "")
    )


def script_json(data: Any) -> str:
    """Return JSON that cannot end the script element it stands in."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def differences(one: Any, other: Any, path: tuple[str | int, ...] = ()) -> list[tuple[list[str | int], Any]]:
    """Return (path, value in `other`) wherever two plain structures of the same shape differ."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [d for key in one for d in differences(one[key], other[key], (*path, key))]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [d for i, (a, b) in pairs if a != b for d in differences(a, b, (*path, i))]
    return [] if one == other else [(list(path), other)]
