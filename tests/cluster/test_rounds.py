"""The clean mechanism on clusters small enough to follow by hand: rounds of 100 s."""

import numpy as np
import pytest

from sim.cluster.policies import policy
from sim.cluster.simulate import Rounds, simulate
from sim.specs.fields import InputError
from tests.cluster.toys import Fixed, job, speeds

EVERY = Rounds(round_s=100, reset_s=0, switch_s=0)


def run(jobs, devices, policy, rounds=EVERY, **more):
    return simulate(jobs, more.pop("known", speeds()), devices, policy, rounds, record=True, **more)


def held(found):
    """Return (start, [job on each device]) of every entry."""
    return [(entry.start_s, entry.held[:, 0].tolist()) for entry in found.entries for _ in range(entry.repeats)]


def test_a_job_ends_when_its_steps_are_done():
    found = run([job(250)], {"fast": 1}, Fixed([1, 0]))
    assert found.end_s.tolist() == [125.0]
    assert found.used_s.tolist() == [[125.0]]
    assert (found.makespan_s, found.rounds) == (125.0, 2)
    assert found.utilisation.tolist() == [1.0]


def test_makespan_and_utilisation_count_from_the_first_arrival():
    early, late = (run([job(250, at), job(100, at + 200)], {"fast": 1}, Fixed([1, 0])) for at in (0.0, 1e6))
    assert (late.makespan_s, late.utilisation.tolist()) == (early.makespan_s, early.utilisation.tolist())
    assert (late.makespan_s, late.utilisation.tolist()) == (250.0, [175 / 250])


def test_two_jobs_with_half_a_device_take_turns():
    found = run([job(400), job(400)], {"fast": 1}, Fixed([0.5, 0]))
    assert [row for _, row in held(found)] == [[0], [1], [0], [1]]
    assert found.end_s.tolist() == [300.0, 400.0]


def test_who_has_more_of_a_share_runs_more_often():
    found = run([job(10_000), job(10_000)], {"fast": 1}, Fixed([0.75, 0], [0.25, 0]), window=(0, 1))
    turns = [row[0] for _, row in held(found)]
    assert turns[:20].count(0) == pytest.approx(15, abs=1)


def test_idle_devices_take_jobs_without_a_share():
    found = run([job(100), job(300)], {"fast": 1, "slow": 1}, Fixed([1, 0], [1, 0]))
    assert held(found)[0][1] == [0, 1]
    assert found.used_s[1].sum() > 100


def test_a_strict_policy_leaves_them_idle():
    found = run([job(100), job(300)], {"fast": 1, "slow": 1}, Fixed([1, 0], [1, 0], strict=True))
    assert all(row[1] == -1 for _, row in held(found))


def test_a_job_stays_on_its_devices():
    found = run([job(1_000) for _ in range(3)], {"fast": 3}, Fixed([1, 0]))
    assert len({tuple(row) for _, row in held(found)}) == 1
    assert (found.leases_extended, found.leases_offered) == (12, 12)
    assert found.moves == 0


def test_what_moving_costs_is_lost():
    free = run([job(400), job(400)], {"fast": 1}, Fixed([0.5, 0]))
    paid = run([job(400), job(400)], {"fast": 1}, Fixed([0.5, 0]), Rounds(round_s=100, reset_s=0, switch_s=10))
    assert free.moves == 2
    assert (paid.end_s - free.end_s > 9).all()
    by_type = run([job(400), job(400)], {"fast": 1}, Fixed([0.5, 0]), switch_s={"net": 10.0})
    assert by_type.end_s.tolist() == paid.end_s.tolist()


def test_a_move_may_take_longer_than_a_round():
    """Job 1 takes the device for three rounds; back on it job 0 loads for 250 s, whatever the rounds are."""

    def end_s(switch_s):
        rounds = Rounds(round_s=100, reset_s=0, switch_s=switch_s)
        jobs = [job(1_000), job(600, arrival_s=50)]
        return run(jobs, {"fast": 1}, Fixed([1e-3, 0], [1, 0]), rounds, window=(0, 2)).end_s

    assert (end_s(250) - end_s(0)).tolist() == [250.0, 0.0]


def test_turns_that_are_shorter_than_a_move_are_refused():
    with pytest.raises(InputError, match=r"round_s: got 100.0; allowed: longer than the 100 s that a job loses"):
        run([job(400), job(400)], {"fast": 1}, Fixed([0.5, 0]), Rounds(round_s=100, reset_s=0, switch_s=100))


