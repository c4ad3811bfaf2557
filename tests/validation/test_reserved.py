"""Reserved memory of measured runs: the constant ratio that predictions use, beside a replay of the allocator."""

import numpy as np

from sim.engine.allocations import replay_allocator
from sim.engine.step import simulate
from sim.validation.table import read_runs
from sim.validation.validate import translated
from tests.oracle import reference


def test_a_replay_and_the_constant_ratio_on_measured_runs():
    """FSDP runs by torchtitan, which print the reserved peak.

    The replay is 4.3 % off, the constant ratio 5.5 %, with the sign turned: what the replay does not know (whose order
    of tensors) is worth almost as much as what it knows. The search needs a closed form, so that predictions keep the
    ratio until the replay is better by more than twice as much.
    """
    rows = [row for row in read_runs(reference("runs/torchtitan.csv")) if row.memory_kind == "reserved"]
    cases = [case for case in translated(rows) if "memory" in case.row.uses]
    steps = [simulate(case.model, case.cluster, case.placed.plan) for case in cases]
    measured = np.array([case.row.peak_memory_bytes for case in cases])
    constant = np.array([step.levels(step.fullest.rank).reserved_bytes for step in steps]) / measured - 1
    replayed = np.array([replay_allocator(step).reserved_peak_bytes for step in steps]) / measured - 1
    assert len(cases) >= 12
    assert abs(constant).mean() < 0.07 and abs(replayed).mean() < 0.07
    assert abs(abs(constant).mean() - abs(replayed).mean()) < 0.025
    assert replayed.mean() > 0 > constant.mean()
