"""A step on the clock of a longer run ends as it does on its own clock, whenever it is looked at."""

import simpy
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.events import run_events_of
from sim.engine.lockstep import Known, Lockstep
from sim.engine.program import Sharing, Stream
from tests.engine.problems import shared_programs
from tests.engine.test_events import SLOW, log, toy


def followed(program, sharing=None, begin=0, late=0, guest=None):
    """Return the lockstep of a program begun at `begin` and looked at `late` ticks later."""
    env = simpy.Environment()
    held = []

    def around():
        yield env.timeout(begin + late)
        step = Lockstep(env, program, sharing, begin)
        held.append(step)
        if guest:
            env.process(guest(env, step))
        step.launch()
        yield step.done
        assert env.now == begin + max(late, int(step.result().end.max()))

    env.process(around())
    env.run()
    return held[0]


@given(shared_programs(), st.integers(0, 1_000), st.integers(0, 2_000))
def test_undisturbed_it_is_the_same_to_the_tick(program, begin, late):
    sharing = Sharing(SLOW)
    assert log(followed(program, sharing, begin, late).result()) == log(run_events_of(program, sharing))


def test_where_nothing_else_happens_the_longer_clock_has_few_events():
    """Not one for each of the operations, of which a step has thousands."""
    env, program = simpy.Environment(), toy(*[(0, Stream.COMPUTE, 3, ())] * 200)
    Lockstep(env, program, None, 0).launch()
    events = 0
    while env.peek() < float("inf"):
        env.step()
        events += 1
    assert events < 10 < len(program)


@given(shared_programs(), st.integers(0, 500), st.integers(0, 500), st.integers(0, 24))
def test_an_operation_is_held_at_the_same_tick(program, late, more, operation):
    operation %= len(program)

    def inside(world):
        release = world.hold(operation)
        yield world.env.timeout(late + more)
        release()

    wanted = run_events_of(program, Sharing(SLOW), [inside])
    # What is held must not have started by the time somebody looks.
    if run_events_of(program, Sharing(SLOW)).start[operation] < late:
        return
    env = simpy.Environment()

    def around():
        yield env.timeout(late)
        step = Lockstep(env, program, Sharing(SLOW), 0)
        release = step.hold(operation)
        step.launch()
        yield env.timeout(more)
        release()
        yield step.done
        return step.result()

    assert log(env.run(until=env.process(around()))) == log(wanted)


def test_a_stream_kept_active_slows_others_while_it_is():
    program = toy((0, Stream.COMPUTE, 100, ()), (1, Stream.COMPUTE, 100, ()))

    def guest(env, step):
        yield env.timeout(20)
        release = step.keep_active(0, Stream.HOST)
        yield env.timeout(30)
        release()

    step = followed(program, Sharing({(Stream.COMPUTE, Stream.HOST): 0.5}), begin=7, guest=guest)
    assert log(step.result()) == [(0, 110), (0, 100)]


def test_starts_and_ends_are_told_on_the_longer_clock():
    program, seen = toy((0, Stream.COMPUTE, 10, ()), (0, Stream.COMPUTE, 5, ())), []

    def guest(env, step):
        yield step.started(1)
        seen.append(env.now)
        yield step.ended(1)
        seen.append(env.now)

    followed(program, begin=100, guest=guest)
    assert seen == [110, 115]


def disturbed(program, known, launched, freed, written):
    """Return a lockstep whose operations `freed` are held until then and beside which ranks write from, to those ticks,
    and what it told: (tick, event)."""
    env, told, ranks = simpy.Environment(), [], int(program.graph.rank.max()) + 1

    def free(let_go, tick):
        yield env.timeout(tick)
        let_go()

    def tell(what, event):
        yield event
        told.append((env.now, what))

    def around():
        yield env.timeout(launched)
        step = Lockstep(env, program, Sharing(SLOW), 0, known)
        let_go = {i: step.hold(i) for i in freed}
        step.launch()
        for i in range(0, len(program), 3):
            env.process(tell(("started", i), step.started(i)))
            env.process(tell(("ended", i), step.ended(i)))
        for i, tick in freed.items():
            env.process(free(let_go[i], tick))
        for rank, (begin, ticks) in enumerate(written):
            env.process(write(step, rank % ranks, begin, ticks))
        yield step.done
        told.append((env.now, "done"))
        return step

    def write(step, rank, begin, ticks):
        yield env.timeout(begin)
        quiet = step.keep_active(rank, Stream.HOST)
        yield env.timeout(ticks)
        quiet()

    step = env.run(until=env.process(around()))
    return step, told


@given(shared_programs(), st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), min_size=2, max_size=4))
def test_what_is_known_changes_nothing(program, steps):
    """Steps that share some of their disturbances, each told as one that remembers nothing."""
    known = Known()
    for late, freed, written in [*steps, *steps]:
        held = {len(program) - 1: 40 if freed else 90}
        asked = (5 * late, held, [(20, 60), (35, 10 if written else 500)])
        step, told = disturbed(program, known, *asked)
        fresh, wanted = disturbed(program, None, *asked)
        assert (sorted(map(str, told)), log(step.result())) == (sorted(map(str, wanted)), log(fresh.result()))
    assert step.world is None


def test_a_step_is_run_from_where_it_differs_on():
    program, known = toy((0, Stream.COMPUTE, 100, ()), (0, Stream.COMPUTE, 100, ())), Known()
    ended = [log(disturbed(program, known, 0, {1: free}, [])[0].result())[1] for free in (150, 170, 150, 120)]
    assert ended == [(150, 250), (170, 270), (150, 250), (120, 220)]
