"""Rented devices: prices with a job's path, what strategies save, what the published study left out, trade-offs."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import ceil, floor, log10
from typing import Any, Literal

import numpy as np
import plotly.graph_objects as go

from sim.market.front import Traded
from sim.market.grid import Grid
from sim.market.offers import Floats, Offer
from sim.market.optimum import Optimum
from sim.market.results import Rental, Stay
from sim.report.market import moment
from sim.report.numbers import signed
from sim.report.theme import HEIGHT, MARGIN, STYLES, Theme, colour, frame, mixed, safe
from sim.specs.arguments import checked
from sim.specs.fields import InputError
from sim.units import HOUR_S, digits3, lasting
from sim.validation.market_results import BASELINE, BOUND, LeftOut, Reductions

LINES = 30
"""Offers drawn one by one; the others are a band."""
DASHES = ("solid", "dot", "dash", "dashdot", "longdash")
"""Of clouds."""
AROUND = 0.15
"""So much of its time is shown before and after a rental."""
EDGE = 0.85
"""From that share of the hours on labels stand left of their points: to the right the figure ends."""

Unit = Literal["device", "work"]
UNITS: Mapping[Unit, str] = {
    "device": "USD for an hour of a device",
    "work": "USD for what the fastest device does in an hour",
}


@checked
def market_prices(rental: Rental, grid: Grid, by: Unit = "device", theme: Theme = "light") -> go.Figure:
    """Return what offers cost over time, a line each, and on them the job's path.

    At most 30 lines: the offers of the path, then those cheapest in the mean; the others are a grey band. by: "work" is
    the price of the same work on every device, which is what decides.

    Raises:
        InputError: `by` is neither, the rental is not of this grid, or nothing is offered all the while.
    """
    prices, shown = _prices(rental, grid, by), _shown_steps(rental, grid)
    number = {offer: n for n, offer in enumerate(grid.offers)}
    strange = next((stay.offer.name for stay in rental.path if stay.offer not in number), None)
    if strange or not len(shown):
        raise InputError("rental", strange or moment(rental.begin_s), "a rental of this grid")
    times = [_date(grid.begin_s + grid.step_s * step) for step in [*shown, shown[-1] + 1]]
    drawn, others = _chosen(rental, prices[shown], number)
    if not drawn:
        raise InputError("rental", moment(rental.begin_s), "a rental at a time when something is offered")
    figure = frame(theme, HEIGHT + 160, "", UNITS[by])
    if others:
        _band(figure, times, prices[np.ix_(shown, others)], theme)
    _lines(figure, times, prices[shown], [(n, grid.offers[n]) for n in drawn], theme)
    _path(figure, rental, (prices, number), grid, theme)
    held = prices[np.ix_(shown, drawn)]
    low, high = log10(0.85 * float(np.nanmin(held))), log10(1.15 * float(np.nanmax(held)))
    ticks = [n * 10.0**k for k in range(floor(low), ceil(high) + 1) for n in (1, 2, 3, 5, 7)]
    figure.update_yaxes(type="log", range=[low, high], tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks])
    return figure.update_xaxes(range=[times[0], times[-1]])


def _prices(rental: Rental, grid: Grid, by: Unit) -> Floats:
    """Return the prices (K, N); nan where an offer is of no use."""
    prices = np.where(np.isfinite(grid.seen), grid.taken, np.nan)
    if by == "device":
        return prices
    rates = rental.job.rates(grid.offers)
    paid = np.array([rental.job.paid(offer) for offer in grid.offers]) / rental.job.gpus
    return np.asarray(prices * paid * rates.max() / np.where(rates > 0, rates, np.nan))


def _shown_steps(rental: Rental, grid: Grid) -> list[int]:
    around = AROUND * rental.hours * HOUR_S
    first, last = ((time_s - grid.begin_s) / grid.step_s for time_s in (rental.begin_s - around, _end(rental) + around))
    return list(range(max(0, int(first)), min(grid.steps, int(last) + 1)))


def _end(rental: Rental) -> float:
    return rental.begin_s + rental.hours * HOUR_S


def _chosen(rental: Rental, prices: Floats, number: Mapping[Offer, int]) -> tuple[list[int], list[int]]:
    """Return the offers with a line of their own, and the others; those that are never offered are neither."""
    offered = np.flatnonzero(np.isfinite(prices).any(axis=0))
    mean = np.nanmean(prices[:, offered], axis=0)
    held = dict.fromkeys(number[stay.offer] for stay in rental.path)
    order = [*held, *(n for n in offered[np.argsort(mean, kind="stable")].tolist() if n not in held)]
    return order[:LINES], order[LINES:]


def _date(time_s: float) -> datetime:
    return datetime.fromtimestamp(time_s, UTC).replace(tzinfo=None)


def _band(figure: go.Figure, times: Sequence[datetime], prices: Floats, theme: Theme) -> None:
    """Fill from the lowest to the highest price of each step."""
    gone = np.isnan(prices)
    lowest, highest = np.where(gone, np.inf, prices).min(axis=1), np.where(gone, -np.inf, prices).max(axis=1)
    for ends, fill in ((_gaps(lowest), None), (_gaps(highest), "tonexty")):
        figure.add_scatter(
            x=times,
            y=[*ends, ends[-1]],
            name=f"{prices.shape[1]} others",
            showlegend=fill is not None,
            mode="lines",
            line={"width": 0, "shape": "hv", "color": colour("other", theme)},
            fill=fill,
            fillcolor=mixed("other", theme, 0.25),
            hoverinfo="skip",
        )


def _lines(
    figure: go.Figure, times: Sequence[datetime], prices: Floats, drawn: Sequence[tuple[int, Offer]], theme: Theme
) -> None:
    """Draw a step line for each offer: its colour is the device, its dash the cloud."""
    devices, clouds = (sorted({getattr(offer, name) for _, offer in drawn}) for name in ("device", "cloud"))
    listed: set[str] = set()
    for n, offer in drawn:
        group = f"{offer.device}, {offer.cloud}"
        x, y = _changes(times, prices[:, n])
        figure.add_scatter(
            x=x,
            y=y,
            name=safe(group),
            legendgroup=group,
            showlegend=group not in listed,
            mode="lines",
            line={
                "color": mixed(STYLES[devices.index(offer.device) % 7][0], theme, 0.75),
                "dash": DASHES[clouds.index(offer.cloud) % len(DASHES)],
                "width": 1,
                "shape": "hv",
            },
            hovertemplate=f"{safe(offer.name)}<br>%{{x}}: %{{y:.4~g}} USD<extra></extra>",
        )
        listed.add(group)


def _changes(times: Sequence[datetime], prices: Floats) -> tuple[list[datetime], list[float | None]]:
    """Return the steps at which a price changes, the last one and the end."""
    with np.errstate(invalid="ignore"):
        new = np.append(True, ~((np.diff(prices) == 0) | (np.isnan(prices[1:]) & np.isnan(prices[:-1]))))
    at, held = [*np.flatnonzero(new).tolist(), len(prices)], _gaps(prices)
    return [times[k] for k in at], [*(held[k] for k in at[:-1]), held[-1]]


def _gaps(prices: Floats) -> list[float | None]:
    """Return prices, None where there is none."""
    return [value if np.isfinite(value) else None for value in prices.tolist()]


def _path(figure: go.Figure, rental: Rental, of: tuple[Floats, Mapping[Offer, int]], grid: Grid, theme: Theme) -> None:
    """Draw where the job was: a thick line for each stay, and how it began and ended."""
    prices, number = of
    x: list[datetime | None] = []
    y: list[float | None] = []
    text: list[str] = []
    for stay in rental.path:
        first = int((stay.begin_s - grid.begin_s) / grid.step_s + 1e-9)
        last = max(first, int(np.ceil((stay.end_s - grid.begin_s) / grid.step_s - 1e-9)) - 1)
        begins = [stay.begin_s, *(grid.begin_s + grid.step_s * k for k in range(first + 1, last + 1))]
        held = _gaps(prices[first : last + 1, number[stay.offer]])
        x += [*map(_date, [*begins, stay.end_s]), None]
        y += [*held, held[-1], None]
        text += [_stay_words(stay)] * (len(begins) + 1) + [""]
    line = {"color": colour("text", theme), "width": 4, "shape": "hv"}
    hover = "%{text}<br>%{x}: %{y:.4~g} USD<extra></extra>"
    figure.add_scatter(x=x, y=y, name="the job", mode="lines", line=line, text=text, hovertemplate=hover)
    for name, why, symbol, at in (
        ("begins, moves", ("moved", "finished", "preempted", "cut"), "circle", 0),
        ("is preempted", ("preempted",), "x-thin", 1),
        ("has ended", ("finished",), "square", 1),
    ):
        stays = [stay for stay in rental.path if stay.ended in why]
        steps = [int(((stay.begin_s, stay.end_s)[at] - grid.begin_s) / grid.step_s - 1e-9 * at) for stay in stays]
        figure.add_scatter(
            x=[_date((stay.begin_s, stay.end_s)[at]) for stay in stays],
            y=[float(prices[k, number[stay.offer]]) for k, stay in zip(steps, stays, strict=True)],
            name=name,
            showlegend=bool(stays),
            mode="markers",
            marker={"symbol": symbol, "size": 9, "color": colour("page", theme),
                    "line": {"width": 2, "color": colour("text", theme)}},
            text=[_stay_words(stay) for stay in stays],
            hovertemplate="%{text}<extra></extra>",
        )  # fmt: skip


def _stay_words(stay: Stay) -> str:
    begin, end = moment(stay.begin_s), moment(stay.end_s)
    return f"<b>{safe(stay.offer.name)}</b><br>{begin} to {end}: {digits3(stay.usd)} USD, {stay.ended}"


@checked
def market_strategies(found: Reductions, published: Reductions | None = None, theme: Theme = "light") -> go.Figure:
    """Return how many times less than the baseline each model costs by strategy; published ones as open circles.

    Raises:
        InputError: there are no strategies.
    """
    names = [name for name in found if name != BASELINE]
    if not names:
        raise InputError("found", list(found), f"one strategy or more beside {BASELINE}")
    models = list(dict.fromkeys(model for name in names for model in found[name]))
    title = "times as cheap as the cheapest V100 of one cloud"
    figure = frame(theme, 120 + 34 * len(models), title, "", margin=MARGIN | {"t": 40})
    for number, name in enumerate(names):
        shade, symbol = STYLES[number % len(STYLES)]
        held = [model for model in models if model in found[name]]
        figure.add_scatter(
            x=[found[name][model] for model in held],
            y=list(map(safe, held)),
            name=safe(name),
            mode="markers",
            marker={"color": colour(shade, theme), "symbol": symbol, "size": 8},
            hovertemplate=f"%{{y}}<br><b>{safe(name)}</b>: %{{x:.3f}}<extra></extra>",
        )
    if published:
        points = [(model, name, published[name][model]) for name in names for model in published.get(name, {})]
        figure.add_scatter(
            x=[x for _, _, x in points],
            y=[safe(model) for model, _, _ in points],
            name="published",
            mode="markers",
            marker={"symbol": "circle-open", "size": 14, "color": colour("secondary", theme)},
            text=[safe(name) for _, name, _ in points],
            hovertemplate="%{y}<br><b>%{text}</b>, published: %{x:.3f}<extra></extra>",
        )
    return figure.update_yaxes(autorange="reversed", tickmode="linear", dtick=1, type="category")


@checked
def market_left_out(steps: Sequence[LeftOut], theme: Theme = "light") -> go.Figure:
    """Return what each thing that the study left out adds to the cost, from what it published down to the bound.

    Raises:
        InputError: there are no steps.
    """
    if not steps:
        raise InputError("steps", [], "one step or more")
    first, usd = steps[0].usd, [row.usd for row in steps]
    figure = frame(theme, 130 + 30 * len(steps), "mean cost of a job (USD)", "", margin={"t": 16, "r": 70}, bargap=0.3)
    for n, row in enumerate(steps):
        whole = n == 0 or row.strategy == BOUND
        low, high = (0.0, row.usd) if whole else (min(usd[n - 1], row.usd), max(usd[n - 1], row.usd))
        shade = (
            "forward" if n == 0 else "weight" if row.strategy == BOUND else "over" if row.usd > usd[n - 1] else "weight"
        )
        change = "" if whole else f" ({signed(row.usd - usd[n - 1], 2)})"
        figure.add_bar(
            orientation="h",
            base=[low],
            x=[high - low],
            y=[_step_name(row)],
            showlegend=False,
            marker={"color": colour(shade, theme), "pattern": {"shape": "/" if row.strategy == BOUND else ""}},
            hovertemplate=f"{_step_name(row)}: {row.usd:.2f} USD, {signed(100 * (row.usd / first - 1), 1)} %<br>"
            f"{row.hours:.0f} h, {row.migrations:.1f} moves, {row.preemptions:.1f} preemptions<extra></extra>",
        )
        figure.add_annotation(
            x=high, y=_step_name(row), text=f"{row.usd:.2f}{change}", xanchor="left", showarrow=False, xshift=4
        )
    figure.update_xaxes(range=[0, 1.25 * max(usd)])
    return figure.update_yaxes(autorange="reversed", tickmode="linear", dtick=1, showgrid=False)


def _step_name(row: LeftOut) -> str:
    return f"{row.added} ({row.strategy})" if row.added in ("as published", "moves weighed") else safe(row.added)


@checked
def market_frequency(every_s: Sequence[float], rentals: Sequence[Rental], theme: Theme = "light") -> go.Figure:
    """Return cost, time and moves over how often is chosen, one below the other.

    Raises:
        InputError: there are no rentals, or not one for each time.
    """
    if not rentals or len(rentals) != len(every_s):
        raise InputError("rentals", len(rentals), f"one rental for each of {len(every_s)} times, at least one")
    figure = frame(theme, HEIGHT + 240, "", "", margin=MARGIN | {"t": 16})
    texts = [lasting(every) for every in every_s]
    rows = (
        ("cost (USD)", [rental.cost_usd for rental in rentals], "forward"),
        ("hours", [rental.hours for rental in rentals], "backward"),
        ("moves", [float(rental.migrations) for rental in rentals], "weight"),
    )
    for n, (title, values, shade) in enumerate(rows):
        axis = "y" if n == 0 else f"y{n + 1}"
        figure.add_scatter(
            x=texts,
            y=values,
            yaxis=axis,
            name=title,
            showlegend=False,
            mode="lines+markers",
            line={"color": colour(shade, theme), "width": 2},
            marker={"symbol": STYLES[n][1], "size": 8},
            hovertemplate=f"every %{{x}}: %{{y:.4~g}} {title.split(' ')[0]}<extra></extra>",
        )
        style: dict[str, Any] = {"domain": [1 - (n + 1) / 3 + 0.04, 1 - n / 3], "title": {"text": title}, "nticks": 5}
        figure.update_layout({"yaxis" if n == 0 else f"yaxis{n + 1}": style | {"rangemode": "tozero", "anchor": "x"}})
    return figure.update_xaxes(title_text="chosen every", type="category", anchor="y3")


@checked
def market_front(
    found: Sequence[Traded], optima: Mapping[float, Optimum] | None = None, theme: Theme = "light"
) -> go.Figure:
    """Return cost over hours for each worth of an hour; dominated rentals are open.

    optima: bounds by worth of an hour. Each says that cost and worth of the hours together are no less; the line is
    what that leaves of the cost at a time. Diamonds are what hindsight found.

    Raises:
        InputError: there are no rentals.
    """
    if not found:
        raise InputError("found", [], "one rental or more")
    figure = frame(theme, HEIGHT + 120, "hours", "cost (USD)")
    rentals = [row.rental for row in found] + [best.hindsight for best in (optima or {}).values() if best.hindsight]
    low, high = (end(rental.hours for rental in rentals) for end in (min, max))
    right = low + EDGE * (high - low)
    for name, rows, symbol in (
        ("rented", [row for row in found if not row.dominated], "circle"),
        ("dominated", [row for row in found if row.dominated], "circle-open"),
    ):
        figure.add_scatter(
            x=[row.rental.hours for row in rows],
            y=[row.rental.cost_usd for row in rows],
            name=name,
            showlegend=bool(rows),
            mode="markers+text" if symbol == "circle" else "markers",
            marker={"color": colour("forward", theme), "symbol": symbol, "size": 10},
            text=[f"{row.usd_per_hour:g} USD/h" for row in rows],
            textposition=["top left" if row.rental.hours > right else "top right" for row in rows],
            cliponaxis=False,
            hovertemplate="an hour is worth %{text}<br>%{x:.1f} h, %{y:.2f} USD<extra></extra>",
        )
    if optima:
        _bounds(figure, np.linspace(low, high, 60), optima, theme)
    return figure.update_yaxes(rangemode="tozero")


def _bounds(figure: go.Figure, x: np.ndarray, optima: Mapping[float, Optimum], theme: Theme) -> None:
    ways = [(worth, best.hindsight) for worth, best in optima.items() if best.hindsight]
    y = np.max([np.zeros(len(x)), *(best.usd - worth * x for worth, best in optima.items())], axis=0)
    line = {"color": colour("text", theme), "width": 1.5, "dash": "dash"}
    figure.add_scatter(
        x=x, y=np.maximum(y, 0.0), name="no strategy is below", mode="lines", line=line, hoverinfo="skip"
    )
    figure.add_scatter(
        x=[way.hours for _, way in ways],
        y=[way.cost_usd for _, way in ways],
        name="with hindsight",
        mode="markers",
        marker={"color": colour("weight", theme), "symbol": "diamond", "size": 10},
        text=[f"{worth:g} USD/h" for worth, _ in ways],
        hovertemplate="with hindsight, an hour is worth %{text}<br>%{x:.1f} h, %{y:.2f} USD<extra></extra>",
    )
