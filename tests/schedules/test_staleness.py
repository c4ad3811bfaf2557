"""How old weights are at most, per rank (PipeDream-2BW, section 3.1: one version, whatever the depth)."""

import pytest

from sim.schedules import Shape, build, most_staleness


@pytest.mark.parametrize(
    ("name", "shape", "found"),
    [
        ("1f1b", Shape(4, 8), [0, 0, 0, 0]),
        ("pipedream", Shape(4, 64), [3, 2, 1, 0]),
        ("pipedream", Shape(4, 64, vertical_sync=True), [3, 3, 3, 3]),
        ("2bw", Shape(4, 128, group=8), [1, 1, 1, 1]),
    ],
)
def test_by_schedule(name, shape, found):
    assert most_staleness(build(name, shape)) == found
