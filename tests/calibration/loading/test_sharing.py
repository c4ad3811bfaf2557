"""What taking turns on a core costs: measured only where processes do."""

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from calibration.loading import sharing
from calibration.loading.bench import Setting, opened
from calibration.loading.sharing import sharing_loss, side_by_side
from tests.full import full

SMALL = {"files": 16, "scale": 64.0, "batch": 4}


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(sharing, "SHARED_S", 0.2)


def test_processes_share_one_core(tmp_path):
    def step(number):
        (tmp_path / str(os.getpid())).write_text(repr(os.sched_getaffinity(0)))

    rates = side_by_side([step, step])
    cores = [each.read_text() for each in tmp_path.iterdir()]
    assert len(rates) == len(cores) == 2
    assert min(rates) > 0
    assert cores[0] == cores[1] and "," not in cores[0]


def test_nothing_is_lost_where_each_has_a_core(monkeypatch):
    monkeypatch.setattr(sharing, "side_by_side", lambda steps: pytest.fail("measured"))
    assert sharing_loss(None, Setting(**SMALL, workers=2, cores=2)) == 0.0
    assert sharing_loss(None, Setting(**SMALL, workers=1, cores=2, trainer="compute")) == 0.0


def lost(trainer):
    sharing.SHARED_S = 0.2
    setting = Setting(**SMALL, workers=2, cores=1, trainer=trainer)
    with opened(setting) as bench:
        return sharing_loss(bench, setting)


@pytest.mark.slow
@pytest.mark.parametrize("trainer", [full("sleep"), "compute"])
def test_a_share_is_lost_of_a_shared_core(trainer):
    # In a process of its own: forks of one in which another test has trained compute no gradients.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        assert 0 <= fresh.submit(lost, trainer).result() < 0.8


def test_a_loop_that_ends_early_is_told(capfd):
    with pytest.raises(RuntimeError, match="a loop ended early"):
        side_by_side([lambda number: 1 // (2 - number)])
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_loss_is_what_lacks_of_what_each_did_alone(monkeypatch):
    rates = {1: iter([[10.0], [4.0]]), 2: iter([[4.0, 2.0]])}
    monkeypatch.setattr(sharing, "side_by_side", lambda steps: next(rates[len(steps)]))
    setting = Setting(**SMALL, trainer="compute")
    with opened(setting) as bench:
        assert sharing_loss(bench, setting) == pytest.approx(1 - 4 / 10 - 2 / 4)
