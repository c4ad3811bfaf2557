"""A JupyterLab and a browser for the tests of this folder."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.browser.lab import ARGUMENTS, CHROMIUM, Lab, running_lab


@pytest.fixture(scope="package")  # no longer: other tests look for processes that are left over
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A running JupyterLab on a copy of the notebooks."""
    with running_lab(tmp_path_factory.mktemp("lab")) as one:
        yield one


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """A browser without a window."""
    with sync_playwright() as playwright:
        one = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield one
        one.close()
