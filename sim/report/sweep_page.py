"""The report of a sweep as one HTML file."""

import json
from html import escape
from pathlib import Path

import plotly.graph_objects as go

from sim.report import markup as m
from sim.report.figures.swept import TITLES, swept_axis, swept_points
from sim.report.html import document
from sim.report.numbers import byte_unit, time_unit
from sim.report.swept import Along, Point, Swept, swept
from sim.report.theme import Theme
from sim.specs.arguments import checked
from sim.specs.fields import short
from sim.specs.files import write_atomically
from sim.sweep.outcome import FITS
from sim.sweep.store import Store
from sim.units import digits3, percent

MOST_AXES = 24
MOST_REASONS = 50
MOST_GRID = 20_000


@checked
def save_sweep_html(store: Store, path: str | Path) -> Path:
    """Write the report of a store to `path` and return it; raises OSError where it cannot be written."""
    write_atomically(Path(path), sweep_page(swept(store), store))
    return Path(path)


def sweep_page(found: Swept, store: Store) -> str:
    """Return the report as text."""
    title = f"A sweep of {_many(found.counts.total, 'configuration')}"
    body = [
        f"<header><h1>{escape(title)}</h1>{m.paragraph(_answer(found), 'answer')}{_cards(found)}</header>\n",
        _best(found),
        _points(found),
        _axes(found),
        _reasons(found),
        _again(store),
    ]
    return document(title, "".join(body))


def _answer(found: Swept) -> str:
    if not found.top:
        return "No configuration fits."
    best = found.top[0]
    return f"The best that fits takes {_time(best)} a step: {_named(best)}."


def _many(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def _named(point: Point) -> str:
    return ", ".join(f"{path} {short(str(value), 60)}" for path, value in point.values.items())


def _time(point: Point) -> str:
    value = point.numbers["step_time_s"]
    return time_unit(value).text(value)


def _cards(found: Swept) -> str:
    counts = found.counts
    done = percent(counts.done / counts.total)
    items = [
        ("Done", f"{counts.done:,}", f"{done} of all; {counts.left:,} left"),
        ("Predicted", f"{counts.ok:,}", f"{found.misfits:,} of them do not surely fit"),
        ("Impossible", f"{counts.impossible:,}", "refused by a rule, counted below"),
        ("Failed", f"{counts.failed:,}", "errors of the program"),
        ("Left out", f"{counts.filtered:,}", "by the grid's filters"),
    ]
    return m.cards(items)


def _best(found: Swept) -> str:
    if not found.top:
        return ""
    paths = list(found.top[0].values)
    heads = [("#", "the configuration's number"), *((path, "") for path in paths), ("step time", "")]
    heads += [("peak memory", "allocated, fullest rank"), ("fits", ""), ("MFU", "Megatron's convention")]
    heads += [("tokens/s and GPU", ""), ("USD per 1e9 tokens", "")]
    rows = [
        [
            str(p.number), *(short(str(p.values[path]), 60) for path in paths), _time(p),
            byte_unit(p.numbers["peak_memory_bytes"]).text(p.numbers["peak_memory_bytes"]),
            FITS[int(p.numbers["fits"])], percent(p.numbers["mfu"]), digits3(p.numbers["tokens_per_s_per_gpu"]),
            digits3(p.numbers["usd_per_1e9_tokens"]) if p.numbers["usd_per_1e9_tokens"] > 0 else "not known",
        ]
        for p in found.top
    ]  # fmt: skip
    return m.section(
        "Best configurations", m.paragraph(f"By {TITLES[found.objective]}.", "words"), m.table(heads, rows)
    )


def _points(found: Swept) -> str:
    if not len(found.points["number"]):
        return ""

    def draw(theme: Theme) -> go.Figure:
        return swept_points(found, theme, webgl=False)

    caption = (
        f"Step time against peak memory of {_many(len(found.points['number']), 'configuration')} out of "
        f"{found.counts.ok:,}, spread evenly; the line is the front of all that fit"
    )
    return m.section("Time against memory", m.figure("points", draw, caption))


def _axes(found: Swept) -> str:
    varied = [along for along in found.along if len(along.labels) > 1][:MOST_AXES]
    if not varied or not found.top:
        return ""

    def one(n: int, along: Along) -> str:
        caption = f"The best along {along.path}, whatever the other axes; none where nothing fits"
        return m.figure(f"axis-{n}", lambda theme: swept_axis(found, along, theme), caption)

    return m.section("The best along each axis", *(one(n, along) for n, along in enumerate(varied)))


def _reasons(found: Swept) -> str:
    ordered = sorted(found.reasons.items(), key=lambda item: (-item[1], item[0]))
    if not ordered:
        return ""
    rows = [[outcome, reason, f"{n:,}"] for (outcome, reason), n in ordered[:MOST_REASONS]]
    more = len(ordered) - len(rows)
    rest = m.paragraph(f"and {_many(more, 'further reason')}", "words") if more else ""
    return m.section(
        "Why configurations have no prediction",
        m.table([("outcome", ""), ("reason", ""), ("configurations", "")], rows),
        rest,
    )


def _again(store: Store) -> str:
    grid = {k: v for k, v in store.head.grid.items() if v not in (None, [], {})}
    grid["axes"] = dict(store.head.grid["axes"])
    text = short(json.dumps(grid, indent=1, default=str), MOST_GRID)
    return m.section(
        "Make this sweep again",
        m.paragraph("Save the grid below as grid.json, then run:", "words"),
        m.code("trainsim sweep grid.json --store sweep.db\ntrainsim report sweep.db --html report.html"),
        m.folded("grid.json", m.code(text)),
    )
