"""A small BERT (arXiv 1810.04805) in plain torch, and the bytes that a network saves for its backward pass.

Where Tempo's layers are shown and tested: usual layers, for `calibration.layers.tempo.with_tempo` to replace.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from calibration.layers.attention import AttentionCore

HIDDEN, HEADS, SEQ, VOCAB = 32, 4, 16, 40
P = 0.1
"""Dropout everywhere."""


def dropout(x: Tensor) -> Tensor:
    """Return x after dropout, whose mask takes a byte a number on any device."""
    return torch.native_dropout(x, P, True)[0]


class Layer(nn.Module):
    """Attention both ways and an MLP on x [batch, seq, hidden], each followed by its norm."""

    def __init__(self, hidden: int = HIDDEN, heads: int = HEADS) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.core = AttentionCore(P)
        self.up, self.gelu, self.down = nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden)
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output, of the shape of x."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        context = self.core((q @ k.mT) * q.shape[-1] ** -0.5, v)
        x = self.norm1(x + dropout(self.out(context.transpose(1, 2).flatten(2))))
        y: Tensor = self.norm2(x + dropout(self.down(self.gelu(self.up(x)))))
        return y


class Bert(nn.Module):
    """Tokens [batch, seq] to scores [batch, seq, vocab] of what stood at masked places."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB + 1, HIDDEN), nn.Embedding(SEQ, HIDDEN)
        self.norm, self.layers = nn.LayerNorm(HIDDEN), nn.Sequential(*(Layer() for _ in range(layers)))
        self.head = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.GELU(), nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, VOCAB))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the scores."""
        x = self.norm(self.tokens(tokens) + self.positions.weight)
        scores: Tensor = self.head(self.layers(dropout(x)))
        return scores


def losses(network: Bert, steps: int, seed: int = 1) -> list[float]:
    """Train on rows that count up from a random word, a fifth of their words masked; return every step's loss."""
    torch.manual_seed(seed)
    optimizer = torch.optim.Adam(network.parameters(), lr=5e-3)
    found = []
    for _ in range(steps):
        words = (torch.randint(VOCAB, (16, 1)) + torch.arange(SEQ)) % VOCAB
        masked = torch.rand(words.shape) < 0.2
        scores = network(words.masked_fill(masked, VOCAB))
        loss = functional.cross_entropy(scores[masked], words[masked])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        found.append(float(loss.detach()))
    return found


def saved_bytes(network: nn.Module, x: Tensor) -> int:
    """Return the bytes that `network` saves for its backward on x, weights and x apart, every storage once."""
    held: dict[int, tuple[Tensor, int]] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        held.setdefault(storage._cdata, (tensor.detach(), storage.nbytes()))
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        network(x)
    own = {t.untyped_storage()._cdata for t in (x, *network.parameters())}
    return sum(size for key, (_, size) in held.items() if key not in own)
