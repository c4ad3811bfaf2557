"""A picture of many operations: areas are shares of the time, and nothing vanishes."""

import numpy as np
import pytest

from sim.engine.step import Step
from sim.report import figures
from sim.report.figures.gantt import BINS
from sim.report.figures.raster import raster
from sim.report.figures.timeline import of_actions

IDLE = 3
"""Beside the kinds 0, 1 and 2 of these tests."""


def areas(found: np.ndarray, kind: np.ndarray) -> np.ndarray:
    """Return the share of each row's bins that every kind and idle time have."""
    shown = np.append(kind, IDLE)[found]
    return np.stack([np.mean(shown == k, axis=1) for k in range(IDLE + 1)], axis=1)


@pytest.mark.parametrize("longest", [5, 90, 700, 7_000])
def test_areas_are_shares_of_the_time(longest: int) -> None:
    """Operations from far shorter than a bin (100 ticks) to far longer; kinds 0 and 1 in turn, every third gap idle."""
    rng, total = np.random.default_rng(longest), 80_000
    share = np.array([0.6, 0.3, 0.1])  # kind 0, kind 1, idle
    length = np.tile(share * longest, total // longest + 1) * rng.uniform(0.8, 1.2, 3 * (total // longest + 1))
    edges = np.append(0, np.cumsum(np.ceil(length))).astype(np.int64)
    edges = np.append(edges[edges < total], total)
    start, end, turn = edges[:-1], edges[1:], np.arange(len(edges) - 1) % 3
    busy = turn < 2
    kind = turn[busy]
    found = raster(start[busy], end[busy], np.zeros(len(kind), np.int64), kind, 1, 800, total)
    wanted = [(end - start)[turn == k].sum() / total for k in (0, 1)]
    assert areas(found, kind)[0, :2] == pytest.approx(wanted, abs=0.02)


def test_bins_of_one_operation_show_it_and_those_of_none_are_idle() -> None:
    start, end, row = np.array([0, 12, 0]), np.array([12, 20, 4]), np.array([0, 0, 1])
    kind = np.array([0, 1, 2])
    assert raster(start, end, row, kind, 2, 5, 20).tolist() == [[0, 0, 0, 1, 1], [2, -1, -1, -1, -1]]


def test_a_kind_too_rare_for_its_share_keeps_bins() -> None:
    start = np.array([0, 1_000, 1_001, 1_500, 1_501])
    end, kind = np.append(start[1:], 2_000), np.array([0, 1, 0, 2, 0])
    shown = raster(start, end, np.zeros(5, np.int64), kind, 1, 20, 2_000)
    assert np.bincount(kind[shown[0]]).tolist() == [18, 1, 1]
    often = np.arange(14) * 5_000
    seen = np.flatnonzero(raster(often, often + 1, often * 0, often * 0, 1, BINS, 80_000)[0] >= 0)
    assert len(seen) == BINS // 100 and np.max(np.diff(seen)) < BINS / 2


def test_operations_at_once_share_a_bin() -> None:
    start, end = np.zeros(2, np.int64), np.array([1_000, 1_000])
    found = raster(start, end, np.zeros(2, np.int64), np.array([0, 1]), 1, 100, 1_000)
    assert np.count_nonzero(found == 0) == pytest.approx(50, abs=2) and np.all(found >= 0)


def test_a_long_step_shows_every_kind_in_its_share(long_step: Step) -> None:
    z = figures.timeline(long_step).data[-1].z
    shown = of_actions(long_step.timeline, 16)
    assert z.shape == (4, BINS)
    for row in range(4):
        looks = shown.look[shown.row == row]
        held = (shown.end - shown.start)[shown.row == row] / shown.finish
        for code, look in enumerate(shown.looks, 1):
            assert np.mean(z[row] == code) == pytest.approx(held[looks == look].sum(), abs=0.02)
            assert (look in looks) == (code in z[row])
