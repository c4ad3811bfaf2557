"""How kernels are compiled in tests of what they compute."""

from collections.abc import Iterator

import pytest

from calibration.taskmap import native
from tests.full import FULL


@pytest.fixture(scope="module")
def lightly() -> Iterator[None]:
    """Kernels optimized less but in the full run: they are compiled in a third of the time, and compute the same."""
    with pytest.MonkeyPatch.context() as patch:
        if not FULL:
            patch.setattr(native, "FLAGS", tuple("-O1" if flag == "-O3" else flag for flag in native.FLAGS))
        native.library.cache_clear()
        yield
    native.library.cache_clear()
