"""Rented devices in words: where a job was, what it paid and waited for, and how near that is to the least."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from statistics import fmean

from sim.market.optimum import Optimum
from sim.market.results import Rental, Stay
from sim.report.shown import Table, table
from sim.units import HOUR_S, digits3, grouped, lasting, many, percent

MOST_STAYS = 20
"""Of a longer path the rest is counted."""
PARTS = {
    "training": "trains",
    "moving": "boots, restarts and transfers",
    "lost": "repeats work that was lost",
    "waiting": "waits",
}


def answer_rental(found: Rental, optimum: Optimum | None = None, notes: Iterable[str] = ()) -> Iterator[str]:
    """Yield what a rental was, its path, what its time went to, the bound, and what that rests on.

    notes: what is to be known of the prices.
    """
    how = "ends after" if found.finished else "has not ended when prices do, after"
    yield (
        f"{found.strategy}: {found.job.name} {how} {lasting(found.hours * HOUR_S)} and costs "
        f"{digits3(found.cost_usd)} USD ({digits3(found.transfer_usd)} USD of it transfers), "
        f"{digits3(found.gpu_hours)} device-hours."
    )
    yield f"{many(found.migrations, 'move')}, {many(found.preemptions, 'preemption')}."
    for stay in found.path[:MOST_STAYS]:
        yield f"  {_words(stay, dated=found.begin_s != 0)}"
    if len(found.path) > MOST_STAYS:
        yield f"  ... and {many(len(found.path) - MOST_STAYS, 'stay')} more"
    spent = [f"{words} {percent(found.parts_s[part] / HOUR_S / found.hours)}" for part, words in PARTS.items()
             if found.parts_s.get(part)]  # fmt: skip
    yield f"Of the time it {', '.join(spent)}."
    if found.job.deadline_s is not None:
        late = found.hours * HOUR_S > found.job.deadline_s or not found.finished
        yield f"The deadline of {lasting(found.job.deadline_s)} is {'missed' if late else 'kept'}."
    if optimum:
        yield from _bounded(found, optimum)
    yield from (f"Assumed: {text}" for text in found.assumptions)
    yield from (f"Note: {text}" for text in notes)


def _bounded(found: Rental, optimum: Optimum) -> Iterator[str]:
    paid = found.objective_usd if optimum.usd_per_hour else found.cost_usd
    worth = " (worth of the owner's time included)" if optimum.usd_per_hour else ""
    above = f": this is {percent(paid / optimum.usd - 1)} more" if optimum.usd and found.finished else ""
    yield (
        f"With all prices known beforehand it costs at least {digits3(optimum.usd)} USD{worth} within "
        f"{lasting(optimum.hours * HOUR_S)}{above}."
    )


def _words(stay: Stay, dated: bool) -> str:
    begin = moment(stay.begin_s) if dated else f"after {stay.begin_s / HOUR_S:.1f} h"
    spent = f"{digits3(stay.usd)} USD, {stay.ended}"
    return f"{begin}  {lasting(stay.end_s - stay.begin_s)} on {stay.offer.name}: {spent}"


def moment(time_s: float) -> str:
    """Return a time (s since 1970-01-01 UTC) as date and minute."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M")


def answer_ends(ends: Sequence[Rental]) -> Iterator[str]:
    """Yield what the ends of predicted speeds come to; nothing where speeds were measured."""
    if ends:
        usd, hours = sorted(one.cost_usd for one in ends), sorted(one.hours * HOUR_S for one in ends)
        yield (
            f"Speeds are predicted: {digits3(usd[0])} to {digits3(usd[-1])} USD in {lasting(hours[0])} to "
            f"{lasting(hours[-1])} (80 %)."
        )


def answer_starts(begun: Sequence[Rental]) -> Iterator[str]:
    """Yield what beginning at other times costs; nothing where there are none."""
    if begun:
        usd = [rental.cost_usd for rental in begun]
        yield (
            f"Begun at {grouped(len(begun))} times it costs {digits3(fmean(usd))} USD in the mean, {digits3(min(usd))} "
            f"to {digits3(max(usd))}."
        )


def answer_along(rows: Sequence[tuple[str, Rental]]) -> Iterator[str]:
    """Yield the lines of `along`; nothing where there are no rows."""
    if rows:
        yield from str(along(rows)).splitlines()


def along(rows: Iterable[tuple[str, Rental]]) -> Table:
    """Return cost, time and moves of named rentals."""
    return table(
        dict(rows),
        usd=("cost_usd", ".2f"),
        of_it_transfers=("transfer_usd", ".2f"),
        hours=("hours", ".1f"),
        moves="migrations",
        preemptions="preemptions",
        ends=lambda rental: rental.path[-1].ended if rental.path else "waits",
    )


def averaged(rows: Mapping[str, Sequence[Rental]]) -> Table:
    """Return the means of rentals that were begun at several times."""
    return table(
        rows,
        begins=len,
        usd=_mean("cost_usd", ".2f"),
        of_it_transfers=_mean("transfer_usd", ".2f"),
        hours=_mean("hours", ".1f"),
        moves=_mean("migrations", ".1f"),
        preemptions=_mean("preemptions", ".1f"),
    )


def _mean(field: str, form: str) -> tuple[Callable[[Sequence[Rental]], float], str]:
    return (lambda rentals: fmean(getattr(rental, field) for rental in rentals)), form
