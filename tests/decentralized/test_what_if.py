import pytest

from sim.decentralized import Failure, Wan, simulate, what_if
from sim.decentralized.what_if import USUAL, WhatIf, changed
from sim.specs.fields import InputError
from tests.decentralized.toys import fitted, small


def test_faster_links_take_less_time_for_the_same_bytes():
    rows = what_if(small(), "bandwidth")
    assert [row.value for row in rows] == list(USUAL["bandwidth"])
    assert [row.seconds for row in rows] == sorted((row.seconds for row in rows), reverse=True)
    assert len({row.traffic_bytes for row in rows}) == 1


def test_bytes_grow_with_pairs_of_partitions_and_with_the_model():
    rows = what_if(small(), "partitions", (2, 4))
    assert rows[1].traffic_bytes == 6 * rows[0].traffic_bytes
    rows = what_if(small(), "model_bytes", (4e6, 8e6))
    assert rows[1].traffic_bytes == 2 * rows[0].traffic_bytes


def test_skew_asks_for_a_tighter_theta():
    rows = what_if(small(controller="hill_climbing", steps=10_000, noise=False), "skew", (0.0, 0.5, 1.0), fitted())
    assert [row.theta for row in rows] == [200.0, 20.0, 10.0]
    assert rows[0].traffic_bytes < rows[1].traffic_bytes < rows[2].traffic_bytes
    assert rows[0].accuracy.value > rows[2].accuracy.value


@pytest.mark.parametrize("axis", USUAL)
def test_a_row_is_what_the_simulation_says(axis):
    model, setting = fitted(), small(theta=20.0)
    for row in what_if(setting, axis, model=model):
        found = WhatIf.of(axis, row.value, simulate(changed(setting, axis, row.value), model))
        assert row.accuracy.value == pytest.approx(found.accuracy.value)
        assert (row.seconds, row.traffic_bytes, row.theta) == (found.seconds, found.traffic_bytes, found.theta)
        assert row.saving == found.saving


@pytest.mark.parametrize(
    ("change", "along", "values", "message"),
    [
        ({}, "skew", (2.0,), "skew: got 2.0"),
        ({}, "bandwidth", (0.0,), "bytes_per_s: got 0.0"),
        ({}, "model_bytes", (1.0,), "values: got 1.0; allowed: bytes from 4"),
        ({}, "partitions", (2.5,), "values: got 2.5; allowed: whole numbers"),
        ({}, "partitions", (2, float("inf")), "values.1: got inf; allowed: a finite number"),
        ({}, "bandwidth", ("fast",), "values.0: got 'fast'; allowed: a finite number"),
        ({}, "skew", 1.0, "values: got 1.0; allowed: a list of numbers"),
        ({}, "speed", (), "along: got 'speed'; allowed"),
        ({"step_s": (0.1,) * 5}, "partitions", (2,), "step_s: .*one for all"),
        ({"failures": (Failure(partition=1, at_s=1.0),)}, "partitions", (2,), "failures: .*one for all"),
        ({"wan": Wan(latency_s=((0.1,) * 5,) * 5)}, "partitions", (2,), "wan.latency_s: .*one for all"),
    ],
)
def test_axes_and_values_are_checked(change, along, values, message):
    with pytest.raises(InputError, match=message):
        what_if(small(**change), along, values)
