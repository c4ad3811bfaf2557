"""Traced networks for tests: small ones, with the loss inside."""

from functools import cache

import torch
from torch import nn
from torch.nn import functional

from calibration.tracing.trace import trace
from sim.specs import LayerTable, Model
from tests import reference_modules as ref

GPT = Model(name="gpt", layers=4, hidden=2048, heads=16, vocab=8192, seq=2048)
"""What `gpt` and `eager` trace."""


class WithLoss(nn.Module):
    """A network and its cross-entropy in fp32."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs, targets):
        return functional.cross_entropy(self.network(inputs).float().flatten(0, -2), targets.flatten())


def tokens(seq):
    return lambda batch: (torch.zeros(batch, seq, dtype=torch.long),) * 2


def images(batch):
    return torch.zeros(batch, 3, 224, 224), torch.zeros(batch, dtype=torch.long)


def _gpt(eager):
    return ref.GPT(GPT.layers, GPT.hidden, GPT.heads, GPT.vocab, GPT.seq, eager=eager)


NETWORKS = {
    "gpt": (lambda: _gpt(False), tokens(GPT.seq)),
    "eager": (lambda: _gpt(True), tokens(GPT.seq)),
    "bert": (lambda: ref.BertModel(4, 256, 4, 1024, 5000, 128), tokens(128)),
    "t5": (lambda: ref.T5(2, 2, 256, 4, 64, 512, 5000), None),
    "resnet-50": (ref.ResNet, images),
}


@cache
def table(name: str) -> LayerTable:
    """Return the layer table of one of `NETWORKS`."""
    make, inputs = NETWORKS[name]
    if name == "t5":
        both = (torch.zeros(1, 32, dtype=torch.long), torch.zeros(1, 16, dtype=torch.long))
        return trace(make(), both, ["encoder", "decoder"])
    with torch.device("meta"):
        module = WithLoss(make())
    return trace(module, inputs, name=name)
