"""Numbers as readers see them."""

import pytest

from sim.units import counted, digits3, gigabytes, lasting, seconds, si


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (4.2134, "4.21"),
        (71.26, "71.3"),
        (999.6, "1\u2009000"),
        (12345.6, "12\u2009346"),
        (0.001234, "0.00123"),
        (9.996, "10.0"),
        (0.09999, "0.100"),
    ],
)
def test_three_digits(value, text):
    assert digits3(value) == text


@pytest.mark.parametrize(("value", "text"), [(31.43, "31.4 s"), (0.0131, "13.1 ms"), (2e-9, "2.00 ns"), (0, "0 ns")])
def test_seconds(value, text):
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(712_645, "198 h"), (3600, "1.00 h"), (3599, "3\u2009599 s"), (0.5, "500 ms")]
)
def test_lasting(value, text):
    assert lasting(value) == text


def test_si():
    assert si(989.4e12, "FLOP/s") == "989 TFLOP/s"
    assert gigabytes(71.2e9) == "71.2 GB"


@pytest.mark.parametrize(
    ("value", "text"), [(15e12, "15.0 trillion"), (2.3e6, "2.30 million"), (184_811, "184\u2009811"), (0, "0")]
)
def test_counts(value, text):
    assert counted(value) == text
