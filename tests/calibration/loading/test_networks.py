"""The nine networks have the published sizes, and the study's table says what they do."""

from functools import cache

import pytest
import torch

from calibration.loading.networks import NETWORKS
from calibration.tracing.trace import trace
from sim.loading.networks import NETWORKS as TABLE
from sim.specs.table import PHASES, at
from tests.full import full

PARAMETERS = {
    "shufflenet-v2": 1.37e6, "alexnet": 61.1e6, "resnet-18": 11.69e6, "squeezenet": 1.248e6, "mobilenet-v2": 3.5e6,
    "resnet-50": 25.56e6, "vgg-11": 132.9e6,
}  # fmt: skip
"""Of the usual implementations of the papers' networks; SqueezeNet's paper has 4.8 MB of them in fp32."""

BATCH = 512


@cache
def traced(name):
    """The layer table of a network, in 16 bit."""
    made, shape = NETWORKS[name].make(), NETWORKS[name].shape
    return trace(made, lambda b: torch.empty(b, *shape, device="meta"), [made], torch.float16, name)


DEEP = ("shufflenet-v2", "resnet-50", "ssd-resnet-18")
"""A second or two each to trace."""
EACH = [full(network) if network.name in DEEP else network for network in TABLE]


@pytest.mark.slow
def test_parameters_are_the_published_ones():
    for name, number in PARAMETERS.items():
        assert sum(p.numel() for p in NETWORKS[name].make().parameters()) == pytest.approx(number, rel=0.005), name
    m5 = NETWORKS["audio-m5"].make()
    convolutions = sum(p.numel() for n, p in m5.named_parameters() if p.dim() == 3)
    assert convolutions == pytest.approx(0.55e6, rel=0.01)  # "0.5M" of the paper's table, with ten classes


def test_the_study_has_every_network():
    assert {network.name for network in TABLE} == set(NETWORKS)


@pytest.mark.slow
@pytest.mark.parametrize("network", EACH, ids=lambda network: network.name)
def test_the_study_has_every_network_as_it_is_traced(network):
    table = traced(network.name)
    assert table.flop(BATCH) / BATCH == pytest.approx(network.flop, rel=0.005)
    ops = [op for phase in PHASES for op in getattr(table.layers[0], phase) if op.bytes is not None]
    moved = sum(at(op.bytes, BATCH) * op.count for op in ops) / BATCH
    assert moved == pytest.approx(network.traffic_bytes, rel=0.01)


@pytest.mark.parametrize("network", EACH, ids=lambda network: network.name)
def test_forward_passes_take_the_published_multiply_adds(network):
    if network.published_macs:
        forward = traced(network.name).layers[0].forward
        macs = sum(op.flop(BATCH) * op.count for op in forward) / BATCH / 2
        assert macs == pytest.approx(network.published_macs, rel=0.05)


def test_ssd_has_the_papers_boxes():
    places, scores = NETWORKS["ssd-resnet-18"].make().eval()(torch.zeros(1, 3, 300, 300))
    assert places.shape == (1, 4, 8732)
    assert scores.shape == (1, 81, 8732)
