"""`trainsim market`: a job that rents its devices where and when they are cheap."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from math import inf
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import plotly.graph_objects as go
import typer

from sim.cli.cluster import cluster_data
from sim.cli.output import checked_files, console, progress_console, rental_data, written
from sim.cluster.policies import policy as policy_named
from sim.cluster.predicted import is_workload, predicted_throughputs, read_workload
from sim.cluster.trace import read_trace
from sim.market.asked import Asked
from sim.market.availability import read_available
from sim.market.devices import catalog_device
from sim.market.frequency import move_frequency
from sim.market.front import market_front
from sim.market.grid import Grid, price_grid
from sim.market.jobs import RESTART_S, Moves, RentedJob
from sim.market.offers import Billing, Market
from sim.market.price_files import read_prices
from sim.market.rates import Rates, rates_from, rates_of, read_rates
from sim.market.renting import every_steps
from sim.market.results import Rental
from sim.market.strategies import STRATEGIES, strategy
from sim.market.strategies.base import Strategy
from sim.market.strategies.dynamic import UniformProgress
from sim.market.strategies.study import Baseline
from sim.market.together import rent_together
from sim.report.cluster import answer_cluster
from sim.report.figure_files import figure_html
from sim.report.figures.market import market_prices
from sim.report.market import answer_along, answer_ends, answer_rental, answer_starts
from sim.report.theme import Theme
from sim.specs import InputError
from sim.specs.files import print_json, write_atomically
from sim.specs.prices import BOOT_S, iso_utc, usual_strategy, utc_s
from sim.specs.tariffs import MOST_USD_PER_GB, tariffs, tariffs_of
from sim.units import DAY_S, HOUR_S, many

BY_COST = "max_sum_throughput_normalized_by_cost_perf"
BILLINGS = ("spot", "on-demand", "any")
ALONG = ("every", "worth", "strategies")
EVERY = (1, 2, 3, 6, 12, 24, 48, 96, 168)
MOST_EVERY_S = 14 * DAY_S
"""Steps of the grid between two choices, and the longest time."""
WORTH = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""USD that an hour is worth."""
USUAL = {"boot_s": BOOT_S, "restart_s": RESTART_S, "state_bytes": 0.0, "data_bytes": 0.0, "lost_work_s": 0.0}
EGRESS = "egress_usd_per_gb"
"""What a GB costs that leaves a cloud whose tariff the catalog does not know."""
BY_STRATEGY = ("strategy", "steps_per_s")
"""What errors name where a strategy cannot rent what the job needs."""
MOVES = (*(each.name for each in fields(Moves) if each.name != "tariffs"), EGRESS)

