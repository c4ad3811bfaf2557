"""Where labels of points stand."""

from sim.report.figures.labels import Point, placed


def point(x, value, text="0.5", spread=0.0):
    return Point(x, value, value - spread, value + spread, text)


def test_labels_of_points_that_meet_stand_apart():
    lines = [[point(1, 10), point(10, 50)], [point(1, 90), point(10.2, 50.5)]]
    (_, one), (_, other) = placed(lines)
    assert {one, other} == {"top right", "bottom right"}


def test_a_label_beside_a_whisker_and_a_line_crosses_neither():
    (spots,) = placed([[point(1, 0), point(10, 50, spread=40), point(100, 100)]])
    assert spots[1] in ("top left", "bottom right")  # the line rises to the right, the whisker is in the middle


def test_where_all_is_covered_there_is_no_label():
    crowd = [[point(10 * (1 + dx / 500), 50 + dy / 2, "0.123")] for dx in range(-9, 10) for dy in range(-9, 10)]
    found = [spot for (spot,) in placed([*crowd, [point(1, 0)], [point(100, 100)]])]
    assert found[len(crowd) // 2] is None and found[-2:] == ["top right", "top right"]


def test_one_point_alone():
    assert placed([[point(3, 0.5)]]) == [["top right"]]
