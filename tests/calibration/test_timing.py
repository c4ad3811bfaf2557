"""How a kernel is timed: enough launches a sample, inputs in turn, and the statistic of the method."""

import gc
import weakref
from dataclasses import replace

import pytest

from calibration.kernels.family import Work
from calibration.timing import Method, TooLongError, timed
from tests.calibration.fakes import METHOD, FakeMachine


def work_of(machine, durations, calls=1, inputs=3):
    """Work that takes the given seconds in turn, the last one for ever."""
    turns = list(durations)

    def run(number):
        machine.launched.append(number)
        machine.work(turns.pop(0) if len(turns) > 1 else turns[0])

    return Work(run, [(n,) for n in range(inputs)], lambda: 0.0, 1.0, calls)


def test_a_long_kernel_is_launched_once_a_sample():
    machine = FakeMachine()
    found = timed(work_of(machine, [0.02]), METHOD, machine)
    assert (found.n, found.launches) == (5, 1)
    assert found.t_s == pytest.approx(0.02)
    assert len(machine.launched) == 3 + 1 + 5


def test_a_short_kernel_is_launched_until_a_sample_lasts_a_millisecond():
    machine = FakeMachine()
    found = timed(work_of(machine, [1e-5], calls=4), METHOD, machine)
    assert 100 <= found.launches <= 130
    assert found.t_s == pytest.approx(1e-5 / 4)


class OnDevice(int):
    """An input that is on the device."""

    is_cuda = True


class Replays(FakeMachine):
    """A machine on which issuing a call takes ten times as long as the call."""

    def captured(self, launch):
        self.launched.append("captured")
        begin = self.now_s
        launch()
        took, self.now_s = self.now_s - begin, begin
        return lambda: self.work(took / 10)


@pytest.mark.parametrize(("seconds", "calls", "replayed"), [(1e-5, 1, True), (1e-5, 2, False), (1e-3, 1, False)])
def test_short_calls_on_a_device_are_replayed(seconds, calls, replayed):
    machine, method = Replays(), replace(METHOD, captured_below_s=1e-4)
    work = work_of(machine, [seconds], calls)
    found = timed(replace(work, inputs=[(OnDevice(n),) for n in range(3)]), method, machine)
    assert ("captured" in machine.launched) == replayed
    assert found.t_s * calls == pytest.approx(seconds / 10 if replayed else seconds)
    assert found.launches * found.t_s * calls >= method.sample_s * 0.99


def test_what_is_on_the_host_is_issued():
    machine = Replays()
    timed(work_of(machine, [1e-5]), replace(METHOD, captured_below_s=1e-4), machine)
    assert "captured" not in machine.launched


def test_inputs_take_turns_through_all_samples():
    machine = FakeMachine()
    timed(work_of(machine, [0.02]), METHOD, machine)
    assert machine.launched == [0, 1, 2] * 3


def test_as_many_results_are_kept_as_there_are_inputs():
    class Result:
        """Something whose end can be seen."""

    machine, made, most = FakeMachine(), [], []

    def run(number):
        machine.work(0.02)
        result = Result()
        made.append(weakref.ref(result))
        most.append(sum(held() is not None for held in made))
        return result

    timed(Work(run, [(n,) for n in range(4)], lambda: 0.0, 1.0), METHOD, machine)
    assert max(most) == 5  # four kept, and the one in the making


def test_every_input_is_warmed_up():
    machine = FakeMachine()
    timed(work_of(machine, [0.5] * 6 + [0.02], inputs=6), METHOD, machine)
    assert machine.now_s == pytest.approx(6 * 0.5 + 6 * 0.02)


@pytest.mark.parametrize(("statistic", "expected"), [("min", 0.01), ("median", 0.03)])
def test_statistic(statistic, expected):
    machine = FakeMachine()
    found = timed(
        work_of(machine, [1, 1, 1, 1, 0.05, 0.01, 0.03, 0.02, 0.04]), Method(5, statistic, total_s=0), machine
    )
    assert found.t_s == pytest.approx(expected)
    assert found.t_min_s == pytest.approx(0.01)
    assert found.t_p10_s == pytest.approx(0.014)
    assert found.t_p90_s == pytest.approx(0.046)


def test_cheap_kernels_get_more_samples():
    machine = FakeMachine()
    assert timed(work_of(machine, [0.002]), Method(5, "min", total_s=0.05), machine).n == 25


def test_what_takes_longer_than_is_left_is_not_sampled():
    machine = FakeMachine()
    with pytest.raises(TooLongError, match="needs about 5 s, 2 s are left"):
        timed(work_of(machine, [1.0]), METHOD, machine, left_s=2.0)
    assert len(machine.launched) == 4


def test_garbage_collection_is_put_back():
    machine = FakeMachine()
    seen = []
    work = Work(lambda: (seen.append(gc.isenabled()), machine.work(0.1)), [()], lambda: 0.0, 1.0)
    timed(work, METHOD, machine)
    assert not any(seen)
    assert gc.isenabled()
