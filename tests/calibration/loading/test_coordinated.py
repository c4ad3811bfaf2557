"""Jobs that share one preparation: every minibatch exactly once for each, whoever is killed."""

import os
import signal
import time
from multiprocessing import get_context

import pytest
import torch
from torch.utils.data import Dataset

from calibration.loading.coordinated import Minibatches, Staging, minibatches, prepare, prepared
from sim.specs.fields import InputError

N, BATCH, EPOCHS = 24, 2, 2
STEPS = EPOCHS * N // BATCH


class Logged(Dataset):
    """Places as numbers, each noted in a file when it is prepared; place `slow` takes a minute the first time."""

    def __init__(self, folder, slow=None):
        self.folder, self.slow = folder, slow

    def __getitem__(self, place):
        note(self.folder / "prepared", f"{place} {os.getpid()}")
        if place == self.slow and not (self.folder / "began").exists():
            note(self.folder / "began", os.getpid())
            time.sleep(60)
        return torch.tensor(place)


def note(path, text):
    with path.open("a") as file:
        file.write(f"{text}\n")


def noted(path):
    return path.read_text().split("\n")[:-1] if path.exists() else []


def train(staging, job, work, stop_after=None):
    """Note every minibatch that the job is given; die by SIGKILL after so many."""
    torch.set_num_threads(1)
    for count, batch in enumerate(minibatches(staging, job, work)):
        note(staging.folder / f"job-{job}", " ".join(str(int(place)) for place in batch))
        assert len(list(staging.folder.glob("*.batch"))) <= staging.slots
        if count + 1 == stop_after:
            os.kill(os.getpid(), signal.SIGKILL)


def started(target, *arguments):
    process = get_context("fork").Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def make(tmp_path, jobs, preparers, slow=None, slots=3):
    work = Minibatches(Logged(tmp_path, slow), N, BATCH, EPOCHS, seed=2)
    return Staging(tmp_path, jobs, preparers, work.batches, slots), work


def expected(work):
    return [" ".join(map(str, work.places(number))) for number in range(work.batches)]


def ended(*processes):
    for process in processes:
        process.join(30)
        assert process.exitcode == 0


def test_minibatches_are_whole_epochs():
    work = Minibatches(Dataset(), 10, 4, 2)
    assert work.batches == 6
    assert [len(work.places(number)) for number in range(6)] == [4, 4, 2] * 2
    for epoch in range(2):
        places = [place for number in range(3 * epoch, 3 * epoch + 3) for place in work.places(number)]
        assert sorted(places) == list(range(10 * epoch, 10 * epoch + 10))


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_every_job_is_given_every_minibatch_once_and_each_is_prepared_once(tmp_path, jobs):
    staging, work = make(tmp_path, jobs, preparers=2)
    with prepared(staging, work):
        ended(*(started(train, staging, job, work) for job in range(jobs)))
    for job in range(jobs):
        assert noted(tmp_path / f"job-{job}") == expected(work)
    places = [int(line.split()[0]) for line in noted(tmp_path / "prepared")]
    assert sorted(places) == list(range(N * EPOCHS))


def test_a_killed_preparer_is_replaced(tmp_path):
    slow = make(tmp_path, 2, 2)[1].places(5)[0]
    staging, work = make(tmp_path, 2, 2, slow)
    with prepared(staging, work):
        jobs = [started(train, staging, job, work) for job in range(2)]
        while not noted(tmp_path / "began"):
            time.sleep(0.01)
        os.kill(int(noted(tmp_path / "began")[0]), signal.SIGKILL)
        ended(*jobs)
    for job in range(2):
        assert noted(tmp_path / f"job-{job}") == expected(work)
    places = [int(line.split()[0]) for line in noted(tmp_path / "prepared")]
    assert {place for place in places if places.count(place) > 1} == {slow}


def test_jobs_prepare_for_themselves_when_all_preparers_are_dead(tmp_path):
    slow = make(tmp_path, 2, 1)[1].places(3)[1]
    staging, work = make(tmp_path, 2, 1, slow)
    with prepared(staging, work) as pids:
        jobs = [started(train, staging, job, work) for job in range(2)]
        while not noted(tmp_path / "began"):
            time.sleep(0.01)
        os.kill(pids[0], signal.SIGKILL)
        ended(*jobs)
    for job in range(2):
        assert noted(tmp_path / f"job-{job}") == expected(work)
    assert {line.split()[1] for line in noted(tmp_path / "prepared")} <= {str(pids[0]), *(str(j.pid) for j in jobs)}


def test_nobody_waits_for_a_killed_job(tmp_path):
    staging, work = make(tmp_path, 3, 2)
    with prepared(staging, work):
        jobs = [started(train, staging, job, work, 5 if job == 1 else None) for job in range(3)]
        ended(jobs[0], jobs[2])
        jobs[1].join(5)
    assert jobs[1].exitcode == -signal.SIGKILL
    assert noted(tmp_path / "job-0") == noted(tmp_path / "job-2") == expected(work)
    assert noted(tmp_path / "job-1") == expected(work)[:5]


def test_a_job_that_never_comes_is_not_waited_for(tmp_path, monkeypatch):
    staging, work = make(tmp_path, 2, 1)
    monkeypatch.setattr("calibration.loading.coordinated.ARRIVAL_S", 1.0)
    with prepared(staging, work):
        ended(started(train, staging, 0, work))
        with pytest.raises(InputError, match="job"):
            next(minibatches(staging, 1, work))
    assert noted(tmp_path / "job-0") == expected(work)


def test_preparers_end_when_the_last_job_leaves(tmp_path):
    staging, work = make(tmp_path, 1, 1)
    preparer = started(prepare, staging, 0, work)
    given = minibatches(staging, 0, work)
    assert next(given).tolist() == work.places(0)
    given.close()
    ended(preparer)


def test_memory_is_bounded_by_the_slots(tmp_path):
    staging, work = make(tmp_path, 2, 1, slots=3)
    with prepared(staging, work):
        first = minibatches(staging, 0, work)  # the other job has not come yet
        for _ in range(3):
            next(first)
        time.sleep(0.1)
        assert len(list(tmp_path.glob("*.batch"))) == 3
        assert not staging.is_ready(3)
        assert len(noted(tmp_path / "prepared")) == 3 * BATCH
        first.close()


@pytest.mark.parametrize("name", ["jobs", "preparers", "batches", "slots"])
def test_bad_input(tmp_path, name):
    with pytest.raises(InputError) as error:
        Staging(tmp_path, **{"jobs": 1, "preparers": 1, "batches": 1, "slots": 1, name: 0})
    assert error.value.path == name
