"""Shared fixtures, hypothesis profiles, and the count of skipped oracle tests."""

import gc
import os
import signal
from collections.abc import Iterator
from functools import partial

import pytest
from hypothesis import HealthCheck, settings

from sim.specs import Cluster, Model, Plan
from sim.specs.catalog import models
from tests.full import FULL, has_its_turn

COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much]}
settings.register_profile("quick", max_examples=20, derandomize=True, **COMMON)
settings.register_profile("full", max_examples=1_000, **COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# A shell's background job ignores interrupts, and so would every program that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Two threads for which no two cores are free wait for each other twenty times as long as they work. The workers of a
# parallel run, and all programs that tests start, inherit it; tests of threads ask for theirs.
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

# Thousands of tests are held while each of them runs: with Python's usual thresholds (700, 10, 10) going through what
# stays would take a tenth of the time.
gc.set_threshold(20_000, 20, 20)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow"):
            waits = not has_its_turn(item.nodeid)
            item.add_marker(pytest.mark.skipif(waits, reason="long: another commit's turn (see tests/full.py)"))


def pytest_collection_finish() -> None:
    """Leave what was imported and collected out of every later collection of garbage."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    oracle = sum("oracle:" in str(report.longrepr) for report in skipped)
    terminalreporter.write_line(f"oracle tests skipped: {oracle}; other tests skipped: {len(skipped) - oracle}")


@pytest.fixture(autouse=True, scope="session")
def few_samples() -> Iterator[None]:
    """A search says how sure it is by fewer calibrations, and fewer plans are run again, which takes half of it."""
    from sim.tuner import ranking  # noqa: PLC0415 - most tests of this folder do without

    with pytest.MonkeyPatch.context() as patch:
        if not FULL:
            patch.setattr(ranking, "robustness", partial(ranking.robustness, samples=20))
            patch.setattr("sim.tuner.tune.RESCORED", 5)
        yield


@pytest.fixture(scope="session")
def gpt3() -> Model:
    return models["gpt3-175b"]


@pytest.fixture(scope="session")
def h100s() -> Cluster:
    """16 nodes of 8."""
    return Cluster.of("h100-sxm-80gb", nodes=16)


@pytest.fixture(scope="session")
def interleaved() -> Plan:
    return Plan(tp=8, pp=4, virtual_stages=2, global_batch=128, zero=1, recompute="selective")
