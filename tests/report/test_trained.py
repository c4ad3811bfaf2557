"""A stretch of training: the same bars in figure and trace, in words, on the page."""

import json
from itertools import pairwise

import numpy as np
import pytest

from sim.engine.step import Step
from sim.report import figures, save_trace
from sim.report.html import page
from sim.report.stretch import bars
from sim.report.text import answer_trained, losses_words
from sim.run import Trained, train
from sim.run.losses import losses_of
from sim.specs import Around, Checkpointing, Dataset, Failures, InputError, Loading, Storage

SLOW = Storage(read_bytes_per_s=2e9, write_bytes_per_s=2e10)
OFTEN = Failures(device_mtbf_s=8 * 2.0, restart_s=0.3, repair_s=0.0)
FAST = Storage(read_bytes_per_s=1e12, write_bytes_per_s=5e10)
SAVED = Checkpointing(every=4, contention=0.3, storage=FAST, failures=OFTEN)
FED = Loading(dataset=Dataset(samples=10**6, sample_bytes=1e6), storage=SLOW, workers=2, prep_s=1e-3)


@pytest.fixture(scope="module")
def hour(step: Step) -> Trained:
    """Sixty steps or so, with everything."""
    return train(step, FED, SAVED, seconds=60 * step.step_time_s, seed=2)


def test_every_part_has_its_rows(hour: Trained) -> None:
    figure = figures.trained(hour)
    rows = list(figure.layout.yaxis.ticktext)
    assert rows == ["0", "1", "2", "3", "data worker 0", "data worker 1", "snapshots", "storage", "failures"]
    names = {trace.name for trace in figure.data}
    assert {"forward (F)", "reading data", "preparing data", "snapshot", "writing to storage"} <= names
    assert {"lost to a failure", "until training goes on"} <= names


def test_long_stretches_show_steps(hour: Trained) -> None:
    found = bars(hour, (0, round(hour.seconds * 1e9)), np.arange(4), most=10)
    shown = [bar for bar in found if bar.row == "training"]
    assert [bar.words for bar in shown] == [f"step {span.number}" for span in hour.spans]
    assert {bar.look for bar in shown} == {"step", "late"}


def test_bars_lie_in_the_window_and_do_not_overlap(hour: Trained) -> None:
    window = (0.2 * hour.seconds, 0.3 * hour.seconds)
    found = bars(hour, tuple(round(t * 1e9) for t in window), np.array([0, 3]))
    assert {bar.row for bar in found} >= {"0", "3"} and "1" not in {bar.row for bar in found}
    for row in ("0", "3", "data worker 0", "storage"):
        own = [bar for bar in found if bar.row == row]
        assert all(a.end <= b.start for a, b in pairwise(own)), row
    assert all(bar.end > window[0] * 1e9 and bar.start < window[1] * 1e9 for bar in found)


def test_windows_outside_are_refused(hour: Trained) -> None:
    for window in ((1.0, 1.0), (hour.seconds, 2 * hour.seconds), (-1.0, 1.0)):
        with pytest.raises(InputError, match="window"):
            figures.trained(hour, window)


@pytest.mark.slow
def test_the_trace_holds_the_same(hour: Trained, tmp_path) -> None:
    data = json.loads(save_trace(hour, tmp_path / "hour.json").read_text())
    slices = [event for event in data["traceEvents"] if event["ph"] == "X"]
    whole = bars(hour, (0, round(hour.seconds * 1e9)), np.arange(4), most=10**6)
    assert len(slices) == len(whole)
    assert sum(event["dur"] for event in slices) == pytest.approx(sum(bar.end - bar.start for bar in whole) / 1e3)
    assert data["otherData"]["answer"] == answer_trained(hour)
    assert save_trace(hour, tmp_path / "hour.pftrace").stat().st_size > 1_000


def test_it_is_said_in_a_sentence(hour: Trained, step: Step) -> None:
    text = answer_trained(hour)
    assert f"{hour.steps} steps in" in text and "one every 4 steps" in text and "failures" in text
    assert answer_trained(train(step, seconds=10 * step.step_time_s)).endswith(".")
    lines = losses_words(losses_of(step, Around(loading=FED, checkpointing=SAVED)))
    assert [line.split(":")[0] for line in lines] == ["Data", "Checkpoints"]
    assert losses_words(None) == []


@pytest.mark.slow
def test_the_page_shows_it(hour: Trained, step: Step) -> None:
    text = page(step, trained=hour)
    assert "of training</h2>" in text
    assert "&quot;loading&quot;" in text and "&quot;checkpointing&quot;" in text  # the job for making it again
    assert "of training</h2>" not in page(step)
