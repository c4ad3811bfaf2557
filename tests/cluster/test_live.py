"""Real progress that is as simulated leads to the placements of the simulation."""

from random import Random

import pytest

from sim.cluster.live import Live
from sim.cluster.policies import policy
from sim.cluster.simulate import Rounds, simulate
from sim.specs.fields import InputError
from tests.cluster.toys import Fixed, job, speeds

ROUND_S = 100.0
POLICIES = ("max_min_fairness_perf", "finish_time_fairness_perf", "fifo_perf", "max_min_fairness", "isolated")


def drawn(seed):
    """Return jobs, throughputs, devices and rounds by chance."""
    draw = Random(seed)
    names = {f"net{n}": [draw.uniform(1, 8), draw.uniform(0.5, 4)] for n in range(3)}
    arrivals = sorted(draw.choice((0.0, draw.uniform(0, 5_000))) for _ in range(9))
    jobs = [job(draw.randint(50, 6_000), at, draw.choice((1, 1, 2)), draw.choice(list(names))) for at in arrivals]
    devices = {"fast": draw.randint(2, 3), "slow": draw.randint(2, 3)}
    servers, reset_s = draw.choice((1, 2)), draw.choice((0.0, 500.0))
    rounds = Rounds(round_s=ROUND_S, reset_s=reset_s, switch_s=0, gpus_per_server=servers)
    return jobs, speeds(**names), devices, rounds


def lived(jobs, known, devices, rounds, rule):
    """Return begin and placement of every round in which all jobs progress exactly as their throughputs say."""
    live = Live(jobs, known, devices, rule, rounds)
    left, now, told = [float(one.steps) for one in jobs], jobs[0].arrival_s, []
    while any(left):
        placed = live.place(left, now)
        if not placed:
            now = min(one.arrival_s for one in jobs if one.arrival_s > now)
            continue
        told.append((now, placed))
        for name, number in {held[0]: name for (name, _), held in placed.items()}.items():
            rate = known.alone[jobs[name].kind][known.types.index(number)]
            left[name] = max(0.0, left[name] - rate * ROUND_S)
            if left[name] <= 1e-9 * rate:
                left[name] = 0.0
        now += ROUND_S
    return told


def entries(found):
    """Return begin and placement of every simulated round."""
    by_name = [(name, n) for name in sorted(found.types) for n in range(found.devices[found.types.index(name)])]
    for entry in found.entries:
        held = {device: (jobs[0],) for device, jobs in zip(by_name, entry.held.tolist(), strict=True) if jobs[0] >= 0}
        for n in range(entry.repeats):
            yield entry.start_s + n * entry.length_s, held


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", POLICIES)
def test_exact_progress_is_placed_as_simulated(name, seed):
    jobs, known, devices, rounds = drawn(seed)
    simulated = list(entries(simulate(jobs, known, devices, policy(name), rounds, record=True)))
    real = lived(jobs, known, devices, rounds, policy(name))
    assert [placed for _, placed in real] == [held for _, held in simulated]
    assert [begin for begin, _ in real] == pytest.approx([begin for begin, _ in simulated])


def test_what_was_really_done_decides():
    """Simulated, the second job would run once the first had ended, after a round."""
    live = Live([job(150), job(150)], speeds(), {"fast": 1}, policy("fifo_perf"), Rounds(round_s=ROUND_S))
    assert live.place([150, 150], 0.0) == {("fast", 0): (0,)}
    assert live.place([10, 150], 103.5) == {("fast", 0): (0,)}
    assert live.place([0, 150], 204.0) == {("fast", 0): (1,)}
    assert live.place([0, 0], 305.0) == {}


def test_a_pair_holds_a_device_together():
    known = speeds(pair=[[1.0, 1.0], [1.0, 1.0]])
    live = Live([job(50), job(150)], known, {"fast": 1}, Fixed([0, 0], packs=True, pair=[1, 0]))
    assert live.place([50, 150], 0.0) == {("fast", 0): (0, 1)}
    assert live.place([0, 100], 360.0) == {("fast", 0): (1,)}


def test_wrong_input_is_told():
    two = [job(10), job(10)]
    with pytest.raises(InputError, match="gavel_parity"):
        Live(two, speeds(), {"fast": 1}, policy("fifo_perf"), Rounds(gavel_parity=True))
    live = Live(two, speeds(), {"fast": 1}, policy("fifo_perf"))
    live.place([10, 10], 0.0)
    with pytest.raises(InputError, match="steps_left"):
        live.place([10], 360.0)
    with pytest.raises(InputError, match="gives time"):
        Live(two, speeds(), {"fast": 1}, Fixed([0, 0], strict=True)).place([10, 10], 0.0)
