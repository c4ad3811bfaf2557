"""Rules: which of them look at what a space of plans switches on and off."""

from dataclasses import replace

import numpy as np
import pytest

from sim.specs import Cluster, InputError, Plan
from sim.specs.catalog import models
from sim.specs.rules import RULES
from sim.specs.spread import Spread


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.reason)
def test_only_switched_rules_look_at_switches(rule):
    """The tuner asks the others of rows alone."""
    one = Spread.of(Plan(tp=2, pp=2, global_batch=64), Cluster.of("h100-sxm-80gb"))
    switches = {"zero": np.arange(4), "selective": np.arange(4) > 1, "sequence_parallel": np.arange(4) % 2 > 0}
    for shard in (0, 2):
        found = rule.broken(models["llama3-8b"], replace(one, **switches, shard=shard))
        assert (np.ndim(found) > 0) == rule.switched


@pytest.mark.parametrize(
    ("changes", "condition", "suggestion"),
    [
        ({"pp": 3}, "tp 1 x pp 3 must divide 8 GPUs", "; nearest pp 2 or 4"),
        ({"pp": 8, "virtual_stages": 3}, "pp x virtual_stages must divide layers = 32", " (or give stage_layers); "),
        ({"tp": 3}, "a divisor of model.heads = 32", "; nearest 2 or 4"),
        ({"cp": 3}, "tp 1 x cp 3 must divide 8 GPUs", "; nearest cp 2 or 4"),
        ({"tp": 2, "dp": 8}, "4 (tp x pp x dp must equal 8 GPUs)", ""),
    ],
)
def test_an_error_tells_what_must_be_from_what_is_near(changes, condition, suggestion):
    """The message holds both, also where the error is seen from an enclosing object."""
    plan = Plan(global_batch=64, **changes)
    with pytest.raises(InputError) as raised:
        plan.on(models["llama3-8b"], Cluster.of("h100-sxm-80gb"))
    for error in (raised.value, raised.value.under("job")):
        assert error.condition == condition
        assert error.suggestion.startswith(suggestion) and bool(error.suggestion) == bool(suggestion)
        assert error.allowed == condition + error.suggestion and error.allowed in str(error)
