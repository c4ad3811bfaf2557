from dataclasses import dataclass, field

import pytest

from calibration.cluster.rounds import run_rounds
from calibration.cluster.worker import Done, SlotError
from sim.specs.fields import InputError

SAVE_S, LOAD_S = 0.25, 0.5


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self):
        return self.now

    def wait(self, seconds):
        self.now += seconds


@dataclass
class Saved:
    """Steps of jobs that are saved; a job that `forgets` comes back without them."""

    steps: dict = field(default_factory=dict)
    forgets: str = ""


class Fake:
    """A slot of so many steps/s on a clock that all slots share; of orders given together the longest counts."""

    def __init__(self, clock, saved, rate):
        self.clock, self.saved, self.rate = clock, saved, rate
        self.job, self.at, self.orders = "", 0, []

    def ask(self, order):
        self.orders.append(order)
        self.begun = self.clock.now

    def answer(self):
        order = self.orders[-1]
        done = getattr(self, order.kind)(order)
        self.clock.now = max(self.clock.now, self.begun + done.seconds)
        return done

    def place(self, order):
        self.job, self.at = order.job, 0 if order.job == self.saved.forgets else self.saved.steps.get(order.job, 0)
        return Done(LOAD_S, self.at)

    def run(self, order):
        assert self.job == order.job
        steps = min(order.steps, int(self.rate * order.seconds))
        self.at += steps
        return Done(steps / self.rate, steps)

    def save(self, order):
        assert self.job == order.job
        self.saved.steps[self.job] = self.at
        return Done(SAVE_S, self.at)

    def drop(self, order):
        return Done()


@pytest.fixture
def made():
    clock, saved = Clock(), Saved()
    return clock, saved, {"fast": Fake(clock, saved, 4.0), "slow": Fake(clock, saved, 1.0)}


def ran(made, steps, rounds, round_s=2.5):
    clock, _, slots = made
    return run_rounds(slots, steps, lambda number, left: rounds[number], round_s, clock, clock.wait)


def test_jobs_move_and_end(made):
    found = ran(made, {"a": 11, "b": 5}, [{"fast": "a", "slow": "b"}, {"fast": "b", "slow": "a"}, {"slow": "a"}])
    first, second, third = found.rounds
    assert (first.begin_s, first.end_s, first.moving_s) == (0, 2.5, LOAD_S)
    assert first.steps == {"a": 8, "b": 2}
    assert second.moving_s == SAVE_S + LOAD_S  # both at once
    assert second.steps == {"a": 1, "b": 3}
    assert [(move.job, move.to, move.to_round) for move in found.moves] == [("b", "fast", 1), ("a", "slow", 1)]
    assert {(move.save_s, move.load_s) for move in found.moves} == {(SAVE_S, LOAD_S)}
    assert third.moving_s == 0  # who stays is neither saved nor restored
    assert found.completion_s["b"] == second.begin_s + second.moving_s + 3 / 4
    assert found.completion_s["a"] == third.begin_s + 2
    assert sum(one.steps.get("a", 0) for one in found.rounds) == 11


def test_a_job_that_waits_is_saved_and_comes_back(made):
    found = ran(made, {"a": 10, "b": 10}, [{"fast": "a"}, {"fast": "b"}, {"fast": "a"}, {"fast": "b"}])
    assert [(move.job, move.to_round) for move in found.moves] == [("a", 2), ("b", 3)]
    assert list(found.completion_s) == ["a", "b"]
    assert [one.begin_s for one in found.rounds] == [0, 2.5, 5, 7.5]  # also after a job that ended early
    assert found.rounds[2].end_s < 7.5


def test_a_job_that_comes_back_with_other_steps_is_told(made):
    made[1].forgets = "a"
    with pytest.raises(SlotError, match="a came to slow with 0 steps, and had done 8"):
        ran(made, {"a": 20}, [{"fast": "a"}, {"slow": "a"}])


def test_assignments_that_cannot_be(made):
    for assignment, told in (
        ({}, "a slot for one of a, b"),
        ({"medium": "a"}, "one of fast, slow"),
        ({"fast": "c"}, "one of a, b"),
        ({"fast": "a", "slow": "a"}, "each job once"),
    ):
        with pytest.raises(InputError, match=told):
            ran(made, {"a": 5, "b": 5}, [assignment])


def test_rounds_too_short_for_anything_end(made):
    with pytest.raises(InputError, match="round_s"):
        run_rounds(made[2], {"a": 5}, lambda number, left: {"fast": "a"}, 0.01, made[0], made[0].wait)


def test_who_stays_runs_while_others_move(made):
    rounds = [{"fast": "a", "slow": "b"}, {"fast": "c", "slow": "b"}]
    found = ran(made, {"a": 100, "b": 4, "c": 7}, [*rounds, *[{"fast": "a"}] * 99])
    second = found.rounds[1]
    assert second.moving_s == SAVE_S + LOAD_S
    assert second.steps == {"b": 2, "c": 7}
    assert found.completion_s["b"] == 2.5 + 2
    assert found.completion_s["c"] == 2.5 + SAVE_S + LOAD_S + 7 / 4
