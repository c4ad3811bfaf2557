"""Figures of the input pipeline: where the time of an epoch goes, and which rate decides, along one axis."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import plotly.graph_objects as go

from sim.loading import Study, WhatIf
from sim.report.figures.grid import cells
from sim.report.theme import HEIGHT, MARGIN, Look, Theme, colour, frame, marker, mixed, safe
from sim.specs.arguments import checked
from sim.specs.fields import InputError
from sim.specs.loading import Cache
from sim.units import GB

AXES = {
    "cache": ("cached files (GB)", GB),
    "cores": ("cores", 1.0),
    "storage": ("storage", 1.0),
    "gpus": ("times as many devices", 1.0),
}
PARTS = (
    ("compute_fraction", Look("forward", "", "compute")),
    ("prep_stall_fraction", Look("backward", "/", "prep stall")),
    ("fetch_stall_fraction", Look("communication", "x", "fetch stall")),
)
RATES = (
    ("fetch_samples_per_s", "fetching alone (F)", "communication", "dash"),
    ("prep_samples_per_s", "preparing alone (P)", "backward", "dashdot"),
    ("compute_samples_per_s", "training alone (G)", "forward", "dot"),
    ("samples_per_s", "all together", "text", "solid"),
)
Part = Literal["compute", "prep", "fetch"]
SHADES: Mapping[Part, str] = {"compute": "forward", "prep": "backward", "fetch": "communication"}
MOST = 0.7
"""Share of the colour in the fullest cells; numbers stay readable on it."""
ABOVE = 2.5
"""Rates are drawn up to so many times what training takes: what is faster decides nothing."""


@checked
def stalls(rows: Sequence[WhatIf], theme: Theme = "light") -> go.Figure:
    """Return the shares of an epoch's time (%) for every setting: compute, prep stall and fetch stall, stacked.

    Raises:
        InputError: there are no rows.
    """
    x, title = _axis(rows)
    figure = frame(theme, HEIGHT + 40, title, "share of an epoch (%)", barmode="stack", bargap=0.15)
    for name, look in PARTS:
        figure.add_bar(
            x=x,
            y=[100 * getattr(row, name) for row in rows],
            name=look.label,
            marker=marker(look, theme),
            hovertemplate=f"{safe(title)} %{{x}}<br>{look.label}: %{{y:.1f}} %<extra></extra>",
        )
    figure.update_layout(legend_traceorder="normal")
    figure.update_xaxes(type="category", showgrid=False)
    return figure.update_yaxes(range=[0, 100])


@checked
def loading_rates(rows: Sequence[WhatIf], theme: Theme = "light") -> go.Figure:
    """Return samples/s for every setting: of fetching, preparing and training each alone, and of all together.

    Raises:
        InputError: there are no rows.
    """
    x, title = _axis(rows)
    figure = frame(theme, HEIGHT + 40, title, "samples/s")
    most = ABOVE * max(row.compute_samples_per_s for row in rows)
    for name, label, shade, dash in RATES:
        figure.add_scatter(
            x=x,
            y=[min(getattr(row, name), 1e300) for row in rows],
            name=label,
            mode="lines+markers",
            line={"color": colour(shade, theme), "dash": dash, "width": 3 if dash == "solid" else 2},
            marker={"color": colour(shade, theme), "size": 6},
            hovertemplate=f"{safe(title)} %{{x}}<br>{label}: %{{y:,.4~r}}<extra></extra>",
        )
    figure.update_xaxes(type="category")
    return figure.update_yaxes(range=[0, most])


@checked
def stall_map(
    found: Study,
    part: Part = "fetch",
    policy: Cache = "lru",
    storage: str = "sata-ssd",
    cores: int = 24,
    theme: Theme = "light",
) -> go.Figure:
    """Return the share of an epoch (%) in which each network waits, by cached share of its first dataset.

    Raises:
        InputError: the study has no such storage or number of cores.
    """
    table = found.table(part, policy, storage, cores)
    cases = zip(found.cases, table.items(), strict=True)
    first = dict(row for case, row in cases if case.data == case.network.datasets[0])
    figure = frame(theme, 110 + 30 * len(first), "cached share of the dataset", "", margin=MARGIN | {"t": 24})
    values = [[100 * value for value in row.values()] for row in first.values()]
    shades = [colour("page", theme), mixed(SHADES[part], theme, MOST)]
    hover = f"<b>%{{y}}</b><br>%{{x}} cached<br>{part}: %{{z:.1f}} % of an epoch<extra></extra>"
    columns = list(next(iter(first.values())))
    cells(figure, columns, list(first), values, (0, 100), shades, "%{z:.0f}", hover, theme)
    return figure.update_yaxes(autorange="reversed", tickmode="linear", dtick=1)


def _axis(rows: Sequence[WhatIf]) -> tuple[list[Any], str]:
    """Return the settings as they are written below the axis, and its title."""
    if not rows:
        raise InputError("rows", [], "one setting or more (sim.loading.what_if)")
    title, scale = AXES[rows[0].axis]
    return [safe(row.value) if isinstance(row.value, str) else f"{row.value / scale:.4g}" for row in rows], title
