"""One JupyterLab for all tests that want one."""

from collections.abc import Iterator

import pytest

from tests.browser.lab import Lab, running_lab


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A running JupyterLab on a copy of the notebooks."""
    with running_lab(tmp_path_factory.mktemp("lab")) as one:
        yield one