def test_jobs_on_several_devices_stay_in_a_server():
    """Two servers of four: with one device taken in each, a job of four has to spread, one of two has not."""
    wide = speeds(scales=(1, 2, 4), net=[1.0, 0.5])
    jobs = [job(10_000, scale=2), job(10_000, scale=2), job(10_000, scale=4)]
    servers = Rounds(round_s=100, reset_s=0, switch_s=0, gpus_per_server=4)
    found = run(jobs, {"fast": 8}, Fixed([1, 0]), servers, spread=wide, window=(0, 1))
    assert held(found)[0][1] == [2, 2, 2, 2, 0, 0, 1, 1]


def test_spread_jobs_are_slower():
    """One device is left in each of two servers of two: a job of two has to take both, at half the speed."""
    servers, wide = Rounds(round_s=100, reset_s=0, switch_s=0, gpus_per_server=2), speeds(net=[1.0, 0.5])
    jobs = [job(100), job(100_000), job(100), job(100_000), job(10_000, arrival_s=100, scale=2)]
    found = run(jobs, {"fast": 4}, Fixed([1, 0]), servers, spread=wide, window=(4, 5))
    assert [row for _, row in held(found)][:2] == [[0, 1, 2, 3], [4, 1, 4, 3]]
    assert found.end_s[4] == 100 + 10_000
    together = run([job(10_000, scale=4)], {"fast": 4}, Fixed([1, 0]), servers, spread=wide)
    assert together.end_s[0] == 5_000, "four devices need two servers: that is not spread"


def test_a_pair_shares_devices_and_the_other_goes_on_alone():
    policy = Fixed([0, 0], packs=True, pair=[1, 0])
    found = run([job(50), job(150)], {"fast": 1}, policy, known=speeds(pair=[[1.0, 1.0], [1.0, 1.0]]))
    assert found.end_s.tolist() == [50.0, 100.0]
    assert found.entries[0].held.tolist() == [[0, 1]]
    assert found.used_s[:, 0].sum() == pytest.approx(100.0)


def test_both_jobs_of_a_pair_that_resumes_are_counted():
    """A pair takes turns with a job that needs both devices: of four turns the third resumes two jobs, the last one."""
    turns = Fixed([0, 0], [0, 0], [0.5, 0], packs=True, pair=[0.5, 0])
    found = run([job(200), job(200), job(400, scale=2)], {"fast": 2}, turns, known=speeds(pair=[[1, 1], [1, 1]]))
    assert [sorted(set(entry.held.ravel().tolist()) - {-1}) for entry in found.entries] == [[0, 1], [2], [0, 1], [2]]
    assert found.moves == 3


def test_who_goes_on_alone_is_as_fast_as_its_devices_stand():
    """A pair on the one free device of each of two servers: the second does 20 steps beside the first, 80 alone."""
    rates = [[2.0, 2.0], [0.0, 0.0]]
    known, wide = speeds(pair=rates), speeds(net=[1.0, 0.5], pair=[[1.0, 1.0], [0.0, 0.0]])
    servers = Rounds(round_s=1_000, reset_s=0, switch_s=0, gpus_per_server=2)
    jobs = [
        job(10),
        job(10_000),
        job(10),
        job(10_000),
        job(20, arrival_s=500, scale=2),
        job(100, arrival_s=500, scale=2),
    ]
    policy = Fixed([1, 0], [1, 0], [1, 0], [1, 0], [0, 0], [0, 0], packs=True, pair=[0.1, 0])
    found = run(jobs, {"fast": 4}, policy, servers, known=known, spread=wide)
    assert found.entries[1].held.tolist() == [[4, 5], [1, -1], [4, 5], [3, -1]]
    assert found.end_s[4:].tolist() == [1_000 + 20, 1_000 + 20 + 80]


def test_new_shares_wait_for_the_time_between_resets():
    jobs = [job(10_000), *(job(10_000, arrival_s=t) for t in (50.0, 150.0, 950.0))]
    assert run(jobs, {"fast": 1}, Fixed([1, 0]), Rounds(round_s=100, reset_s=1e7, switch_s=0)).allocations == 1
    assert run(jobs, {"fast": 1}, Fixed([1, 0])).allocations > 4


