"""Profiling, and k that follows what saving costs."""

import threading

import pytest
import torch

from calibration.checkpointing.checkpointer import Checkpointer
from calibration.checkpointing.engine import TorchSave
from calibration.checkpointing.frequency import Adapted, Effort, Frequency, adapting, profiled
from calibration.checkpointing.iterator import Order, ResumableLoader
from calibration.checkpointing.store import Store
from calibration.checkpointing.training import Run, Sizes, Tokens, Trainee
from sim.checkpointing import plan

SIZES = Sizes(hidden=128, layers=2, heads=4)


@pytest.fixture
def run_on(tmp_path):
    """Return a maker of runs that save to storage of a stated speed."""
    made = []

    def run(engine):
        loader = ResumableLoader(Tokens(1000, SIZES), Order(samples=1000, batch=4))
        made.append(Checkpointer(tmp_path, engine))
        return Run(Trainee(SIZES), loader, made[-1])

    yield run
    for checkpointer in made:
        checkpointer.close()


def test_two_more_over_the_budget_one_less_with_room():
    adapted = Adapted(Frequency(steps_between=4, iteration_s=1.0, overhead_budget=0.1))
    assert adapted.interval(4.3, 1.0) == pytest.approx(0.075) and adapted.steps_between == 4
    assert adapted.interval(4.5, 1.0) == pytest.approx(0.125) and adapted.steps_between == 6
    adapted.interval(7.0, 1.0)
    assert adapted.steps_between == 8
    adapted.interval(8.7, 1.0)
    assert adapted.steps_between == 8, "0.7 lost of 0.8 that may be: no room"
    adapted.interval(8.3, 7.5)
    assert adapted.steps_between == 8, "seven steps would not be long enough to write it"
    for k in (7, 6, 5, 4, 4):
        adapted.interval(adapted.steps_between + 0.2, 1.0)
        assert adapted.steps_between == k, "not below the rule's"


def test_what_slows_every_step_is_no_cost_of_saving():
    adapted = Adapted(Frequency(steps_between=4, iteration_s=1.0))
    assert adapted.interval(8.0, 1.0, [2.0, 2.0, 2.1]) == pytest.approx(0.0)
    assert (adapted.steps_between, adapted.iteration_s) == (4, 2.0)
    assert adapted.interval(8.0, 1.0, [1.0]) == pytest.approx(0.0), "one free step says too little"


def test_profiling_trains_on_and_finds_slow_storage(run_on):
    run = run_on(TorchSave(store=Store(bytes_per_s=40e6)))
    state = {name: one.clone() for name, one in run.trainee.model.state_dict().items()}
    times = profiled(run, Effort(rounds=2, alone_s=0.02))
    assert run.at > 8 and not torch.equal(state["head.weight"], run.trainee.model.head.weight)
    parameters = sum(p.numel() for p in run.trainee.model.parameters())
    assert times.state_bytes == pytest.approx(12 * parameters, rel=0.05)
    assert times.state_bytes / 40e6 <= times.persist_s < 10 * times.state_bytes / 40e6
    assert times.reload_s >= times.state_bytes / 40e6
    assert 0 < times.update_s < times.iteration_s
    assert times.host_snapshot_s < times.persist_s
    assert plan(times).steps_between >= times.persist_s / times.iteration_s - 1


def test_profiling_knows_that_a_copy_in_the_call_hides_nothing(run_on):
    engine = TorchSave()
    engine.hides = False
    times = profiled(run_on(engine), Effort(rounds=1, alone_s=0.01))
    assert times.update_s == times.iteration_s and times.hideable_s == 0


@pytest.mark.slow
def test_k_rises_while_another_writes_to_the_same_storage_and_falls_after(run_on):
    store = Store(bytes_per_s=200e6)
    run = run_on(TorchSave(store=store))
    times = profiled(run, Effort(rounds=2, alone_s=0.02))
    k = plan(times).choice("checkfreq-rule").steps_between
    frequency = Frequency(steps_between=k, iteration_s=times.iteration_s, overhead_budget=0.5)
    stop = threading.Event()

    def write():
        while not stop.is_set():
            store.wait(2**22)

    other = threading.Thread(target=write)
    found = []
    for one in adapting(run, frequency, 1_000):
        found.append(one.steps_between)
        if len(found) == 3:
            other.start()
        if len(found) == 8:
            stop.set()
            other.join()
        if len(found) > 8 and found[-1] < max(found):
            break
    assert max(found) >= max(found[:3]) + 2
    assert found[-1] < max(found)
