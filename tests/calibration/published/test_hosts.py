"""How much slower the hosts of A100s are: what Megatron-LM's tests that wait for hosts take on either device."""

from collections import defaultdict

import numpy as np
import pytest

from calibration.published.profiles import OLDER_HOSTS
from sim.costs.run_level import run_level
from sim.engine.batch import Asked, Batch
from sim.validation.table import read_runs
from sim.validation.translate import translate
from tests.oracle import reference


def test_a100s_hosts_are_slower_by_what_is_assumed():
    """The median of 1.45 is more than the geometric mean, 1.37 by today's costs of what waits."""
    rows = [row for row in read_runs(reference("runs/megatron_ci_golden.csv")) if row.step_time_s]
    cases = [translate(row) for row in rows if row.device in ("a100-sxm-80gb", "h100-sxm-80gb")]
    waiting = Batch([Asked(c.model, c.cluster, c.placed) for c in cases])
    plans = defaultdict(lambda: defaultdict(list))
    for case, share in zip(cases, waiting.waiting(run_level()), strict=True):
        key = case.row.model, case.placed.plan.but(software_year=None)
        plans[key][case.row.device].append((case.row.step_time_s, share))
    pairs = [
        {device: np.array(held) for device, held in by_device.items()}
        for by_device in plans.values()
        if len(by_device) == 2 and min(share for held in by_device.values() for _, share in held) >= 0.7
    ]
    ratios = [np.median(pair["a100-sxm-80gb"][:, 0]) / np.median(pair["h100-sxm-80gb"][:, 0]) for pair in pairs]
    assert len(ratios) == pytest.approx(28, abs=2)
    assert np.exp(np.mean(np.log(ratios))) == pytest.approx(OLDER_HOSTS, rel=0.03)
