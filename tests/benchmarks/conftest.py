"""Speeds in words, beside those of other simulators, at the end of `make bench`."""

import pytest

PEER_SPEEDS = {"calculon": 93, "SimuMax": 15, "llm-analysis": 3_818}
"""Configurations/s of other simulators."""

SPEEDS = pytest.StashKey[dict[str, float]]()


@pytest.fixture
def speeds(request: pytest.FixtureRequest) -> dict[str, float]:
    """What a benchmark found, by name (1/s)."""
    return request.config.stash.setdefault(SPEEDS, {})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for name, value in config.stash.get(SPEEDS, {}).items():
        terminalreporter.write_line(f"{name}: {value:,.0f}")
    if config.stash.get(SPEEDS, {}):
        others = ", ".join(f"{name} {value:,.0f}" for name, value in PEER_SPEEDS.items())
        terminalreporter.write_line(f"others, configurations/s: {others}")
