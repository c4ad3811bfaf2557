"""The report of a sweep as one HTML file."""

import json
from html import escape
from itertools import zip_longest
from pathlib import Path

import plotly.graph_objects as go

from sim.report import markup as m
from sim.report.figures.swept import TITLES, swept_axis, swept_points
from sim.report.html import document
from sim.report.numbers import byte_unit
from sim.report.swept import Along, Swept, point, swept
from sim.report.swept_table import best_words, configurations
from sim.report.theme import Theme
from sim.specs.arguments import checked
from sim.specs.fields import short
from sim.specs.files import write_atomically
from sim.sweep.store import Store
from sim.units import grouped, many, percent

MOST_AXES = 24
MOST_FRONT = 50
MOST_REASONS = 50
MOST_GRID = 20_000


@checked
def save_sweep_html(store: Store, path: str | Path) -> Path:
    """Write the report of a store to `path` and return it; raises InputError where it cannot be written."""
    write_atomically(Path(path), sweep_page(swept(store), store))
    return Path(path)


def sweep_page(found: Swept, store: Store) -> str:
    """Return the report as text."""
    title = f"A sweep of {many(found.counts.total, 'configuration')}"
    header = f"{m.paragraph(_about(store), 'facts')}{m.paragraph(_answer(found), 'answer')}{_cards(found)}"
    body = [
        f"<header><h1>{escape(title)}</h1>{header}</header>\n",
        _points(found, store),
        _best(found),
        _axes(found),
        _reasons(found),
        _again(store),
    ]
    return document(title, "".join(body))


def _about(store: Store) -> str:
    grid, axes = store.head.grid, [path for path, _ in store.head.grid["axes"]]
    model, device = grid["model"], grid["cluster"].get("device")
    names = [
        short(model, 60) if isinstance(model, str) and "model" not in axes else "",
        short(device, 60) if isinstance(device, str) and "cluster.device" not in axes else "",
        f"engine {grid['engine']}{' (closed forms, without intervals)' if grid['engine'] == 'analytic' else ''}",
        f"{many(len(axes), 'axis', 'axes')}",
    ]
    return ", ".join(name for name in names if name)


def _answer(found: Swept) -> str:
    if not found.top:
        words = "No configuration fits" + (" so far" if found.counts.left else "")
        least = min(found.points["peak_memory_bytes"], default=0.0)
        return f"{words}: the least of their peaks is {byte_unit(least).text(least)}." if least else f"{words}."
    objective = TITLES[found.objective].removeprefix("best ")
    return f"Best {objective} of those that fit: {best_words(found.top[0], found.objective)}."


def _cards(found: Swept) -> str:
    counts = found.counts
    done = percent(counts.done / counts.total)
    items = [
        ("Done", grouped(counts.done), f"{done} of all; {grouped(counts.left)} left"),
        ("Predicted", grouped(counts.ok), f"{grouped(found.misfits)} of them do not surely fit"),
        ("Impossible", grouped(counts.impossible), "refused by a rule, counted below"),
        ("Failed", grouped(counts.failed), "errors of the program"),
        ("Left out", grouped(counts.filtered), "by the grid's filters"),
    ]
    return m.cards(items)


def _best(found: Swept) -> str:
    if not found.top:
        return ""
    words = m.paragraph(f"By {TITLES[found.objective].removeprefix('best ')}, of those that fit for sure.", "words")
    return m.section("Best configurations", words, _wide(configurations(found.top)))


def _wide(table: str) -> str:
    return f'<div class="wide">{table}</div>'


def _points(found: Swept, store: Store) -> str:
    if not len(found.points["number"]):
        return ""

    def draw(theme: Theme) -> go.Figure:
        return swept_points(found, theme, webgl=False)

    drawn = many(len(found.points["number"]), "configuration")
    caption = (
        f"Step time against peak memory of {drawn} out of {grouped(found.counts.ok)}, spread evenly"
        + ("; the line is the front of all that fit" if len(found.front["number"]) else "")
        + ". The axes show what fits or may fit, if there is any; after a double click everything."
    )
    numbers = found.front["number"][:MOST_FRONT].tolist()
    listed = configurations([point(store, n) for n in numbers]) if numbers else ""
    rest = len(found.front["number"]) - len(numbers)
    more = m.paragraph(f"and {many(rest, 'further configuration')} of the front", "words") if rest else ""
    return m.section(
        "Time against memory",
        m.figure("points", draw, caption),
        m.folded(f"The front ({grouped(len(found.front['number']))})", _wide(listed) + more) if listed else "",
    )


def _axes(found: Swept) -> str:
    varied = [along for along in found.along if len(along.labels) > 1][:MOST_AXES]
    if not varied or not found.top:
        return ""

    def one(n: int, along: Along) -> str:
        caption = f"The best along {along.path}, whatever the other axes"
        return m.figure(f"axis-{n}", lambda theme: swept_axis(found, along, theme), caption)

    drawn = [one(n, along) for n, along in enumerate(varied)]
    rows = [m.pair(*both) for both in zip_longest(drawn[::2], drawn[1::2], fillvalue="")]
    return m.section("The best along each axis", *rows)


def _reasons(found: Swept) -> str:
    ordered = sorted(found.reasons.items(), key=lambda item: (-item[1], item[0]))
    if not ordered:
        return ""
    rows = [[outcome, reason, grouped(n)] for (outcome, reason), n in ordered[:MOST_REASONS]]
    more = len(ordered) - len(rows)
    rest = m.paragraph(f"and {many(more, 'further reason')}", "words") if more else ""
    return m.section(
        "Why configurations have no prediction",
        m.table([("outcome", ""), ("reason", ""), ("configurations", "")], rows),
        rest,
    )


def _again(store: Store) -> str:
    grid = {k: v for k, v in store.head.grid.items() if v not in (None, [], {})}
    grid["axes"] = dict(store.head.grid["axes"])
    text = json.dumps(grid, indent=1, default=str)
    whole = len(text) <= MOST_GRID
    words = "Save the grid below as grid.json, then run:"
    if not whole:
        words = "Take the sweep's own grid file, which is too long for this page, as grid.json, then run:"
    return m.section(
        "Make this sweep again",
        m.paragraph(words, "words"),
        m.code("trainsim sweep grid.json --store sweep.db\ntrainsim report sweep.db --html report.html"),
        m.folded("grid.json" if whole else "the beginning of grid.json", m.code(short(text, MOST_GRID))),
    )
