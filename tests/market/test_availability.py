import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.market.availability import drawn, joined, read_availability
from sim.market.offers import History, Market
from sim.specs.fields import InputError
from tests.market.test_lifetimes import event
from tests.market.test_lifetimes import written as log
from tests.market.toys import HOUR, offer, priced

DAY = 1583020800.0
"""2020-03-01."""


def market(*offers):
    return Market(tuple(History.constant(one, 1.0) for one in offers))


def periods(folder, *rows, header="cloud,zone,device,begin_utc,end_utc"):
    (folder / "up.csv").write_text("\n".join([header, *rows]) + "\n", "utf-8")
    return folder / "up.csv"


def hours(intervals):
    return ((intervals - DAY) / HOUR).tolist()


def test_an_offer_can_be_held_while_a_log_held_one(tmp_path):
    path = log(tmp_path, event(1, "x"), event(4, "y"), event(5, "x", created=False), event(6, "y", created=False),
               event(8, "x"), event(9, "w", zone="us-east-1b"))  # fmt: skip
    held = read_availability(path, market(offer(), offer(billing="on-demand"), offer(device="k80")))
    assert list(held) == [offer()]
    assert hours(held[offer()]) == [[1, 6], [8, 9]]


def test_large_instances_have_their_own_times(tmp_path):
    path = log(tmp_path, event(0, "x"), event(9, "x", created=False), event(2, "y", gpus=8), event(3, "z", gpus=4),
               event(4, "y", gpus=8, created=False), event(6, "z", gpus=4, created=False))  # fmt: skip
    sizes = {n: offer(devices=n) for n in (1, 2, 4, 8, 16)}
    held = read_availability(path, market(*sizes.values()))
    assert {n: hours(held[one]) for n, one in sizes.items()} == {
        1: [[0, 9]], 2: [[3, 6]], 4: [[3, 6]], 8: [[2, 4]], 16: [[2, 4]],
    }  # fmt: skip


def test_periods_may_name_how_many_devices(tmp_path):
    spans = ("2020-03-01,2020-03-01T02:00Z", "2020-03-01T01:00Z,2020-03-01T03:00Z")
    held = read_availability(periods(tmp_path, *(f"aws,us-east-1a,V100,{s}" for s in spans)), market(offer()))
    assert hours(held[offer()]) == [[0, 3]]
    rows = [f"aws,us-east-1a,V100,{span},{n}" for span, n in zip(spans, ("", 8), strict=True)]
    path = periods(tmp_path, *rows, header="cloud,zone,device,begin_utc,end_utc,devices")
    held = read_availability(path, market(offer(devices=8), offer(devices=16)))
    assert [hours(each) for each in held.values()] == [[[1, 3]], [[1, 3]]]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("aws,us-east-1a,v100,soon,2020-03-01", "line 2.begin_utc: got 'soon'"),
        ("aws,us-east-1a,v100,2020-03-02,2020-03-01", "line 2.end_utc: got '2020-03-01'; allowed: after 2020-03-02"),
        ("aws,us-east-1z,v100,2020-03-01,2020-03-02", "got 'aws us-east-1z v100'; allowed: cloud, zone and device"),
        ("aws,us-east-1a", "line 2: got '2 cells'"),
    ],
)
def test_a_mistake_has_its_place(tmp_path, row, words):
    with pytest.raises(InputError) as caught:
        read_availability(periods(tmp_path, row), market(offer()))
    assert words in str(caught.value)


def test_other_columns_and_an_offer_that_no_list_needs(tmp_path):
    with pytest.raises(InputError, match="the columns cloud,zone,device,begin_utc,end_utc or"):
        read_availability(periods(tmp_path, header="a,b"), market(offer()))
    with pytest.raises(InputError, match="offer: got 'x'"):
        read_availability(periods(tmp_path), market(offer()), offer="x")


def trace(folder, data, gap_s=600):
    (folder / "trace.json").write_text(json.dumps({"metadata": {"gap_seconds": gap_s}, "data": data}))
    return folder / "trace.json"


