"""What is made or started often is made quickly; the full run does all as users do."""

import sys
from collections.abc import Iterator

import pytest

from calibration import fit
from calibration.taskmap import native
from tests.forked import forking
from tests.full import FULL


@pytest.fixture(autouse=True, scope="module")
def quickly_made() -> Iterator[None]:
    """Fits begin at one place, not two, since hardly one ends better from the second; C is little optimised."""
    with pytest.MonkeyPatch.context() as patch:
        if not FULL:
            patch.setattr(fit, "STARTS", 1)
            patch.setattr(native, "FLAGS", ("-O1", *native.FLAGS[1:]))
        yield


@pytest.fixture(autouse=True, scope="session")
def quickly_started() -> Iterator[None]:
    if FULL or sys.platform != "linux":
        yield
        return
    with forking():
        yield
