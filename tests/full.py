"""What the full run alone does: with HYPOTHESIS_PROFILE=full (`make test-full`)."""

import os
from typing import Any

import pytest

FULL = os.environ.get("HYPOTHESIS_PROFILE") == "full"
fully = pytest.mark.skipif(not FULL, reason="long: HYPOTHESIS_PROFILE=full runs it")


def full(*values: Any) -> Any:
    """Return a test's parameters that are tried in the full run alone, beside others that are always tried."""
    return pytest.param(*values, marks=fully)
