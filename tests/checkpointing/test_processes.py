"""Processes that save beside training: as the laws say, with what must always hold, and adapting to interference."""

from dataclasses import replace
from itertools import pairwise

import pytest
import simpy
from hypothesis import given, settings

from sim.checkpointing import Times, plan
from sim.checkpointing.laws import costs
from sim.checkpointing.processes import Checkpointer, Span, Trainer
from sim.specs import Checkpointing
from tests.checkpointing.test_stretch import saving

TIMES = Times(iteration_s=1.0, update_s=0.25, host_snapshot_s=0.5, persist_s=2.0)


def ran(times, k, steps, adapt_budget=None, meanwhile=None):
    env = simpy.Environment()
    checkpointer = Checkpointer(env, times, k, adapt_budget)
    trainer = Trainer(env, checkpointer)
    env.process(trainer.run(steps))
    if meanwhile:
        env.process(meanwhile(env, checkpointer))
    env.run()
    return checkpointer, trainer


def test_a_run_as_a_list_of_events():
    """Saving after steps 2 and 4: the snapshot hides, the writing ends before the next is due."""
    checkpointer, trainer = ran(TIMES, 2, 5)
    assert [t / 1e9 for t in trainer.ends] == [1, 2, 3, 4, 5.5]  # the second snapshot waits for the first to be written
    assert [(s.kind, s.step, s.start_ns / 1e9, s.end_ns / 1e9) for s in checkpointer.spans] == [
        ("snapshot", 2, 2.0, 2.5), ("persist", 2, 2.5, 4.5), ("snapshot", 4, 4.5, 5.0), ("persist", 4, 5.0, 7.0),
    ]  # fmt: skip
    assert checkpointer.last_saved == 4


def test_the_update_waits_for_the_snapshot():
    checkpointer, trainer = ran(replace(TIMES, host_snapshot_s=1.5), 4, 6)
    assert [t / 1e9 for t in trainer.ends] == [1, 2, 3, 4, 5.75, 6.75]
    assert [(step.updating - step.ready) / 1e9 for step in trainer.trained] == [0, 0, 0, 0, 0.75, 0]
    assert checkpointer.spans[0] == Span("snapshot", 4, 4_000_000_000, 5_500_000_000)


def test_without_a_snapshot_training_waits():
    checkpointer, trainer = ran(replace(TIMES, snapshot="none"), 2, 4)
    assert [t / 1e9 for t in trainer.ends] == [1, 2, 5.5, 6.5]
    assert [(s.kind, s.step) for s in checkpointer.spans] == [("persist", 2), ("persist", 4)]


def test_who_listens_hears_when_writing_begins_and_ends():
    env, heard = simpy.Environment(), []
    checkpointer = Checkpointer(env, TIMES, 3)
    checkpointer.on_persist(lambda begun: heard.append((env.now / 1e9, begun, checkpointer.persisting)))
    env.process(Trainer(env, checkpointer).run(4))
    env.run()
    assert heard == [(3.5, True, True), (5.5, False, False)]
    assert checkpointer.before_update().triggered


@settings(max_examples=60, deadline=None)
@given(times=saving())
@pytest.mark.parametrize("k", [1, 3, 10])
def test_what_always_holds(k, times):
    checkpointer, trainer = ran(times, k, 6 * k)
    persists = [s for s in checkpointer.spans if s.kind == "persist"]
    snapshots = [s for s in checkpointer.spans if s.kind == "snapshot"]
    assert [s.step for s in persists] == [k * n for n in range(1, 7)]  # each once, in order
    for one, other in pairwise(persists):
        assert one.end_ns <= other.start_ns  # one at a time
    update = round(times.update_s * 1e9)
    for span in snapshots:
        begun = [end - update for end in trainer.ends if end > span.start_ns]  # weight updates after it began
        assert all(at >= span.end_ns - 2 for at in begun)
    # all that a failure could lose: since the snapshot that was written before the one under way
    for span in persists:
        before = span.step - k
        done = sum(end < span.end_ns for end in trainer.ends)
        assert done - before <= 2 * k


@settings(max_examples=40, deadline=None)
@given(times=saving())
@pytest.mark.parametrize("k", [1, 2, 7, 40])
def test_the_law_is_what_the_processes_do(k, times):
    checkpointer, _ = ran(times, k, 5 * k + 1)
    found = {name: float(v) for name, v in costs()(times.values | {"steps_between": k}).items()}
    begins = [s for s in checkpointer.spans if s.kind == ("persist" if times.kind == "none" else "snapshot")]
    took = (begins[4].start_ns - begins[1].start_ns) / 3e9
    overhead = took / (k * times.iteration_s) - 1
    assert overhead == pytest.approx(found["overhead_fraction"], abs=1e-5)
    written = next(s for s in checkpointer.spans if s.kind == "persist" and s.step == 3 * k)
    assert (written.end_ns - begins[2].start_ns) / 1e9 == pytest.approx(found["written_after_s"], abs=1e-5)


def test_adaptation_finds_the_budget_again_under_interference():
    """Somebody else takes the disk and the cores from second 100 on."""
    times = Times(iteration_s=0.1, update_s=0.01, host_snapshot_s=0.05, persist_s=0.5)
    loud = replace(times, contention=0.3, persist_s=1.0)
    begin = plan(times).steps_between

    def interferes(env, checkpointer):
        yield env.timeout(100_000_000_000)
        assert checkpointer.steps_between == begin  # quiet: as planned
        checkpointer.times = loud

    checkpointer, _ = ran(times, begin, 6_000, 0.035, interferes)
    least = plan(loud, Checkpointing(overhead_budget=0.035)).steps_between
    assert least - 2 <= checkpointer.steps_between <= least + 2  # in steps of two
    last = [s.start_ns for s in checkpointer.spans if s.kind == "snapshot"][-3:-1]
    assert (last[1] - last[0]) / 1e9 <= 1.035 * checkpointer.steps_between * 0.1 + 1e-6
