"""Figures and words of rented devices."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

from sim.market.begins import rent_from
from sim.market.frequency import move_frequency
from sim.market.front import market_front
from sim.market.jobs import Moves
from sim.market.offers import Market
from sim.market.optimum import optimum
from sim.market.renting import rent
from sim.market.strategies import strategy
from sim.report import figures
from sim.report.market import along, answer_along, answer_rental, answer_starts, averaged
from sim.specs.fields import InputError
from sim.validation.market_results import LeftOut
from tests.market.toys import HOUR, a_job, hours, offer, priced

A, B, SLOW = offer(), offer("us-east-1b"), offer("us-west-2a", "k80")
MARKET = Market((priced(1, 2, 2, 2, 2, 2, of=A), priced(2, 1, 1, 1, 1, 1, of=B), priced(0.5, of=SLOW)))
GRID = hours(MARKET, 12, {B: np.array([[0.0, 2.5 * HOUR], [4 * HOUR, 99 * HOUR]])})
MOVES = Moves(boot_s=60, restart_s=60, lost_work_s=600)


@pytest.fixture(scope="module")
def rental():
    return rent(a_job(name="<b>net"), GRID, strategy("dynamic"), MOVES)


def traces(figure):
    return {trace.name: trace for trace in figure.data}


def test_the_path_is_drawn_on_the_prices(rental):
    assert [stay.ended for stay in rental.path] == ["moved", "preempted", "moved", "finished"]
    found = traces(figures.market_prices(rental, GRID))
    path = found["the job"]
    assert [y for y in path.y if y is not None][:3] == [1.0, 1.0, 1.0]
    assert [list(path.y).count(None), len(path.x) == len(path.text) == len(path.y)] == [4, True]
    assert list(found["is preempted"].y) == [1.0] and len(found["begins, moves"].x) == 4
    assert "us-east-1a" in path.text[0] and "moved" in path.text[0]


def test_prices_by_work_divide_by_what_a_device_does(rental):
    device, work = (traces(figures.market_prices(rental, GRID, by))["k80, aws"] for by in ("device", "work"))
    assert set(device.y) == {0.5} and set(work.y) == {2.0}


def test_an_offer_that_is_away_leaves_a_gap(rental):
    lines = [trace for trace in figures.market_prices(rental, GRID).data if trace.legendgroup == "v100, aws"]
    assert len(lines) == 2 and [trace.showlegend for trace in lines] == [True, False]
    assert None in lines[1].y and None not in lines[0].y


def test_more_than_thirty_offers_are_a_band():
    many = [offer(f"r{n}a") for n in range(33)]
    held = {many[32]: np.array([[0.0, HOUR], [3 * HOUR, 9 * HOUR]])}
    grid = hours(Market(tuple(priced(1 + 0.01 * n, of=one) for n, one in enumerate(many))), 9, held)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = figures.market_prices(rent(a_job(), grid, strategy("dynamic"), MOVES), grid)
    band = [trace for trace in figure.data if trace.name == "3 others"]
    assert [trace.showlegend for trace in band] == [False, True]
    assert band[1].y[0] == pytest.approx(1.32) and band[1].y[1] == pytest.approx(1.31)
    assert sum(trace.legendgroup == "v100, aws" for trace in figure.data) == 30


def test_another_grid_and_another_unit_are_refused(rental):
    with pytest.raises(InputError, match=r"rental: got 'aws us-east-1a 1xv100'; allowed: a rental of this grid"):
        figures.market_prices(rental, hours(Market((priced(0.5, of=SLOW),)), 12))
    with pytest.raises(InputError, match="by: got 'step'"):
        figures.market_prices(rental, GRID, "step")


def test_nothing_offered_is_nothing_to_draw():
    late = hours(Market((priced(1, of=A),)), 9, {A: np.array([[7 * HOUR, 9 * HOUR]])})
    waited = rent(a_job(), late, strategy("dynamic"), MOVES)
    assert figures.market_prices(waited, late).data
    gone = replace(waited, begin_s=0.0, hours=2.0, path=())
    with pytest.raises(InputError, match="a rental at a time when something is offered"):
        figures.market_prices(gone, late)


def test_strategies_stand_beside_published_ones():
    ours = {"baseline": {"net": 1.0}, "packed": {"net": 1.5, "<i>": 2.0}, "gpu_type": {"net": 1.2}}
    found = traces(figures.market_strategies(ours, {"packed": {"net": 1.6}}))
    assert list(found) == ["packed", "gpu_type", "published"]
    assert list(found["packed"].y) == ["net", "&lt;i&gt;"] and list(found["published"].x) == [1.6]
    with pytest.raises(InputError, match="one strategy or more beside baseline"):
        figures.market_strategies({"baseline": {}})


def step(added, usd, name="preemption"):
    return LeftOut("us-east-1", "net", name, added, usd, 96.0, 1.5, 2.0)


def test_each_thing_left_out_stands_on_the_one_before():
    figure = figures.market_left_out([step("as published", 10), step("boots", 12), step("weighed", 11, "dynamic"),
                                      step("known", 9, "optimum")])  # fmt: skip
    assert [(bar.base[0], bar.x[0]) for bar in figure.data] == [(0, 10), (10, 2), (11, 1), (0, 9)]
    texts = [note.text for note in figure.layout.annotations]
    assert texts == ["10.00", "12.00 (+2.00)", "11.00 (−1.00)", "9.00"]
    with pytest.raises(InputError, match="one step or more"):
        figures.market_left_out([])


def test_frequency_has_cost_time_and_moves():
    every = [HOUR, 4 * HOUR]
    rentals = move_frequency(a_job(), GRID, strategy("preemption"), MOVES, every)
    found = traces(figures.market_frequency(every, rentals))
    assert list(found["cost (USD)"].y) == [rental.cost_usd for rental in rentals]
    assert list(found["moves"].y) == [rental.migrations for rental in rentals]
    assert list(found["hours"].x) == ["1.00 h", "4.00 h"]
    with pytest.raises(InputError, match="one rental for each of 1 times"):
        figures.market_frequency([HOUR], rentals)


def test_the_front_is_above_its_bounds():
    worths = [0.0, 0.1, 5.0]
    prices = hours(Market((priced(1, of=A), priced(0.1, of=SLOW))), 30)
    found = market_front(a_job(), prices, strategy("dynamic"), MOVES, worths)
    bounds = {row.usd_per_hour: optimum(row.rental.job, prices, MOVES) for row in found}
    drawn = traces(figures.market_front(found, bounds))
    assert list(drawn) == ["rented", "dominated", "no strategy is below", "with hindsight"]
    assert list(drawn["rented"].text) == ["0 USD/h", "5 USD/h"] and len(drawn["dominated"].x) == 1
    assert list(drawn["rented"].textposition) == ["top left", "top right"]  # inside of the figure at both ends
    later = max(found, key=lambda row: row.rental.hours)  # with a bound that ends far to the right labels are off it
    long = replace(bounds[0.0], hindsight=replace(later.rental, hours=10 * later.rental.hours))
    free = traces(figures.market_front(found, bounds | {0.0: long}))["rented"]
    assert list(free.textposition) == ["top right", "top right"]
    least = drawn["no strategy is below"]
    for row in found:
        assert row.rental.cost_usd >= np.interp(row.rental.hours, least.x, least.y) - 1e-9
    assert list(traces(figures.market_front(found))) == ["rented", "dominated"]
    with pytest.raises(InputError, match="one rental or more"):
        figures.market_front([])


def test_words_of_a_rental(rental):
    text = list(answer_rental(rental, optimum(rental.job, GRID, MOVES), ["two prices at one time"]))
    assert text[0].startswith("dynamic: <b>net ends after") and "device-hours" in text[0]
    assert text[1] == "3 moves, 1 preemption."
    assert "on aws us-east-1a 1xv100: 1.00 USD, moved" in text[2]
    assert "repeats work that was lost" in " ".join(text) and "waits" in " ".join(text)
    assert "costs at least" in text[-2] and text[-1] == "Note: two prices at one time"
    assert "deadline" not in " ".join(text)


def test_words_of_deadlines_and_of_prices_that_end():
    grid = hours(MARKET, 6)
    kept, missed = (rent(a_job(deadline_s=n * HOUR), grid, strategy("dynamic"), MOVES) for n in (6, 2))
    assert "The deadline of 6.00 h is kept." in list(answer_rental(kept))
    assert "The deadline of 2.00 h is missed." in list(answer_rental(missed))
    cut = rent(a_job(steps=99 * HOUR), grid, strategy("dynamic"), MOVES)
    assert "has not ended when prices do" in next(answer_rental(cut))


def test_a_long_path_is_counted():
    held = {A: np.array([[n * HOUR, n * HOUR + 1_800] for n in range(50)], dtype=float)}
    grid = hours(Market((priced(1, of=A),)), 50, held)
    text = list(answer_rental(rent(a_job(steps=15 * HOUR), grid, strategy("dynamic"), Moves.free())))
    assert "  ... and 10 stays more" in text and sum(" on aws" in line for line in text) == 20


def test_tables_of_rentals(rental):
    head, line = str(along([("hourly", rental)])).splitlines()
    assert head.split()[:2] == ["usd", "of"] and line.split()[0] == "hourly" and line.endswith("finished")
    assert list(answer_along([("hourly", rental)])) == [head, line] and list(answer_along([])) == []
    rentals = rent_from(a_job(steps=HOUR), hours(MARKET, 9), strategy("baseline"), Moves.free(), None, (0, 1, 2))
    assert list(answer_starts(rentals)) == ["Begun at 3 times it costs 1.00 USD in the mean, 1.00 to 1.00."]
    assert list(answer_starts([])) == []
    assert str(averaged({"baseline": rentals})).splitlines()[1].split()[:3] == ["baseline", "3", "1.00"]
