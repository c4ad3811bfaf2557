"""The one door to the reference data: tests read it from here or skip with the reason."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = Path(os.environ.get("TRAINSIM_REFERENCE", ROOT.parent / "shared" / "reference"))


def reference(name: str) -> Path:
    """Return the path of a reference file; skips the test where the folder is missing."""
    if not REFERENCE.is_dir():
        pytest.skip("oracle: no reference data (set TRAINSIM_REFERENCE)")
    return REFERENCE / name
