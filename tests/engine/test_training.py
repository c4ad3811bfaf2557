"""Steps one after the other: undisturbed they are not run again, and come out as if they were."""

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.engine import training
from sim.engine.program import Sharing, Stream
from sim.engine.training import Failure, Repeated, Training

KAPPA = Sharing({(Stream.COMPUTE, Stream.HOST): 0.5, (Stream.COMPUTE, Stream.D2H): 0.25})


class Belt:
    """A microbatch every `period` ticks, `ahead` of them at most before they are taken."""

    def __init__(self, env, period, ahead=4):
        self.store = simpy.Store(env, ahead)
        self.env, self.period = env, period
        env.process(self.deliver())

    def deliver(self):
        while True:
            yield self.env.timeout(self.period)
            yield self.store.put(1)

    def take(self):
        return self.store.get()


class Keeper:
    """Every `every` steps a snapshot of `copy` ticks, then `write` ticks to storage; one at a time."""

    def __init__(self, env, every, copy, write):
        self.env, self.every, self.copy, self.write = env, every, copy, write
        self.persisting, self.last_saved, self.calls = False, None, []
        self.free = self.quiet = env.event().succeed()

    def before_update(self):
        return self.quiet

    def on_persist(self, callback):
        self.calls.append(callback)

    def after_step(self, step):
        if step % self.every:
            return self.env.event().succeed()
        begun = self.env.event()
        self.env.process(self.save(step, begun))
        return begun

    def save(self, step, begun):
        yield self.free
        self.quiet, self.free = self.env.event(), self.env.event()
        quiet, free = self.quiet, self.free
        begun.succeed()
        yield self.env.timeout(self.copy)
        quiet.succeed()
        self.persisting = True
        for call in self.calls:
            call(True)
        yield self.env.timeout(self.write)
        self.persisting, self.last_saved = False, step
        for call in self.calls:
            call(False)
        free.succeed()


def step_of(engine="path", **plan):
    plan = {"pp": 2, "tp": 4, "global_batch": 16, "micro_batch": 2, "optimizer_barrier": True} | plan
    return sim.simulate(sim.models["llama3-8b"], sim.Cluster.of("h100-sxm-80gb"), sim.Plan(**plan), engine=engine)


def repeated(step):
    return Repeated(step.timeline.schedule, step.timeline.run, round(step.step_time_s * 1e9))


def trained(step, steps, period=None, saving=None, sharing=KAPPA, fail_at=(), pause=0, always=False):
    """Return the training after about `steps` undisturbed steps; period and saving in shares of a step."""
    env, one = simpy.Environment(), repeated(step)
    feeder = Belt(env, round(period * one.ticks)) if period else None
    saver = Keeper(env, saving[0], *(round(x * one.ticks) for x in saving[1:])) if saving else None
    made = Training(env, one, sharing, steps * one.ticks, feeder, saver, copies=True, always=always)
    running = env.process(made.run())

    def fail():
        for at in fail_at:
            yield env.timeout(max(0, round(at * one.ticks) - env.now))
            again = Keeper(env, saving[0], *(round(x * one.ticks) for x in saving[1:]))
            running.interrupt(Failure(round(pause * one.ticks), again))

    if fail_at:
        env.process(fail())
    env.run(until=running)
    return made


def log(training):
    return [(s.number, s.begin, s.end, s.data_ticks, s.lost) for s in training.spans]


@pytest.mark.parametrize("engine", ["path", "events"])
def test_undisturbed_steps_take_what_one_takes(engine):
    made = trained(step_of(engine), 5)
    ticks = made.step.ticks
    assert log(made) == [(n + 1, n * ticks, (n + 1) * ticks, 0, False) for n in range(5)]
    assert all(span.run is None for span in made.spans)


@settings(max_examples=12)
@given(
    st.sampled_from(["path", "events"]),
    st.sampled_from([None, 0.02, 0.11, 0.13, 0.2]),
    st.sampled_from([None, (1, 0.1, 0.2), (2, 0.9, 0.8), (3, 1.2, 2.5), (1, 0.0, 0.4)]),
)
def test_steps_run_one_by_one_come_out_the_same(engine, period, saving):
    step = step_of(engine)
    short, long = (trained(step, 6, period, saving, always=always) for always in (False, True))
    assert log(short) == log(long)
    assert all(span.run is not None for span in long.spans)


