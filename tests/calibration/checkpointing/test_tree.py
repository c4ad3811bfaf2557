"""States taken apart and put together."""

import json

import pytest
import torch
from torch import nn

from calibration.checkpointing.tree import put_together, taken_apart
from sim.specs.fields import InputError


def test_an_optimizers_state_comes_back():
    net = nn.Linear(3, 2)
    adam = torch.optim.Adam(net.parameters(), lr=0.1, betas=(0.8, 0.9))
    net(torch.ones(1, 3)).sum().backward()
    adam.step()
    tree, tensors = taken_apart({"net": net.state_dict(), "adam": adam.state_dict()})
    assert {"net.weight", "adam.state.0.exp_avg", "adam.state.1.step"} <= tensors.keys()
    found = put_together(json.loads(json.dumps(tree)), tensors)
    assert found["adam"]["param_groups"] == adam.state_dict()["param_groups"]
    assert found["adam"]["state"].keys() == {0, 1}
    assert torch.equal(found["net"]["weight"], net.weight)


def test_only_plain_data():
    with pytest.raises(InputError, match=r"a\.0: got 'set'"):
        taken_apart({"a": [{1}]})
    with pytest.raises(InputError, match="keys that are text or whole numbers"):
        taken_apart({(1, 2): 3})
    for tree in ({"tensor": "gone"}, {"mapping": [[1]]}, {"list": 3}, {"other": []}, {"list": [], "tuple": []}):
        with pytest.raises(InputError, match="a state that was taken apart"):
            put_together(tree, {})
