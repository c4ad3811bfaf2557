"""Every policy keeps the contract of policies."""

import pytest

from sim.cluster.policies import POLICIES, policy
from sim.specs.fields import InputError
from tests.contracts.policy import PolicyContract

ORDERED = ("fifo", "fifo_perf", "fifo_packed", "gandiva", "allox", "hierarchical")


@pytest.mark.parametrize("name", POLICIES)
class TestPolicies(PolicyContract):
    @pytest.fixture(autouse=True)
    def named(self, name):
        self.name, self.single, self.ordered = name, name == "allox", name in ORDERED


def test_an_unknown_name_or_option_is_bad_input():
    with pytest.raises(InputError, match=r"policy: got 'max_min'; allowed: one of .*max_min_fairness"):
        policy("max_min")
    with pytest.raises(InputError, match=r"policy.fifo: got \['alpha'\]"):
        policy("fifo", alpha=1)
    with pytest.raises(InputError, match="inside"):
        policy("hierarchical", inside="lottery")
    with pytest.raises(InputError, match="inside"):
        policy("hierarchical", inside=("fifo", "lottery"))


def test_names_are_those_of_the_published_system():
    for name, kind in POLICIES.items():
        assert policy(name).name == name == kind.name
        assert kind.packs == ("packed" in name or name == "gandiva")
        assert kind.strict == name.startswith("fifo")
