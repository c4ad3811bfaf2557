"""Speech recognition: a network like Deep Speech 2 (arXiv 1512.02595) with its loss, connectionist temporal
classification (Graves et al. 2006)."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from calibration.workloads.recurrent import over_steps
from calibration.workloads.workload import Batch, Size, Workload

BLANK = 0
NEVER = -1e30
"""Log of the probability of what cannot be; finite, so that its gradient is no NaN."""

CLIP = 20.0


def clipped(x: Tensor) -> Tensor:
    """Return min(max(x, 0), 20) (section 3.1)."""
    return x.clamp(0.0, CLIP)


class Bidirectional(nn.Module):
    """A simple recurrent layer in both directions, which share the inputs' weights and are added (section 3.1).

    The inputs' product is normalised over batch and time (equation 9).
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.of_input, self.norm = nn.Linear(inputs, hidden, bias=False), nn.BatchNorm1d(hidden)
        self.there, self.back = nn.Linear(hidden, hidden, bias=False), nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return [b, steps, hidden] of x[b, steps, inputs]."""
        made = self.norm(self.of_input(x).flatten(0, 1)).unflatten(0, x.shape[:2])
        return self._run(made, self.there, reverse=False) + self._run(made, self.back, reverse=True)

    def _run(self, made: Tensor, weight: nn.Linear, reverse: bool) -> Tensor:
        state = made.new_zeros(made.shape[0], made.shape[2])

        def step(one: Tensor) -> Tensor:
            nonlocal state
            state = clipped(one + weight(state))
            return state

        return over_steps(step, made, reverse)


class DeepSpeech(nn.Module):
    """spectrogram[b, bins, frames] to log probabilities [b, frames / 2, characters]."""

    def __init__(self, bins: int, channels: int, layers: int, hidden: int, characters: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            [
                nn.Conv2d(1, channels, (41, 11), (2, 2), (20, 5), bias=False),
                nn.Conv2d(channels, channels, (21, 11), (2, 1), (10, 5), bias=False),
            ]
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))
        width = channels * ((bins + 3) // 4)
        self.layers = nn.Sequential(*(Bidirectional(hidden if n else width, hidden) for n in range(layers)))
        self.head = nn.Linear(hidden, characters)

    def forward(self, spectrogram: Tensor) -> Tensor:
        """Return the log probabilities of characters and blank at every second frame."""
        x = spectrogram[:, None]
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = clipped(norm(convolution(x)))
        x = x.flatten(1, 2).transpose(1, 2)
        return functional.log_softmax(self.head(self.layers(x)).float(), -1)


def temporal_loss(log_probabilities: Tensor, labels: Tensor) -> Tensor:
    """Return the mean loss of labels[b, n] without blanks, over log probabilities [b, steps, characters].

    The forward recursion over label and blanks, written out as operations of fixed shapes, which can be traced; each
    sample's loss is over n, as torch's own with its default reduction.
    """
    extended = functional.pad(labels[:, :, None], (1, 0), value=BLANK).flatten(1)
    extended = functional.pad(extended, (0, 1), value=BLANK)
    skips = (extended != BLANK) & (extended != functional.pad(extended[:, :-2], (2, 0), value=BLANK))
    barred = torch.where(skips, 0.0, NEVER)
    places = extended[:, None].expand(-1, log_probabilities.shape[1], -1)
    first, *later = log_probabilities.gather(2, places).unbind(1)
    begun = torch.arange(extended.shape[1], device=first.device) < 2
    alpha = torch.where(begun, first, NEVER)
    for emitted in later:
        moved = functional.pad(alpha[:, :-1], (1, 0), value=NEVER)
        skipped = functional.pad(alpha[:, :-2], (2, 0), value=NEVER) + barred
        alpha = emitted + torch.stack([alpha, moved, skipped]).logsumexp(0)
    return -(alpha[:, -2:].logsumexp(1) / labels.shape[1]).mean()


def _deep_speech(size: Size) -> DeepSpeech:
    return DeepSpeech(161, 32, 7, 1280, 29) if size == "full" else DeepSpeech(41, 4, 2, 24, 8)


def _batch(size: Size, samples: int, generator: torch.Generator) -> Batch:
    """Return spectrograms [b, bins, frames] and labels [b, n]; at most n blanks more than labels must fit."""
    bins, frames, length, characters = (161, 400, 60, 29) if size == "full" else (41, 32, 4, 8)
    labels = torch.randint(1, characters, (samples, length), generator=generator)
    return torch.randn(samples, bins, frames, generator=generator), labels


def _loss(model: DeepSpeech, batch: Batch) -> Tensor:
    spectrogram, labels = batch
    return temporal_loss(model(spectrogram), labels)


WORKLOADS = (
    Workload(
        name="deep-speech-2",
        domain="speech recognition",
        paper="arXiv 1512.02595",
        parameters=34_753_533,
        samples={"tiny": 8, "full": 16},
        make=_deep_speech,
        draw=_batch,
        loss=_loss,
    ),
)
