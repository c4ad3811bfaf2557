"""What Megatron-LM's Python takes beside plain PyTorch's."""

import sys

import pytest

from calibration.megatron import HEIGHTS, NETWORKS, WAYS, measure, ratios
from sim.costs.layers.issue import MEGATRON_ISSUE
from sim.specs.fields import InputError


def test_ratios_are_of_layers_and_of_what_is_there_without_them():
    """Forward 4 and backward 2 times as long a layer, and ends 3 times: 2 + 1 beside 0.5 + 0.5."""
    layer = {("torch", "forward"): 1.0, ("torch", "backward"): 2.0}
    layer |= {("megatron", "forward"): 4.0, ("megatron", "backward"): 4.0}
    ends = {("torch", way): 0.5 for way in WAYS} | {("megatron", "forward"): 2.0, ("megatron", "backward"): 1.0}
    seconds = {(*key, n): n * layer[key] + ends[key] for key in layer for n in HEIGHTS}
    assert ratios(seconds) == pytest.approx({"forward": 4.0, "backward": 2.0, "ends": 3.0})
    assert tuple(NETWORKS) == ("torch", "megatron") and set(ratios(seconds)) == set(MEGATRON_ISSUE)


def test_without_megatron_core_it_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "megatron.core", None)
    with pytest.raises(InputError, match="megatron-core"):
        measure()
