"""A shared resource divides itself equally, up to what one user can take."""

import simpy
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from sim.engine.shared import Shared

S = 1_000_000_000


def ends(shared, env, *users):
    """Return when users of (start in s, amount) end, in s."""
    found = {}

    def user(n, start, amount):
        yield env.timeout(round(start * S))
        yield shared.use(amount)
        found[n] = env.now / S

    for n, (start, amount) in enumerate(users):
        env.process(user(n, start, amount))
    env.run()
    return [found[n] for n in range(len(users))]


def test_bandwidth_is_divided():
    env = simpy.Environment()
    assert ends(Shared(env, 10.0), env, (0, 10), (0, 10), (1, 5)) == approx([2.5, 2.5, 2.5])


def test_one_user_takes_one_core_at_most():
    env = simpy.Environment()
    assert ends(Shared(env, 2.0, 1.0), env, (0, 3), (0, 3), (0, 3)) == approx([4.5, 4.5, 4.5])
    env = simpy.Environment()
    assert ends(Shared(env, 4.0, 1.0), env, (0, 3), (1, 3)) == approx([3, 4])


def test_a_share_of_the_cores_is_lost_while_users_take_turns():
    """Two for 2 s each on one core with a fifth lost: 0.4 of it each, until the second one is alone."""
    env = simpy.Environment()
    assert ends(Shared(env, 1.0, 1.0, 0.2), env, (0, 2), (0, 3)) == approx([5, 6])


def test_capacity_changes_while_it_is_used():
    env = simpy.Environment()
    shared = Shared(env, 10.0)

    def change():
        yield env.timeout(S)
        shared.resize(5.0)

    env.process(change())
    assert ends(shared, env, (0, 20), (6, 0)) == approx([3, 6])


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0.01, 100)), min_size=1, max_size=8), st.floats(0.5, 20))
def test_no_work_is_lost_or_done_twice(users, capacity):
    env = simpy.Environment()
    busy = until = 0.0
    for (start, _), end in sorted(zip(users, ends(Shared(env, capacity), env, *users), strict=True)):
        busy, until = busy + max(0.0, end - max(start, until)), max(end, until)
    assert busy * capacity == approx(sum(amount for _, amount in users), rel=1e-6, abs=1e-5)
