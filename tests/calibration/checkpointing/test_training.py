"""The log of a training: what it says of updates, and what it may not."""

import json

import pytest

from calibration.checkpointing.training import history
from sim.specs.fields import InputError


def log(folder, *lines):
    path = folder / "log"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def update(step, *samples):
    return {"step": step, "epoch": 0, "samples": samples}


def test_what_was_rolled_back_counts_no_more(tmp_path):
    found = history(log(tmp_path, {"resumed": 0}, update(1, 4), update(2, 5), {"resumed": 1}, update(2, 6)))
    assert [(each.step, each.samples) for each in found] == [(1, (4,)), (2, (6,))]


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (['{"step"'], "log:1: got .*a JSON object"),
        (["[" * 9_000], "log:1: got .*a JSON object"),
        ([{"resumed": 1}], r"log:1\.resumed: got 1; allowed: at most the 0 updates so far"),
        ([{"resumed": "x"}], r"log:1\.resumed: got 'x'; allowed: a whole number"),
        ([update(1), update(3)], r"log:2\.step: got 3; allowed: the update after 1"),
        ([{"step": 1}], r"log:1\.epoch: missing"),
        ([update(1, "x")], r"log:1\.samples\.0: got 'x'; allowed: a whole number"),
    ],
)
def test_a_log_that_is_none_is_refused(tmp_path, lines, told):
    with pytest.raises(InputError, match=told):
        history(log(tmp_path, *lines))