@pytest.mark.parametrize("later", [[], [job(10, arrival_s=90_000.0)]])
def test_a_queue_that_waits_for_shares_does_not_wait_for_the_next_job(later):
    """Jobs 1 and 2 come while job 0 has the device, and shares are computed at 100 s for job 1."""
    rounds = Rounds(round_s=100, reset_s=5_000, switch_s=0)
    found = run([job(20), job(20, arrival_s=10), job(20, arrival_s=11), *later], {"fast": 1}, policy("fifo"), rounds)
    assert found.end_s[:3].tolist() == [10.0, 110.0, 210.0]


def test_the_same_jobs_later_are_the_same():
    """The published simulator does not count shares that were computed at 0."""

    def jct_s(at_s):
        jobs = [job(1_000, at_s + 40 * n) for n in range(6)]
        return run(jobs, {"fast": 2}, policy("fifo"), Rounds(round_s=100, reset_s=900, switch_s=0)).jct_s.tolist()

    assert jct_s(0.0) == jct_s(12_345.0)


def test_jobs_may_come_one_after_the_other_to_a_queue_that_nobody_serves_yet():
    jobs = [job(20, arrival_s=1), job(20, arrival_s=400), job(20, arrival_s=401)]
    assert run(jobs, {"fast": 1}, policy("fifo"), Rounds(switch_s=0)).end_s.tolist() == [11.0, 410.0, 770.0]


def test_deadlines_are_multiples_of_the_time_alone():
    jobs = [job(400, slo=1.2), job(400, slo=4.0), job(400)]
    assert run(jobs, {"fast": 1}, Fixed([0.3, 0])).late == (0,)


def test_deadlines_are_by_the_fastest_type_that_has_devices_enough():
    devices = {"fast": 1, "slow": 2}
    on_time, late = (run([job(400, scale=2, slo=slo)], devices, Fixed([0, 1])) for slo in (1.01, 0.99))
    assert on_time.end_s.tolist() == [400.0]
    assert on_time.late == () and late.late == (0,)


def test_what_is_believed_decides_shares_and_deadlines_but_not_the_pace():
    slower = speeds(net=[1.0, 0.5])
    asked = []

    class Asked(Fixed):
        def allocate(self, state):
            asked.append(state.steps_per_s.tolist())
            return super().allocate(state)

    found = run([job(400, slo=1.5)], {"fast": 1}, Asked([1, 0]), known=slower, believed=speeds())
    assert found.end_s.tolist() == [400.0]
    assert asked == [[[2.0]]] and found.late == (0,), "due after 300 s of those believed"


def test_fairness_is_the_time_beside_that_on_an_equal_share():
    found = run([job(400), job(400)], {"fast": 1}, Fixed([0.5, 0]))
    assert found.fairness.tolist() == pytest.approx([300 / 400, 400 / (200 * (300 * 2 + 100) / 400)])


@pytest.mark.parametrize(("scale", "more"), [(1, {"known": speeds(net=[2.0, 0.0])}), (2, {})])
def test_a_job_by_itself_is_as_fair_as_alone_whatever_types_it_cannot_run_on(scale, more):
    """One does nothing there, the other needs two devices of which there is one."""
    found = run([job(400, scale=scale)], {"fast": 2, "slow": 1}, Fixed([1, 0]), **more)
    assert found.fairness.tolist() == pytest.approx([1.0])


def test_cost_is_of_the_time_devices_are_held():
    found = run([job(7_200)], {"fast": 1, "slow": 1}, Fixed([1, 0]), usd_per_hour={"fast": 2.5, "slow": 1.0})
    assert found.cost_usd == pytest.approx(2.5)


def test_rounds_that_are_alike_are_taken_at_once():
    jobs = [job(100_000), job(300_000, arrival_s=70_000)]
    found = run(jobs, {"fast": 2}, Fixed([1, 0]))
    assert found.end_s.tolist() == [50_000.0, 70_000.0 + 150_000.0]
    assert found.rounds == 2_000 and found.rounds_skipped > 1_980


def test_skipping_changes_nothing(monkeypatch):
    """The same jobs where the order of types is shuffled, in which no round is skipped, on one type."""
    jobs = [job(30_000 + 999 * n, arrival_s=1_234.5 * n) for n in range(6)]
    policy = Fixed([1, 0])
    skipped = run(jobs, {"fast": 6}, policy)
    policy.aware = False
    assert run(jobs, {"fast": 6}, policy).rounds_skipped == 0 < skipped.rounds_skipped
    assert run(jobs, {"fast": 6}, policy).end_s.tolist() == pytest.approx(skipped.end_s.tolist())


