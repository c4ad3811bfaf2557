"""`BENCHMARKS.md`: what README says of speed and memory stands there."""

import re

import pytest

from tests.benchmarks.table import FILE, Speed, merged, rows
from tests.oracle import ROOT

STATED = {
    "panel: key to screen, median": r"takes (\d+) ms in the median",
    "panel: key to screen, 95 of 100": r"and (\d+) ms in 95 of 100 cases",
    "panel: over the same figures from arrays, median": r"([\d.]+) times a callback",
    "panel: beside a search, 95 of 100": r"(\d+) ms beside a search",
    "sweep: 10.4 M analytic configurations, pool": r"configurations take (\d+) s on two cores",
    "sweep: 10.4 M analytic configurations, ray": r"(\d+) s on Ray",
    "sweep: memory of its driver, pool": r"(\d+) MB in the driver",
    "sweep: 10,080 steps of the event engine": r"10,080 steps of the event engine (\d+) s",
    "tuner: options of single stages": r"([\d.]+) M stage options/s",
    "tuner: uniform plans": r"([\d.]+) M uniform plans/s",
    "tuner: 22B on 32 a100-sxm-40gb": r"22B on 32 A100 (\d+) s",
    "tuner: 22B on 32 l4": r"on L4, much of it in host memory, (\d+) s",
    "tuner: 175B on 1,024 a100-sxm-80gb": r"175B on 1,024 (\d+) s",
}
"""Row of the table -> where README states it."""


@pytest.mark.parametrize("what", STATED)
def test_readme_states_what_was_measured(what):
    stated = re.search(STATED[what], " ".join((ROOT / "README.md").read_text().split()))
    assert stated, STATED[what]
    measured, given = float(rows(FILE.read_text())[what][0].split()[0]), stated[1]
    digits = len(given.partition(".")[2])
    assert float(given) == pytest.approx(measured, abs=0.51 * 10**-digits, rel=5e-3)


def test_a_row_that_is_not_measured_again_stays():
    first = merged("", {"a": Speed(2.5e6, "/s", "> 1 M/s"), "b": Speed(12.34, "ms")}, "day 1")
    again = merged(first, {"b": Speed(10.0, "ms")}, "day 2")
    assert rows(again) == {"a": ("2.50 M/s", "> 1 M/s", "day 1"), "b": ("10 ms", "", "day 2")}