def test_a_trace_is_of_one_offer(tmp_path):
    market_ = Market((priced(1, 2, of=offer()), priced(1, of=offer("us-east-1b"))))
    path = trace(tmp_path, [0, 1, 3, 0, 0, 1])
    held = read_availability(path, market_, offer=offer().name)
    assert list(held) == [offer()]
    assert held[offer()].tolist() == [[600, 1800], [3000, 3600]]
    moved = read_availability(path, market_, offer=offer().name, begin_s=1e9)
    assert moved[offer()].tolist() == (held[offer()] + 1e9).tolist()
    assert read_availability(trace(tmp_path, [0]), market_, offer=offer().name)[offer()].shape == (0, 2)


def test_a_trace_that_is_none(tmp_path):
    spot = Market((priced(1, of=offer()),))
    for data, gap_s, words in (
        ([], 1, "data: got []"),
        ([1, "x"], 1, "data.1: got 'x'"),
        ([1, -1], 1, "data.1: got -1"),
        ([1], 0, "metadata.gap_seconds: got 0"),
        ([1], None, "metadata.gap_seconds: got None"),
    ):
        with pytest.raises(InputError) as caught:
            read_availability(trace(tmp_path, data, gap_s), spot, offer=offer().name)
        assert words in str(caught.value)
    with pytest.raises(InputError, match="offer: got ''; allowed: one of aws us-east-1a"):
        read_availability(trace(tmp_path, [1]), spot)
    with pytest.raises(InputError, match="begin_s: missing"):
        read_availability(trace(tmp_path, [1]), market(offer()), offer=offer().name)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9))))
def test_joined_periods_cover_the_same_hours(spans):
    found = joined([(float(begin), float(begin + lasts)) for begin, lasts in spans])
    assert (found[:, 0] < found[:, 1]).all()
    assert (found[1:, 0] > found[:-1, 1]).all()
    covered = {hour for begin, lasts in spans for hour in range(begin, begin + lasts)}
    assert {h for h in range(60) if ((found[:, 0] <= h) & (h < found[:, 1])).any()} == covered


def test_times_by_chance():
    offers = [offer(f"us-east-{n}a") for n in range(40)]
    again = {"begin_s": DAY, "end_s": DAY + 5_000 * HOUR, "seed": 3}
    held = drawn([*offers, offer(billing="on-demand")], 3 * HOUR, HOUR, **again)
    assert list(held) == offers
    lengths = np.concatenate([np.diff(each)[:, 0] for each in held.values()])
    assert sum(lengths) / (40 * 5_000 * HOUR) == pytest.approx(0.75, abs=0.01)
    assert lengths.mean() == pytest.approx(3 * HOUR, rel=0.03)
    assert lengths.std() == pytest.approx(lengths.mean(), rel=0.05)  # as exponential times have it
    assert np.mean([each[0, 0] == DAY for each in held.values()]) == pytest.approx(0.75, abs=0.2)
    for each in held.values():
        assert (np.diff(each.ravel()) > 0).all()
        assert each[0, 0] >= DAY and each[-1, 1] <= again["end_s"]
    same = drawn(offers, 3 * HOUR, HOUR, **again)
    assert all((held[one] == same[one]).all() for one in offers)
    assert not np.array_equal(held[offers[0]], held[offers[1]])
    assert not np.array_equal(held[offers[0]], drawn(offers, 3 * HOUR, HOUR, **again | {"seed": 4})[offers[0]])


@pytest.mark.parametrize(
    "changed",
    [{"mean_up_s": 0.0}, {"mean_down_s": -1.0}, {"seed": -1}, {"end_s": 0.0}, {"end_s": float("nan")}, {"end_s": 1e12}],
)
def test_chances_that_are_none(changed):
    with pytest.raises(InputError, match=next(iter(changed)) if changed != {"end_s": 1e12} else "at most 1000000"):
        drawn([offer()], **{"mean_up_s": 9.0, "mean_down_s": 1.0, "begin_s": 0.0, "end_s": 5.0, "seed": 0} | changed)
