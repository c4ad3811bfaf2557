import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.market.lifetimes import COLUMNS, Lifetimes, lives, read_lifetimes
from sim.market.tables import read_table
from sim.specs.fields import InputError
from tests.market.toys import HOUR

HEADER = ",".join((*COLUMNS, "log")) + "\n"


def event(hour, name, created=True, log="a", zone="us-east-1a", gpus=1):
    """Return a line of a log."""
    what = "created" if created else "preempted_or_gone"
    return f"aws,{what},2020-03-01T{hour:02}:00:00Z,{name},{gpus},V100,{zone},{log}\n"


def written(folder, *lines):
    (folder / "log.csv").write_text(HEADER + "".join(lines), "utf-8")
    return folder / "log.csv"


def test_lives_begin_and_end_and_some_are_still_up(tmp_path):
    path = written(
        tmp_path, event(0, "x"), event(5, "x", created=False), event(6, "x"), event(9, "y"),
        event(10, "y", created=False), event(1, "x", log="b"), event(3, "z", log="b", gpus=8),
    )  # fmt: skip
    found = [(life.devices, (life.end_s - life.begin_s) / HOUR, life.ended) for life in lives(read_table(path))]
    assert found == [(1, 5, True), (1, 4, False), (1, 1, True), (1, 2, False), (8, 0, False)]
    (held,) = read_lifetimes(path)
    assert (held.cloud, held.device, len(held.lived_s), held.ended.sum()) == ("aws", "v100", 5, 2)


def test_who_is_lost_from_sight_counts_until_then():
    held = Lifetimes("aws", "v100", np.array([2.0, 1.0, 3.0, 2.0]), np.array([True, False, True, False]))
    ages, shares = held.surviving()
    assert ages.tolist() == [2, 3]
    assert shares.tolist() == pytest.approx([2 / 3, 0])
    assert held.mean_s == pytest.approx(2 + 2 / 3)
    assert Lifetimes("aws", "v100", np.array([2.0, 7.0]), np.array([False, False])).mean_s == 7.0


@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=20), st.lists(st.booleans(), min_size=20, max_size=20))
def test_the_mean_lies_between_those_of_ended_and_longest(lived, flags):
    all_ended = Lifetimes("aws", "v100", np.array(lived), np.ones(len(lived), dtype=bool))
    assert all_ended.mean_s == pytest.approx(np.mean(lived))
    some = Lifetimes("aws", "v100", np.array(lived), np.array(flags[: len(lived)]))
    assert all_ended.mean_s - 1e-6 <= some.mean_s <= max(lived) + 1e-6


def test_every_mistake_has_its_place(tmp_path):
    wrong = [event(0, "x", created=False), event(1, "y"), event(2, "y"), event(3, "z").replace("created", "born")]
    with pytest.raises(InputError) as caught:
        read_lifetimes(written(tmp_path, *wrong))
    assert "line 5.event: got 'born'" in str(caught.value)
    for lines, words in (
        (wrong[:1], "line 2.event: got 'preempted_or_gone'; allowed: an instance that is created before"),
        (wrong[1:3], "line 3.event: got 'created'; allowed: an instance that is gone before"),
        ([event(0, "x", gpus=0)], "line 2.n_gpus: got '0'"),
        ([event(0, "x").replace("T00", "T99")], "line 2.timestamp_utc: got"),
        ([event(0, "x", zone="\x1b[2J")], "line 2.zone"),
        ([], "no rows"),
    ):
        with pytest.raises(InputError) as caught:
            read_lifetimes(written(tmp_path, *lines))
        assert words in str(caught.value)
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match=r"line 1.*the columns cloud,event"):
        read_lifetimes(tmp_path / "other.csv")
