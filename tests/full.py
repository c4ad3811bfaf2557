"""What the full run alone does: with HYPOTHESIS_PROFILE=full (`make test-full`); and whose turn it is without.

Of the cases marked `slow` (over a second, half of the suite's time), `make test` takes a sixth. Which, the commit
decides, so that one commit always passes or fails alike; ten commits leave one case in six unrun. All run where
pytest is called without TEST_TURN.
"""

import os
from typing import Any
from zlib import crc32

import pytest

FULL = os.environ.get("HYPOTHESIS_PROFILE") == "full"
fully = pytest.mark.skipif(not FULL, reason="long: HYPOTHESIS_PROFILE=full runs it")


def full(*values: Any) -> Any:
    """Return a test's parameters that are tried in the full run alone, beside others that are always tried."""
    return pytest.param(*values, marks=fully)


TURNS = 6
TURN = None if FULL or not os.environ.get("TEST_TURN") else crc32(os.environ["TEST_TURN"].encode()) % TURNS


def has_its_turn(case: str) -> bool:
    """Return whether a long case runs this time; case: its node id."""
    return TURN is None or crc32(case.encode()) % TURNS == TURN