def test_steps_disturbed_alike_are_run_once(monkeypatch):
    """Every step but the first is beside a snapshot and a write."""
    made = trained(step_of("events"), 6, saving=(1, 0.3, 0.2))
    runs = [span.run for span in made.spans if span.run]
    assert len(runs) == 5
    assert len({id(run) for run in runs}) == 1
    monkeypatch.setattr(training, "REMEMBERED", 0)
    anew = trained(step_of("events"), 6, saving=(1, 0.3, 0.2))
    assert log(anew) == log(made)
    assert len({id(span.run) for span in anew.spans if span.run}) == 5


def test_slow_data_sets_the_pace():
    made = trained(step_of(), 20, period=0.25)  # 8 microbatches of a quarter of a step each
    spans = made.spans[4:]
    assert all(span.end - span.begin == pytest.approx(2 * made.step.ticks, rel=0.01) for span in spans)
    assert all(span.data_ticks == pytest.approx(made.step.ticks, rel=0.02) for span in spans)


def test_gathers_of_weights_take_no_data():
    """ZeRO-1 gathers beside the first forwards on the event engine: four microbatches, four takes."""
    made = trained(step_of("events", pp=1, tp=2, zero=1, global_batch=32), 8, period=0.5)
    assert made.spans[-1].end - made.spans[-1].begin == pytest.approx(2 * made.step.ticks, rel=0.01)


def test_data_in_time_costs_nothing():
    made = trained(step_of(), 10, period=0.02)
    assert made.spans[-1].end - made.spans[2].begin == 8 * made.step.ticks
    assert all(span.run is None for span in made.spans[2:])


def test_a_snapshot_that_outlasts_the_passes_holds_the_update():
    """Copied during the whole next step, which is slower for it; its update waits."""
    made = trained(step_of(), 6, saving=(2, 1.5, 0.1), sharing=Sharing())
    ticks = made.step.ticks
    lengths = [span.end - span.begin for span in made.spans]
    assert lengths[0] == lengths[1] == lengths[3] == ticks
    update = made.step.run.end - made.step.run.start
    last = int(update[made.step.updates].max())
    assert lengths[2] == pytest.approx(1.5 * ticks + last, rel=0.01)


def test_writing_slows_by_its_share():
    made = trained(step_of("path"), 9, saving=(3, 0.0, 10.0))
    lengths = [span.end - span.begin for span in made.spans]
    busy = made.step.run.makespan
    assert lengths[:3] == [made.step.ticks] * 3
    assert lengths[3] == pytest.approx(made.step.ticks + busy / 2, rel=0.1)  # messages do not slow down


def test_one_write_at_a_time():
    """The next snapshot is due after two steps; writing takes five."""
    made = trained(step_of(), 20, saving=(2, 0.1, 5.0), sharing=Sharing())
    gaps = [b.begin - a.end for a, b in zip(made.spans, made.spans[1:], strict=False)]
    assert max(gaps) > 2 * made.step.ticks
    per_two = (made.spans[-1].end - made.spans[3].end) / (len(made.spans) - 4) * 2
    assert per_two == pytest.approx(5.1 * made.step.ticks, rel=0.1)


def test_a_failure_loses_what_was_not_saved():
    made = trained(step_of(), 20, saving=(4, 0.1, 0.2), sharing=Sharing(), fail_at=[10.5], pause=3.0)
    lost = [span.number for span in made.spans if span.lost]
    assert lost == [9, 10, 11]
    kept = [span.number for span in made.spans if not span.lost]
    assert kept == list(range(1, made.done + 1))
    assert [(b - a) / made.step.ticks for a, b in made.pauses] == pytest.approx([3.0])
    again = next(span for span in made.spans if span.number == 9 and not span.lost)
    assert again.begin == made.pauses[0][1]


def test_what_was_saved_before_a_failure_outlasts_the_next():
    made = trained(step_of(), 30, saving=(4, 0.1, 0.2), sharing=Sharing(), fail_at=[10.5, 12.8], pause=1.0)
    assert [span.number for span in made.spans if span.lost] == [9, 10, 11, 9, 10]
    assert [span.number for span in made.spans if not span.lost] == list(range(1, made.done + 1))


def test_a_failure_while_waiting_waits_again():
    made = trained(step_of(), 20, saving=(4, 0.1, 0.2), sharing=Sharing(), fail_at=[5.0, 6.0], pause=3.0)
    assert [(b - a) / made.step.ticks for a, b in made.pauses] == pytest.approx([1.0, 3.0], rel=1e-6)
    assert [span.number for span in made.spans if not span.lost] == list(range(1, made.done + 1))
