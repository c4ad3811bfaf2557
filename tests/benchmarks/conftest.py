"""Speeds go to `BENCHMARKS.md` and to the terminal at the end of `make bench`."""

import pytest

from tests.benchmarks.table import FILE, Speed, machine, merged

SPEEDS = pytest.StashKey[dict[str, Speed]]()


@pytest.fixture
def speeds(request: pytest.FixtureRequest) -> dict[str, Speed]:
    """What a benchmark found, by what it is about."""
    return request.config.stash.setdefault(SPEEDS, {})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    found = config.stash.get(SPEEDS, {})
    if found:
        FILE.write_text(merged(FILE.read_text() if FILE.exists() else "", found, machine()))
        for what, one in found.items():
            terminalreporter.write_line(f"{what}: {one.text}")
