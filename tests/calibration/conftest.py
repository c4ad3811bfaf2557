"""What every fit of the tests does."""

import sys
from collections.abc import Iterator

import pytest

from calibration import fit
from tests.forked import forking
from tests.full import FULL


@pytest.fixture(autouse=True, scope="module")
def one_start() -> Iterator[None]:
    """Fits begin at one place (the full run: at two, as users' do), since hardly one ends better from the second."""
    with pytest.MonkeyPatch.context() as patch:
        if not FULL:
            patch.setattr(fit, "STARTS", 1)
        yield


@pytest.fixture(autouse=True, scope="session")
def quickly_started() -> Iterator[None]:
    if FULL or sys.platform != "linux":
        yield
        return
    with forking():
        yield
