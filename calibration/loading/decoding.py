"""Encoded samples to tensors as training wants them: decoded, augmented at random, normalised."""

from collections.abc import Callable, Iterator, Mapping
from io import BytesIO

import numpy as np
import soundfile
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import Dataset, Sampler

from calibration.loading.generated import Draw, Kind
from calibration.loading.sources import Source

SIDE = 128
"""Pixels a side of a prepared image."""

LEAST_AREA = 0.5
"""Share of an image that a crop holds at least, and of a sound that is kept of its length."""

LENGTH = 8_000
"""Places of a prepared sound: a second at 8 kHz."""


def prepared_image(data: bytes, draw: Draw) -> Tensor:
    """Return a random square crop of a JPEG, resized to [3, SIDE, SIDE], mirrored half of the time, around zero."""
    with Image.open(BytesIO(data)) as file:
        side = min(file.size) * np.sqrt(draw.uniform(LEAST_AREA, 1))
        left, top = (draw.uniform(0, whole - side) for whole in file.size)
        cut = file.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR, (left, top, left + side, top + side))
    if draw.random() < 0.5:
        cut = cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pixels = torch.from_numpy(np.array(cut)).permute(2, 0, 1)
    return pixels.to(torch.float32).sub_(127.5).div_(63.75).contiguous()


def prepared_sound(data: bytes, draw: Draw) -> Tensor:
    """Return a random stretch of a FLAC, resampled to [1, LENGTH], of mean 0 and standard deviation 1."""
    sound, _ = soundfile.read(BytesIO(data), dtype="float32")
    kept = max(2, int(len(sound) * draw.uniform(LEAST_AREA, 1)))
    begin = int(draw.integers(0, len(sound) - kept + 1))
    places = interpolate(torch.from_numpy(sound[begin : begin + kept])[None, None], LENGTH, mode="linear")[0]
    return (places - places.mean()) / places.std().clamp_min(1e-6)


PREPARE: Mapping[Kind, Callable[[bytes, Draw], Tensor]] = {"images": prepared_image, "audio": prepared_sound}


class Prepared(Dataset[Tensor]):
    """Prepared samples of a source by place in an endless training: place e N + n is sample n in epoch e.

    Every place has its own random numbers, so that a sample is augmented anew in each epoch and the same whoever
    prepares it.
    """

    def __init__(self, source: Source, kind: Kind, seed: int = 0) -> None:
        self.source, self.kind, self.seed = source, kind, seed

    def fetch(self, place: int) -> bytes:
        """Return the encoded sample of a place."""
        return self.source.read(place % len(self.source))

    def prepare(self, place: int, data: bytes) -> Tensor:
        """Return what is fetched for a place as a tensor."""
        return PREPARE[self.kind](data, np.random.default_rng((self.seed, place)))

    def __getitem__(self, place: int) -> Tensor:
        return self.prepare(place, self.fetch(place))


class Order(Sampler[int]):
    """Places of `epochs` epochs of `samples` samples, each epoch in a random order of its own."""

    def __init__(self, samples: int, epochs: int, seed: int = 0) -> None:
        self.samples, self.epochs, self.seed = samples, epochs, seed

    def __len__(self) -> int:
        return self.samples * self.epochs

    def __iter__(self) -> Iterator[int]:
        for epoch in range(self.epochs):
            yield from self.epoch(epoch)

    def epoch(self, epoch: int) -> list[int]:
        """Return the places of one epoch in their order."""
        order = np.random.default_rng((self.seed, epoch)).permutation(self.samples)
        return [epoch * self.samples + int(item) for item in order]
