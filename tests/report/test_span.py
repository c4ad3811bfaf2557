"""A range of numbers as text."""

from sim.report.numbers import span


def test_one_number_where_both_ends_look_the_same():
    assert span((1.714, 1.35)) == "1.35–1.71"
    assert span([2.001, 2.0]) == "2.00"
