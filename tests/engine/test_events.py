"""The event engine: toy programs as logs, contention by hand and against the path, guests."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.events import World, run_events_of
from sim.engine.fluid_path import run_shared
from sim.engine.graph import DeadlockError, Graph
from sim.engine.path import run_program
from sim.engine.program import Program, Sharing, Stream
from sim.schedules import SCHEDULES, Action, Kind
from sim.specs import InputError
from tests.engine.problems import problems, program_of, shared_programs

SLOW = {(a, b): 0.5 for a in Stream for b in Stream if a != b and Stream.LINK not in (a, b)}


def toy(*operations, edges=()):
    """Return a program of (rank, stream, ticks, links), each in the lane of its rank and stream."""
    rank, stream, ticks, links = zip(*operations, strict=True)
    n = len(operations)
    waits = [[(s, lag) for s, w, lag in edges if w == i] for i in range(n)]
    flat = [pair for each in waits for pair in each]
    rank, stream = np.array(rank), np.array(stream)
    graph = Graph(
        rank, np.zeros(n, dtype=int), np.zeros(n, dtype=int), np.arange(n), rank * len(Stream) + stream,
        np.cumsum([0, *map(len, waits)]), np.array([s for s, _ in flat], dtype=int),
        np.full(len(flat), -1), np.zeros(n, dtype=bool),
    )  # fmt: skip
    return Program(
        graph, np.array(ticks), np.array([lag for _, lag in flat], dtype=int), stream,
        np.cumsum([0, *map(len, links)]), np.array([x for each in links for x in each], dtype=int),
    )  # fmt: skip


def log(run):
    return list(zip(run.start.tolist(), run.end.tolist(), strict=True))


@pytest.mark.parametrize("name", SCHEDULES)
@given(data=st.data())
def test_both_engines_agree_to_the_tick_with_nothing_shared(name, data):
    """1,000 plans of each kind under the full profile."""
    program = program_of(data.draw(problems(name)))
    path, events = run_program(program), run_events_of(program)
    assert (path.start == events.start).all()
    assert (path.end == events.end).all()


@given(shared_programs())
def test_they_agree_on_any_operations(program):
    assert log(run_program(program)) == log(run_events_of(program))


@given(shared_programs(), st.sampled_from([0.3, 0.5, 1.7]), st.booleans())
def test_the_compiled_events_are_the_same_to_the_tick(program, slowdown, links):
    for own in ((), ({}, {(Stream.COMPUTE, Stream.COLLECTIVE): 2.0})):
        sharing = Sharing({pair: slowdown + 0.1 * pair[1] for pair in SLOW}, links, own=own)
        assert log(run_shared(program, sharing)) == log(run_events_of(program, sharing))


@given(shared_programs())
def test_contention_is_never_faster(program):
    path, events = run_program(program), run_events_of(program, Sharing(SLOW))
    assert (events.end >= path.end).all()
    assert (events.start >= path.start).all()


@given(shared_programs())
def test_contention_fades_as_bandwidth_grows(program):
    """What contention adds is bounded by the time that anything but compute is under way, however it is shared."""
    compute = program.stream == Stream.COMPUTE
    for divide in (1, 10, 1_000):
        faster = Program(
            program.graph, np.where(compute, program.duration, program.duration // divide), program.lag,
            program.stream, program.first_link, program.links,
        )  # fmt: skip
        gap = run_events_of(faster, Sharing(SLOW)).makespan - run_program(faster).makespan
        most = 3 * len(program) * int(faster.duration[~compute].sum())
        assert 0 <= gap <= most
    assert most == 0


def test_two_transfers_halve_a_link():
    """Alone 10 and 30: together until the short one has its 10 at half speed; then the long one goes on alone."""
    run = run_events_of(toy((0, Stream.LINK, 10, (7,)), (1, Stream.LINK, 30, (7,))), Sharing())
    assert log(run) == [(0, 20), (0, 40)]
    apart = run_events_of(toy((0, Stream.LINK, 10, (7,)), (1, Stream.LINK, 30, (8,))), Sharing())
    assert log(apart) == [(0, 10), (0, 30)]


def test_compute_and_collective_slow_each_other():
    """Each at 1 / 1.5: the shorter, 20, takes 30; the longer has done 20 of its 50 by then."""
    program = toy((0, Stream.COMPUTE, 50, ()), (0, Stream.COLLECTIVE, 20, ()))
    assert log(run_events_of(program, Sharing(SLOW))) == [(0, 60), (0, 30)]
    elsewhere = toy((0, Stream.COMPUTE, 50, ()), (1, Stream.COLLECTIVE, 20, ()))
    assert log(run_events_of(elsewhere, Sharing(SLOW))) == [(0, 50), (0, 20)]


@pytest.mark.parametrize("run", [run_events_of, run_shared])
def test_each_rank_has_slowdowns_of_its_own(run):
    """Of four ranks, two copies of a pipeline of two: the second of each is slowed twice as much, by 1.0."""
    pairs = (((r, Stream.COMPUTE, 50, ()), (r, Stream.COLLECTIVE, 20, ())) for r in range(4))
    program = toy(*(operation for pair in pairs for operation in pair))
    found = log(run(program, Sharing(SLOW, own=({}, dict.fromkeys(SLOW, 1.0)))))
    assert found == [(0, 60), (0, 30), (0, 70), (0, 40)] * 2


def test_all_streams_of_a_device_add_up():
    """Host copies in both directions beside compute and a collective: 1 / (1 + 3 x 0.5) each."""
    four = toy(*((0, stream, 20, ()) for stream in (Stream.COMPUTE, Stream.COLLECTIVE, Stream.H2D, Stream.D2H)))
    assert log(run_events_of(four, Sharing(SLOW))) == [(0, 50)] * 4


def test_a_lane_keeps_its_order_and_edges_have_lags():
    program = toy((0, Stream.COMPUTE, 5, ()), (0, Stream.COMPUTE, 5, ()), (1, Stream.COMPUTE, 1, ()), edges=[(0, 2, 3)])
    assert log(run_events_of(program)) == [(0, 5), (5, 10), (8, 9)]


def test_a_deadlock_names_its_cycle():
    program = toy((0, Stream.COMPUTE, 1, ()), (1, Stream.COMPUTE, 1, ()), edges=[(0, 1, 0), (1, 0, 0)])
    for engine in (run_program, run_events_of, lambda p: run_shared(p, Sharing())):
        with pytest.raises(DeadlockError) as caught:
            engine(program)
        assert caught.value.cycle == [Action(0, Kind.F, 0), Action(0, Kind.F, 1)]


def test_a_guest_holds_an_operation_until_its_data_is_loaded():
    def loader(world):
        release = world.hold(0)
        yield world.occupy(0, Stream.H2D, 40)
        release()

    program = toy((0, Stream.COMPUTE, 10, ()), (0, Stream.COMPUTE, 10, ()))
    assert log(run_events_of(program, guests=[loader])) == [(40, 50), (50, 60)]


def test_what_a_guest_never_lets_go_is_told():
    def careless(world):
        world.hold(1)
        yield world.env.timeout(1)

    program = toy((0, Stream.COMPUTE, 10, ()), (0, Stream.COMPUTE, 10, ()))
    with pytest.raises(InputError, match="guests: got '0F1 held for ever'; allowed: functions that let go"):
        run_events_of(program, guests=[careless])


def test_a_guest_shares_links_and_devices_and_hears_of_ends():
    """A checkpoint that begins when the first operation ends: it and the second slow each other down."""
    heard = []

    def checkpoint(world):
        yield world.ended(0)
        heard.append(world.env.now)
        yield world.occupy(0, Stream.D2H, 10, (3,))
        heard.append(world.env.now)

    program = toy((0, Stream.COMPUTE, 10, ()), (0, Stream.COMPUTE, 30, ()))
    assert log(run_events_of(program, Sharing(SLOW), [checkpoint])) == [(0, 10), (10, 45)]
    assert heard == [10, 25]


def test_a_started_operation_cannot_be_held():
    world = World(toy((0, Stream.COMPUTE, 1, ())), None)
    world.run()
    with pytest.raises(ValueError, match="operation 0 has started at 0"):
        world.hold(0)
