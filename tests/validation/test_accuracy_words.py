"""The runs of one table, and what they are off in a sentence."""

import pytest

from sim.specs import InputError
from sim.validation.accuracy import error_words, errors_by_source, of_table, read_accuracy
from tests.oracle import ROOT


@pytest.fixture(scope="module")
def rows():
    return read_accuracy(ROOT / "notebooks/data/accuracy.csv")


def test_one_table(rows):
    for what in ("time", "memory"):
        part = of_table(rows, "torchtitan", what)
        errors = errors_by_source(rows, what)["torchtitan"]
        assert len(part) == errors.n
        assert error_words(part, what).startswith(f"{errors.n} runs: {errors.mape:.1f} % off on average")


def test_what_was_not_measured_is_said(rows):
    with pytest.raises(InputError, match="torchtitan"):
        of_table(rows, "vtrain_multi", "memory")
    with pytest.raises(InputError, match=r"rows: got \[\]; allowed: one table"):
        error_words([])
