"""Layer 2 of parity: with the recorded shares, every placement and completion time is the recorded one."""

import pytest

from sim.cluster.simulate import Rounds, simulate
from tests.cluster.replays import RECORDED, Recorded, recording


@pytest.mark.parametrize("name", RECORDED)
def test_placements_and_completion_times_are_the_recorded_ones(name):
    given = recording(name)
    found = simulate(
        given.jobs, given.throughputs, given.devices, Recorded(given.data), Rounds(gavel_parity=True),
        seed=given.data["seed"], record=True,
    )  # fmt: skip
    begun = [entry.start_s + k * entry.length_s for entry in found.entries for k in range(entry.repeats)]
    placed = [placement(entry.held) for entry in found.entries for _ in range(entry.repeats)]
    recorded = [(at, held) for at, held in given.data["rounds_schedule"] if held]
    assert begun == pytest.approx([at for at, _ in recorded], abs=1e-6)
    assert placed == [{job: set(workers) for job, workers in held.items()} for _, held in recorded]
    jct = [given.data["jct_s"][str(number)] for number in range(len(given.jobs))]
    assert found.jct_s.tolist() == pytest.approx(jct, abs=1e-6)
    assert found.makespan_s == pytest.approx(given.data["makespan_s"], abs=1e-6)
    assert found.mean_utilisation == pytest.approx(given.data["utilization"], abs=1e-12)
    assert (found.leases_extended, found.leases_offered) == (given.data["lease_ext"], given.data["lease_opp"])


def placement(held):
    """Return the workers of every job."""
    jobs = {}
    for worker, (job, _) in enumerate(held.tolist()):
        if job >= 0:
            jobs.setdefault(str(job), set()).add(worker)
    return jobs