@pytest.mark.parametrize(
    ("jobs", "devices", "path"),
    [
        ([job(1, name="other")], {"fast": 1}, r"jobs\[0\].job_type: got 'other'; allowed: one of net"),
        ([job(1, scale=3)], {"fast": 4}, r"jobs\[0\].scale_factor: got 3; allowed: one of 1, 2, 4"),
        ([job(1), job(1, scale=4)], {"fast": 2}, r"jobs\[1\].scale_factor: got 4; allowed: at most 2 devices"),
        ([job(1)], {"fats": 2}, "devices.fats: got 'fats'; allowed: one of fast, slow"),
        ([job(1)], {"fast": 0}, "devices: got .*; allowed: at least one device"),
        ([job(1)], {"fast": -1}, "devices.fast: got -1"),
        ([job(1)], {"fast": 10**9}, "devices.fast: got 1000000000; allowed: a whole number from 0 to 1000000"),
        ([job(1)], {"fast": 1.5}, "devices.fast: got 1.5; allowed: a whole number"),
        ([job(1)], {"fast": "2"}, "devices.fast: got '2'; allowed: a whole number"),
        ([job(1, arrival_s=5), job(1)], {"fast": 1}, r"jobs\[1\].arrival_s: got 0.0; allowed: 5.0 or later"),
    ],
)
def test_bad_input(jobs, devices, path):
    with pytest.raises(InputError, match=path):
        run(jobs, devices, Fixed([1, 0]))


@pytest.mark.parametrize(
    ("stated", "path"),
    [
        ({"usd_per_hour": {"fast": np.nan}}, "usd_per_hour.fast: got nan; allowed: a number from 0"),
        ({"usd_per_hour": {"fast": -1.0}}, "usd_per_hour.fast: got -1.0"),
        ({"switch_s": {"net": -10.0}}, "switch_s.net: got -10.0; allowed: a number from 0"),
        ({"entity_weights": {"": 0.0}}, "entity_weights.: got 0.0; allowed: a number from 1e-06 to 1e"),
    ],
)
def test_numbers_out_of_range(stated, path):
    with pytest.raises(InputError, match=path):
        run([job(1)], {"fast": 1}, Fixed([1, 0]), **stated)


@pytest.mark.parametrize("window", [(0, 3), (5, 6), (2, 1), (-1, 1)])
def test_a_window_has_jobs_that_come(window):
    with pytest.raises(InputError, match=f"window: got '{window[0]}:{window[1]}'; allowed: FIRST:LAST"):
        run([job(100), job(100)], {"fast": 1}, Fixed([1, 0]), window=window)


def test_a_job_that_nobody_serves_is_named():
    with pytest.raises(InputError, match=r"jobs\[0\]: got 'net'; allowed: a job to which the policy fixed gives time"):
        run([job(1)], {"fast": 1}, Fixed([0, 0], strict=True))


def test_nothing_to_do_is_nothing():
    found = run([], {"fast": 1}, Fixed([1, 0]))
    assert (found.makespan_s, found.rounds, len(found.jct_s)) == (0.0, 0, 0)
    assert np.isnan(found.fairness).sum() == 0


def test_a_policy_that_could_pack_tells_that_no_pair_is_known():
    alone, pairs = (
        run([job(5)], {"fast": 1}, Fixed([1, 0], packs=True), known=known)
        for known in (speeds(), speeds(pair=[[1, 1]] * 2))
    )
    told = "no two jobs share devices, though fixed lets them: throughputs of pairs are not known"
    assert told in alone.assumptions and told not in pairs.assumptions
    assert told not in run([job(5)], {"fast": 1}, Fixed([1, 0])).assumptions


def test_servers_tell_that_no_throughput_over_several_is_known():
    rounds = Rounds(round_s=100, gpus_per_server=2)
    told = "a job in more servers than it needs is as fast as in few: its throughput there is not known"
    assert told in run([job(5)], {"fast": 4}, Fixed([1, 0]), rounds).assumptions
    assert told not in run([job(5)], {"fast": 4}, Fixed([1, 0]), rounds, spread=speeds()).assumptions
    assert told not in run([job(5)], {"fast": 4}, Fixed([1, 0])).assumptions
