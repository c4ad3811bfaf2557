"""Small folders of generated files."""

import pytest

from calibration.loading.generated import generate
from calibration.loading.sources import Files


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """40 small JPEGs as a source."""
    folder = tmp_path_factory.mktemp("images")
    return Files(folder, generate(folder, "images", 40, 64))


@pytest.fixture(scope="session")
def sounds(tmp_path_factory):
    """10 short FLACs as a source."""
    folder = tmp_path_factory.mktemp("sounds")
    return Files(folder, generate(folder, "audio", 10, 0.5))
