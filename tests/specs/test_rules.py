"""Rules: which of them look at what a space of plans switches on and off."""

from dataclasses import replace

import numpy as np
import pytest

from sim.specs import Cluster, Plan
from sim.specs.catalog import models
from sim.specs.rules import RULES, Spread


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.reason)
def test_only_switched_rules_look_at_switches(rule):
    """The tuner asks the others of rows alone."""
    one = Spread.of(Plan(tp=2, pp=2, global_batch=64), Cluster.of("h100-sxm-80gb"))
    switches = {"zero": np.arange(4), "selective": np.arange(4) > 1, "sequence_parallel": np.arange(4) % 2 > 0}
    for shard in (0, 2):
        found = rule.broken(models["llama3-8b"], replace(one, **switches, shard=shard))
        assert (np.ndim(found) > 0) == rule.switched