app = typer.Typer(
    help="Rent devices whose prices change: where, when, and whether to move.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
THROUGHPUTS = typer.Option(help="Steps/s by model and device: CSV, JSON, YAML, or a workload to predict.")
STRATEGY = typer.Option(
    "--strategy", help="Rule by which it rents (dynamic, with a deadline uniform_progress); a wrong name lists all."
)
STARTS = typer.Option(min=1, max=1000, help="Begin also a day later, and so on: so many begins.")
WHAT_IF = typer.Option("--what-if", "--along", help="The same over one axis: every, worth or strategies.")


@app.callback()
def _group() -> None:
    """Rent devices whose prices change: where, when, and whether to move."""


@app.command("simulate")
def simulate_command(
    prices: Annotated[list[Path], typer.Option(help="File of prices: AWS, Azure, GCP, SkyPilot or plain (several).")],
    throughputs: Annotated[Path, THROUGHPUTS],
    model: Annotated[str, typer.Option(help="The job: a name of that file.")],
    steps: Annotated[float | None, typer.Option(help="Steps that it trains.")] = None,
    days: Annotated[float | None, typer.Option(help="Or: as many as --reference does in so many days.")] = None,
    reference: Annotated[str, typer.Option(help="Device that --days counts, and that baselines rent.")] = "v100",
    gpus: Annotated[int, typer.Option(min=1, help="Devices of the job.")] = 1,
    shares: Annotated[bool, typer.Option("--shares", help="Others rent what it leaves of an instance.")] = False,
    strategy_name: Annotated[str | None, STRATEGY] = None,
    cloud: Annotated[list[str] | None, typer.Option(help="Only this cloud (several).")] = None,
    region: Annotated[list[str] | None, typer.Option(help="Only this region (several).")] = None,
    device: Annotated[list[str] | None, typer.Option(help="Only this device (several).")] = None,
    billing: Annotated[str, typer.Option(help="spot, on-demand or any.")] = "any",
    begin: Annotated[str | None, typer.Option(help="Date or time of the begin, UTC (the first price).")] = None,
    starts: Annotated[int, STARTS] = 1,
    every_hours: Annotated[float, typer.Option(help="Hours between two choices.")] = 24.0,
    step_hours: Annotated[float, typer.Option(help="Hours of a step of the simulation.")] = 1.0,
    usd_per_hour: Annotated[float, typer.Option(help="USD that an hour is worth; 0 asks for the least cost.")] = 0.0,
    deadline_hours: Annotated[float | None, typer.Option(help="Hours after its begin by which it should end.")] = None,
    home: Annotated[str, typer.Option(help='Where its data is: "aws us-east-1" (where it begins).')] = "",
    moves: Annotated[str, typer.Option(help="What moving takes: free, or name=value,... (boot_s, ...).")] = "",
    availability: Annotated[Path | None, typer.Option(help="File that says when spot instances are there.")] = None,
    taken_away: Annotated[str | None, typer.Option(help="UP:DOWN, mean hours that spot offers come and go.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of --taken-away.")] = 0,
    along: Annotated[str | None, WHAT_IF] = None,
    html: Annotated[Path | None, typer.Option(help="Write the prices with the job's path as a page.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Simulate a job that rents: cost, hours, moves, its path, and the least it could have cost."""
    checked_files({"--html": html}, throughputs, *prices, *([availability] if availability else []))
    _checked({"--every-hours": every_hours, "--step-hours": step_hours, "--deadline-hours": deadline_hours}, along)
    if deadline_hours is None and strategy_name == UniformProgress.name:
        raise InputError("--deadline-hours", None, f"required with --strategy {UniformProgress.name}")
    where = _Where(cloud or None, region or None, device or None, reference)
    market = _market(prices, where, billing)
    speeds = _Speeds.read(throughputs)
    speed = _offered(speeds.rates, model, gpus, market)
    job = RentedJob(
        name=model, steps=_work(steps, days, speed, reference), steps_per_s=speed, gpus=gpus, whole=not shares,
        usd_per_hour=usd_per_hour, home=home,
        deadline_s=None if deadline_hours is None else deadline_hours * HOUR_S,
    )  # fmt: skip
    begin_s = None if begin is None else _time(begin, market)
    first_s = market.first_s if begin_s is None else begin_s
    available = None if availability is None else read_available(availability, market, first_s, "--availability")
    asked = Asked(job, market, _moves(moves, market), begin_s, step_hours * HOUR_S, every_hours * HOUR_S, available)
    asked = _taken_away(asked, taken_away, availability, seed, starts * DAY_S)
    chosen = _strategy(usual_strategy(deadline_hours) if strategy_name is None else strategy_name, where)
    with progress_console.status("renting"), _as_stated(step_hours, chosen.name, availability):
        found, grid = asked.rented(chosen)
        bound = asked.bounded(grid, _until(found))
        begun = asked.from_times(chosen, [asked.starts_s + n * DAY_S for n in range(starts)]) if starts > 1 else ()
        rows = _along(along, asked, grid, chosen, where)
        ends = [asked.at_speeds(_offered(one, model, gpus, market)).rented(chosen)[0] for one in speeds.ends]
    notes = (*market.notes, *asked.notes, *asked.beyond(found), *moves_notes(moves))
    if html is not None:
        _page(html, found, grid)
    if as_json:
        told = rental_data(found, bound) | _interval(ends) | {"notes": list(notes), "starts": starts_data(begun)}
        print_json(told | ({"along": [{"name": name} | rental_data(row) for name, row in rows]} if along else {}))
        return
    lines = [*answer_rental(found, bound, notes), *answer_ends(ends), *answer_starts(begun), *answer_along(rows)]
    for line in (*lines, *([f"written: {html}"] if html else [])):
        console.print(line, highlight=False)


@contextmanager
def _as_stated(step_hours: float, strategy: str = "", availability: Path | None = None) -> Iterator[None]:
    """Name the options in errors of what they fill under other names."""
    given = {
        "available": ("--availability" if availability else "--taken-away", "nothing"),
        "step_s": ("--step-hours", step_hours),
        **dict.fromkeys(BY_STRATEGY, ("--strategy", strategy)),
    }
    try:
        yield
    except InputError as error:
        if error.path not in given:
            raise
        raise InputError(*given[error.path], error.allowed, error.also) from None


def _until(found: Rental) -> float | None:
    """Return the hours in which whoever knows all prices has to end: any, unless time is worth something."""
    deadline_s, worth = found.job.deadline_s, found.job.usd_per_hour
    return max((deadline_s or 0.0) / HOUR_S, found.hours) if deadline_s or worth else None


class _Where(NamedTuple):
    """Which offers may be rented, and the device that baselines rent."""

    clouds: list[str] | None
    regions: list[str] | None
    devices: list[str] | None
    reference: str


def _market(prices: list[Path], where: _Where, billing: str) -> Market:
    """Return the offers of the files, without those that were not asked for."""
    if billing not in BILLINGS:
        raise InputError("--billing", billing, "one of " + ", ".join(BILLINGS))
    paid: Billing | None = "spot" if billing == "spot" else "on-demand" if billing == "on-demand" else None
    try:
        return read_prices(*prices).only(
            clouds=where.clouds, regions=where.regions, devices=where.devices, billing=paid
        )
    except InputError as error:
        names = {"clouds": "--cloud", "regions": "--region", "devices": "--device"}
        if error.path == "prices":  # what is left of all of them
            asked = {"--cloud": where.clouds, "--region": where.regions, "--device": where.devices}
            stated = {option: ", ".join(names) for option, names in asked.items() if names}
            stated |= {"--billing": billing} if paid else {}
            raise InputError(", ".join(stated), "; ".join(stated.values()), error.allowed) from None
        raise InputError(names.get(error.path, error.path), error.value, error.allowed, error.also) from None


@dataclass(frozen=True)
class _Speeds:
    """Steps/s of jobs; where they are predicted also the ends of their intervals, slow and fast."""

    rates: Rates
    ends: tuple[Rates, ...] = ()

    @classmethod
    def read(cls, file: Path) -> "_Speeds":
        """Return those of a file, or of the jobs that it wants predicted."""
        if not is_workload(file):
            return cls(read_rates(file))
        with progress_console.status("predicting throughputs"):
            made = predicted_throughputs(*read_workload(file)).throughputs
        return cls(rates_from(made), tuple(rates_from(replace(made, alone=made.end(n))) for n in (0, 1)))


def _offered(rates: Rates, model: str, gpus: int, market: Market) -> dict[str, float]:
    """Return steps/s of a job by the names that the market has for devices."""
    known = rates_of(rates, model, gpus)
    offered = dict.fromkeys(offer.device for offer in market.offers)
    found = {name: known.get(name, known.get(catalog_device(name) or "", 0.0)) for name in offered}
    if not any(found.values()):
        told = f"a job with a throughput on a device that is offered: {', '.join(offered)}"
        raise InputError("--model", model, told)
    return found | {name: rate for name, rate in known.items() if name not in found}


def _traced(rates: Rates, name: str, gpus: int, market: Market) -> dict[str, float]:
    """Return the same of a trace's job, of which errors tell."""
    try:
        return _offered(rates, name, gpus, market)
    except InputError as error:
        raise InputError("--trace", f"{name} on {many(gpus, 'device')}", error.allowed) from None


def _work(steps: float | None, days: float | None, speed: Mapping[str, float], reference: str) -> float:
    if (steps is None) == (days is None):
        raise InputError("--steps", steps, f"{'required: ' if steps is None else ''}exactly one of --steps and --days")
    if steps is not None:
        return steps
    assert days is not None
    if not 0 < days < 1e6:
        raise InputError("--days", days, "a number above 0, below 1e6")
    if not speed.get(reference):
        raise InputError("--reference", reference, f"one of {', '.join(n for n, rate in speed.items() if rate)}")
    return days * DAY_S * speed[reference]


def _checked(stated: Mapping[str, float | None], along: str | None = None) -> None:
    """Refuse hours and an axis of what-if that cannot be, before any file is read."""
    for option, hours in stated.items():
        if hours is not None and not 0 < hours < 1e6:
            raise InputError(option, hours, "a number of hours above 0, below 1e6")
    every, step = stated.get("--every-hours"), stated["--step-hours"] or 1.0
    try:
        every_steps(every, step)
    except InputError:
        raise InputError("--every-hours", every, f"a multiple of --step-hours = {step:g}") from None
    if along not in (None, *ALONG):
        raise InputError("--what-if", along, "one of " + ", ".join(ALONG))


def _time(text: str, market: Market) -> float:
    try:
        begin_s = utc_s(text)
    except InputError as error:
        raise InputError("--begin", error.value, error.allowed) from None
    if begin_s < market.offered_s:
        raise InputError("--begin", text, f"a time at which something is offered: from {iso_utc(market.offered_s)}")
    return begin_s


def _taken_away(asked: Asked, text: str | None, availability: Path | None, seed: int, apart_s: float) -> Asked:
    """Return what was asked with spot offers that come and go at random, if so asked."""
    if text is None and seed:
        raise InputError("--seed", seed, "left out without --taken-away")
    if text is None:
        return asked
    means = _means(text, availability)
    try:
        return asked.taken_away(*means, seed, apart_s)
    except InputError as error:
        raise InputError("--taken-away", text, f"UP:DOWN, each {error.allowed}") from None


def _means(text: str, availability: Path | None) -> tuple[float, float]:
    """Return the mean seconds that spot offers are there, and away."""
    if availability is not None:
        raise InputError("--taken-away", text, "left out beside --availability")
    up, _, down = text.partition(":")
    try:
        means = float(up) * HOUR_S, float(down) * HOUR_S
    except ValueError:
        means = 0.0, 0.0
    if not 0 < min(means) <= max(means) < inf:
        raise InputError("--taken-away", text, "UP:DOWN, mean hours that an offer is there, and away, both above 0")
    return means


def _moves(text: str, market: Market) -> Moves:
    """Return what moving takes: what is stated over what is usual."""
    if text == "free":
        return Moves.free()
    given: dict[str, Any] = {}
    for part in text.split(",") if text else ():
        name, _, number = part.partition("=")
        if name.strip() not in MOVES:
            raise InputError("--moves", name, f"free, or name=value,... of {', '.join(MOVES)}")
        if name.strip() in given:
            raise InputError("--moves", text, "each name once")
        try:
            given[name.strip()] = float(number)
        except ValueError:
            raise InputError(f"--moves.{name}", number, "a number") from None
    usd = given.pop(EGRESS, None)
    try:
        made = Moves(**given)
    except InputError as error:
        raise error.under("--moves") from None
    return _with_egress(made, usd, {offer.place for offer in market.offers})


def _with_egress(moves: Moves, usd_per_gb: float | None, places: set[tuple[str, str]]) -> Moves:
    """Return what moving takes, with what a GB costs that leaves a cloud whose tariff the catalog does not know."""
    path, clouds = f"--moves.{EGRESS}", {cloud for cloud, _ in places}
    unknown = sorted(clouds - set(tariffs()))
    if usd_per_gb is None:
        if unknown and len(places) > 1 and moves.moved_bytes:
            raise InputError(path, None, f"required beside bytes that move: USD of a GB that leaves {unknown[0]}")
        return moves
    if not unknown:
        raise InputError(path, usd_per_gb, f"left out: the tariffs of {', '.join(sorted(clouds))} are known")
    if not 0 <= usd_per_gb <= MOST_USD_PER_GB:
        raise InputError(path, usd_per_gb, f"0 to {MOST_USD_PER_GB:g} USD/GB")
    return replace(moves, tariffs=tariffs_of(clouds, usd_per_gb))


def moves_notes(text: str) -> Iterator[str]:
    """Yield what is assumed of a move where nothing states it."""
    usual = [f"{name} = {value:g}" for name, value in USUAL.items() if name not in text]
    if usual and text != "free":
        yield f"what moving takes, where nothing states it: {', '.join(usual)} (assumptions)"


def _strategy(name: str, where: _Where) -> Strategy:
    """Return a strategy; those of the study start with the reference, in the first cloud that is named."""
    kind = STRATEGIES.get(name)
    if kind is None or not issubclass(kind, Baseline):
        return strategy(name)
    more = {"cloud": where.clouds[0]} if where.clouds else {}
    return strategy(name, device=where.reference, **more)


def _along(
    along: str | None, asked: Asked, grid: Grid, chosen: Strategy, where: _Where
) -> tuple[tuple[str, Rental], ...]:
    """Return the same job by how often it chooses, by what an hour is worth, or by every strategy."""
    if along is None:
        return ()
    if along == "every":
        every = [n * asked.step_s for n in EVERY if n * asked.step_s <= MOST_EVERY_S]
        rentals = move_frequency(asked.job, grid, chosen, asked.moves, every)
        return tuple((f"every {one / HOUR_S:g} h", rental) for one, rental in zip(every, rentals, strict=True))
    if along == "worth":
        rows = market_front(asked.job, grid, chosen, asked.moves, WORTH, asked.every_s)
        return tuple((f"{row.usd_per_hour:g} USD an hour", row.rental) for row in rows)
    found = []
    for name in STRATEGIES:
        if name == UniformProgress.name and asked.job.deadline_s is None:
            continue  # there is no line to keep up with
        try:
            found.append((name, asked.rented(_strategy(name, where))[0]))
        except InputError as error:
            if error.path != "steps_per_s":
                raise
            continue  # it may rent nothing of what is offered here
    return tuple(found)


def _interval(ends: Sequence[Rental]) -> dict[str, Any]:
    """Return what the intervals of predicted speeds come to; nothing of measured ones."""
    if not ends:
        return {}
    usd, hours = sorted(one.cost_usd for one in ends), sorted(one.hours for one in ends)
    return {"cost_usd_interval": usd, "hours_interval": hours}


def _page(file: Path, found: Rental, grid: Grid) -> None:
    def draw(theme: Theme) -> go.Figure:
        return market_prices(found, grid, "work", theme)

    title = f"{found.job.name}, rented by {found.strategy}"
    sentence = next(iter(answer_rental(found)))
    with written("--html", file):
        write_atomically(file, figure_html(draw, title, sentence))


def starts_data(begun: Sequence[Rental]) -> dict[str, Any] | None:
    """Return what beginning on other days does."""
    usd = [rental.cost_usd for rental in begun]
    if not usd:
        return None
    return {"count": len(usd), "mean_usd": sum(usd) / len(usd), "min_usd": min(usd), "max_usd": max(usd), "usd": usd}


@app.command("together")
def together_command(
    prices: Annotated[list[Path], typer.Option(help="File of prices: AWS, Azure, GCP, SkyPilot or plain (several).")],
    throughputs: Annotated[Path, THROUGHPUTS],
    trace: Annotated[Path, typer.Option(help="Jobs, one a line: a 10-column trace, as trainsim cluster reads.")],
    instances: Annotated[int, typer.Option(min=1, help="Instances of every offer that can be had at a time.")] = 1,
    policy: Annotated[str, typer.Option(help="Policy that divides them.")] = BY_COST,
    cloud: Annotated[list[str] | None, typer.Option(help="Only this cloud (several).")] = None,
    region: Annotated[list[str] | None, typer.Option(help="Only this region (several).")] = None,
    device: Annotated[list[str] | None, typer.Option(help="Only this device (several).")] = None,
    billing: Annotated[str, typer.Option(help="spot, on-demand or any.")] = "any",
    begin: Annotated[str | None, typer.Option(help="Date or time of time 0, UTC (the first price).")] = None,
    step_hours: Annotated[float, typer.Option(help="Hours of a step of the prices.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the policy.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Simulate jobs that rent from the same offers: what all cost, when each ends, who was where."""
    _checked({"--step-hours": step_hours})
    market = _market(prices, _Where(cloud or None, region or None, device or None, ""), billing)
    jobs = read_trace(trace)
    known = _Speeds.read(throughputs).rates
    speed = {kind: _traced(known, *kind, market) for kind in dict.fromkeys(job.kind for job in jobs)}
    begin_s = market.first_s if begin is None else _time(begin, market)
    with _as_stated(step_hours):
        grid = price_grid(market, begin_s, max(market.end_s - begin_s, DAY_S), step_hours * HOUR_S)
    with progress_console.status("renting"):
        found = rent_together(jobs, speed, grid, instances, policy_named(policy, seed))
    if as_json:
        print_json(cluster_data(found) | {"notes": list(market.notes)})
        return
    for line in answer_cluster(found):
        console.print(line, highlight=False)
