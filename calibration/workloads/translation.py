"""Machine translation: the base Transformer (arXiv 1706.03762), and LSTMs with attention (arXiv 1508.04025)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from calibration.workloads.recurrent import Lstm
from calibration.workloads.workload import Batch, Size, Workload

PERIOD = 10_000.0
"""Longest period of the positions' waves over 2 pi."""


class Attention(nn.Module):
    """Heads of softmax(q k^T / sqrt(d)) v, the scores stored (section 3.2)."""

    def __init__(self, hidden: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.q, self.k, self.v, self.out = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """Return x[b, n, hidden] attending to memory[b, m, hidden]."""
        q, k, v = (self._split(t) for t in (self.q(x), self.k(memory), self.v(memory)))
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        if self.causal:
            scores = scores + torch.full(scores.shape[-2:], -torch.inf, device=x.device, dtype=x.dtype).triu(1)
        context = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        out: Tensor = self.out(context)
        return out

    def _split(self, t: Tensor) -> Tensor:
        return t.reshape(*t.shape[:2], self.heads, -1).transpose(1, 2)


class Layer(nn.Module):
    """A layer of the encoder, or with `cross` of the decoder; norms behind the sums."""

    def __init__(self, hidden: int, heads: int, ffn: int, cross: bool) -> None:
        super().__init__()
        self.own = Attention(hidden, heads, causal=cross)
        self.cross = Attention(hidden, heads) if cross else None
        self.mlp = nn.Sequential(nn.Linear(hidden, ffn), nn.ReLU(), nn.Linear(ffn, hidden))
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(3 if cross else 2))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """Return x[b, n, hidden]; `memory` is the encoder's result."""
        x = self.norms[0](x + self.own(x, x))
        if self.cross is not None:
            x = self.norms[1](x + self.cross(x, memory))
        out: Tensor = self.norms[-1](x + self.mlp(x))
        return out


class Transformer(nn.Module):
    """source[b, n] and the target so far[b, m] to logits[b, m, vocab]; one table for both languages and the head."""

    def __init__(self, layers: int, hidden: int, heads: int, ffn: int, vocab: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab, hidden)
        nn.init.normal_(self.table.weight, std=hidden**-0.5)
        self.encoder = nn.ModuleList(Layer(hidden, heads, ffn, cross=False) for _ in range(layers))
        self.decoder = nn.ModuleList(Layer(hidden, heads, ffn, cross=True) for _ in range(layers))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the logits of the next token at every place."""
        memory, x = self._embedded(source), self._embedded(target)
        for layer in self.encoder:
            memory = layer(memory, memory)
        for layer in self.decoder:
            x = layer(x, memory)
        return functional.linear(x, self.table.weight)

    def _embedded(self, tokens: Tensor) -> Tensor:
        hidden = self.table.weight.shape[1]
        place = torch.arange(tokens.shape[1], device=tokens.device)
        rate = PERIOD ** (torch.arange(0, hidden, 2, device=tokens.device) / -hidden)
        angle = place[:, None] * rate
        waves = torch.cat([angle.sin(), angle.cos()], -1).to(self.table.weight.dtype)
        out: Tensor = self.table(tokens) * hidden**0.5 + waves
        return out


class Seq2Seq(nn.Module):
    """Five LSTM layers: two directions and one above them read the source, two write the target.

    Global attention ("general" scores, equation 8; its result meets the state in equation 5) behind the decoder, over
    all its steps at once, as no state depends on it.
    """

    def __init__(self, hidden: int, source_vocab: int, target_vocab: int) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(source_vocab, hidden), nn.Embedding(target_vocab, hidden)
        self.there, self.back = Lstm(hidden, hidden), Lstm(hidden, hidden, reverse=True)
        self.above = Lstm(2 * hidden, hidden)
        self.decoder = nn.Sequential(Lstm(hidden, hidden), Lstm(hidden, hidden))
        self.general = nn.Linear(hidden, hidden, bias=False)
        self.joined = nn.Linear(2 * hidden, hidden, bias=False)
        self.head = nn.Linear(hidden, target_vocab, bias=False)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the logits [b, m, vocab] of the next token at every place of target[b, m]."""
        x = self.source(source)
        memory = self.above(torch.cat([self.there(x), self.back(x)], -1))
        states = self.decoder(self.target(target))
        weights = (self.general(states) @ memory.transpose(1, 2)).softmax(-1)
        joined = self.joined(torch.cat([weights @ memory, states], -1)).tanh()
        logits: Tensor = self.head(joined)
        return logits


def _sentences(words: Sequence[int], lengths: Sequence[int], samples: int, generator: torch.Generator) -> Batch:
    """Return source[b, n] and target[b, m + 1], from its first mark on."""
    (source, target), (n, m) = words, lengths
    return (
        torch.randint(source, (samples, n), generator=generator),
        torch.randint(target, (samples, m + 1), generator=generator),
    )


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    source, target = batch
    logits = model(source, target[:, :-1])
    return functional.cross_entropy(logits.float().flatten(0, 1), target[:, 1:].flatten())


def _transformer(size: Size) -> Transformer:
    return Transformer(6, 512, 8, 2048, 37_000) if size == "full" else Transformer(2, 32, 4, 64, 100)


def _transformer_batch(size: Size, samples: int, generator: torch.Generator) -> Batch:
    words, length = (37_000, 64) if size == "full" else (100, 24)
    return _sentences((words, words), (length, length), samples, generator)


VOCABULARIES = 17_191, 7_709
"""Words of English and Vietnamese in the IWSLT'15 task, as its tutorials prepare it (Luong et al., TensorFlow NMT)."""


def _seq2seq(size: Size) -> Seq2Seq:
    return Seq2Seq(512, *VOCABULARIES) if size == "full" else Seq2Seq(24, 60, 50)


def _seq2seq_batch(size: Size, samples: int, generator: torch.Generator) -> Batch:
    words, lengths = (VOCABULARIES, (25, 25)) if size == "full" else ((60, 50), (12, 10))
    return _sentences(words, lengths, samples, generator)


WORKLOADS = (
    Workload(
        name="transformer",
        domain="machine translation",
        paper="arXiv 1706.03762",
        parameters=63_045_632,
        samples={"tiny": 8, "full": 64},
        make=_transformer,
        draw=_transformer_batch,
        loss=_loss,
    ),
    Workload(
        name="seq2seq",
        domain="machine translation",
        paper="arXiv 1508.04025",
        parameters=29_026_816,
        samples={"tiny": 32, "full": 128},
        make=_seq2seq,
        draw=_seq2seq_batch,
        loss=_loss,
    ),
)
