import os
import signal
from contextlib import closing

import pytest
import torch

from calibration.cluster import worker as workers
from calibration.cluster.networks import NETWORKS, Training
from calibration.cluster.worker import Order, SlotError, SlotProcess, Worker, cores
from calibration.guards import within

NAMES = list(NETWORKS)
SMALL = "small-mlp"


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", NAMES)
def test_a_training_that_moves_is_the_same_to_the_last_bit(tmp_path, name):
    here, there = Worker(NETWORKS, tmp_path), Worker(NETWORKS, tmp_path, link_bytes_per_s=1e10)
    for worker in (here, there, here):
        worker.do(Order("place", name))
        assert worker.do(Order("run", name, 60, 3)).steps == 3
        worker.do(Order("save", name))
    assert here.do(Order("place", name)).steps == 9
    alone = Training(NETWORKS[name])
    for _ in range(9):
        alone.step()
    assert here.training is not None
    assert all(torch.equal(one, alone.model.state_dict()[key]) for key, one in here.training.model.state_dict().items())
    momentum = alone.state()["optimizer"]["state"], here.training.state()["optimizer"]["state"]
    assert all(torch.equal(one["momentum_buffer"], momentum[1][n]["momentum_buffer"]) for n, one in momentum[0].items())


def test_time_and_steps_both_end_a_run(tmp_path):
    worker = Worker(NETWORKS, tmp_path)
    worker.do(Order("place", SMALL))
    assert worker.do(Order("run", SMALL, 60, 2)).steps == 2
    assert worker.do(Order("run", SMALL, 0, 2)).steps == 0
    done = worker.do(Order("run", SMALL, 0.05, 10**9))
    assert done.steps > 0
    assert done.seconds >= 0.05


def test_a_link_slows_down_by_the_bytes_of_a_batch(tmp_path):
    rates = []
    for link in (None, NETWORKS[SMALL].batch_bytes / 0.01):
        worker = Worker(NETWORKS, tmp_path, link)
        worker.do(Order("place", SMALL))
        done = worker.do(Order("run", SMALL, 60, 20))
        rates.append(done.steps / done.seconds)
        worker.do(Order("drop", SMALL))
    assert rates[1] < 100 < rates[0]  # 10 ms a batch


def test_what_is_dropped_is_not_saved(tmp_path):
    worker = Worker(NETWORKS, tmp_path)
    worker.do(Order("place", SMALL))
    worker.do(Order("run", SMALL, 60, 2))
    worker.do(Order("drop", SMALL))
    assert worker.do(Order("place", SMALL)).steps == 0
    worker.do(Order("drop", SMALL))
    with pytest.raises(SlotError, match="no job is placed"):
        worker.do(Order("save", SMALL))


def test_a_worker_in_a_process_tells_what_failed(tmp_path):
    slot = SlotProcess(NETWORKS, tmp_path, core=cores()[0])
    slot.ask(Order("run", SMALL, 1, 1))
    with pytest.raises(SlotError, match="no job is placed"):
        slot.answer()
    slot.ask(Order("place", SMALL))
    assert slot.answer().steps == 0
    slot.ask(Order("run", SMALL, 60, 3))
    assert slot.answer().steps == 3
    slot.close()
    with pytest.raises(SlotError, match="has ended"):
        slot.answer()


def test_a_worker_that_does_not_answer_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "LATE_S", 0.1)
    with closing(SlotProcess(NETWORKS, tmp_path)) as slot:
        os.kill(slot._process.pid, signal.SIGSTOP)
        slot.ask(Order("run", SMALL, 0.1, 1))
        with within(5), pytest.raises(SlotError, match=r"has not answered after 0\.2 s"):
            slot.answer()
        slot._process.join(5)
        with pytest.raises(SlotError, match="has ended"):
            slot.answer()
