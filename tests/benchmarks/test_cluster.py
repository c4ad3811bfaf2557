"""A shared cluster at size: rounds alone, and with a program at every reset; run by `make bench`."""

from time import perf_counter

import pytest

from sim.cluster import Pop, Rounds, generate, policy, read_throughputs, simulate
from tests.benchmarks.table import Speed
from tests.oracle import ROOT

CASES = {
    "cluster: 50,000 jobs on 10,000 devices, FIFO": (50_000, 10_000, "fifo_perf", 1, 600.0),
    "cluster: 5,000 jobs on 1,000 devices, max-min fairness": (5_000, 1_000, "max_min_fairness_perf", 1, 120.0),
    "cluster: the same in 4 parts": (
        5_000,
        1_000,
        "max_min_fairness_perf",
        4,
        120.0,
    ),
}


@pytest.mark.parametrize("what", CASES)
def test_many_jobs(benchmark, speeds, what):
    jobs, devices, name, parts, most_s = CASES[what]
    known = read_throughputs(ROOT / "notebooks" / "data" / "gavel-throughputs.yaml")
    simulate([*generate(4, 0.0, 0, known)], known, {"v100": 2}, policy("fifo_perf"))  # compiles
    drawn = tuple(generate(jobs, 1e6 / jobs, 0, known, multi_gpu=True))
    counts = {"v100": devices - 2 * (devices // 3), "p100": devices // 3, "k80": devices // 3}
    made = policy(name) if parts == 1 else Pop(name, parts)
    begin = perf_counter()
    found = benchmark.pedantic(simulate, (drawn, known, counts, made, Rounds(gpus_per_server=8)), rounds=1)
    seconds = perf_counter() - begin
    speeds[what] = Speed(seconds, "s", "minutes")
    assert not found.not_ended
    assert seconds < most_s
