"""Files to load: images and sounds made by seed, as large and as dear to decode as photographs and recordings."""

from collections.abc import Callable, Mapping
from io import BytesIO
from json import dumps
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import soundfile
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field

from sim.specs.fields import InputError, read, real, spec, whole
from sim.specs.files import load_mapping, writable, write_atomically

Kind = Literal["images", "audio"]
Draw = np.random.Generator

MANIFEST = "manifest.json"
MOST_FILES = 40_000
SPREAD = 0.25
"""Sizes are drawn evenly from 1 - SPREAD to 1 + SPREAD times the scale."""

QUALITY = 90
GRAIN = 4.0
"""Standard deviation of the noise of every pixel, of 255: what is left of a sensor's in a photograph."""

RATE_HZ = 16_000
SUFFIXES: Mapping[Kind, str] = {"images": "jpg", "audio": "flac"}
SCALES: Mapping[Kind, tuple[float, float]] = {"images": (16, 4_096), "audio": (0.1, 600)}
"""Pixels a side, seconds of sound: the least and the most."""


@spec
class Manifest:
    """What lies in a folder: files 0, 1, ... of `sizes_bytes`.

    scale: pixels a side of an image, seconds of a sound, in the mean.
    """

    kind: Kind
    scale: Annotated[float, real(0.1, 4_096.0)]
    seed: Annotated[int, whole(0, 2**32 - 1)]
    sizes_bytes: Annotated[list[Annotated[int, whole(1, 2**40)]], Field(min_length=1, max_length=MOST_FILES)]

    @property
    def total_bytes(self) -> int:
        """All files together."""
        return sum(self.sizes_bytes)


def file_name(kind: Kind, item: int) -> str:
    """Return the name of a file."""
    return f"{item:06d}.{SUFFIXES[kind]}"


def generate(folder: Path, kind: Kind, files: int, scale: float, seed: int = 0) -> Manifest:
    """Write `files` files of `kind` and their manifest into a folder that exists; the same seed makes the same bytes.

    Raises:
        InputError: a number is out of range, or the folder cannot be written.
    """
    least, most = SCALES[kind]
    if not 1 <= files <= MOST_FILES:
        raise InputError("files", files, f"a whole number from 1 to {MOST_FILES}")
    if not least <= scale <= most:
        raise InputError("scale", scale, f"a number from {least:g} to {most:g}")
    sizes = []
    for item in range(files):
        draw = np.random.default_rng((seed, item))
        data = MAKERS[kind](draw, scale * draw.uniform(1 - SPREAD, 1 + SPREAD))
        path = folder / file_name(kind, item)
        with writable(path):
            path.write_bytes(data)
        sizes.append(len(data))
    made = Manifest(kind=kind, scale=scale, seed=seed, sizes_bytes=sizes)
    write_atomically(folder / MANIFEST, dumps(vars(made)))
    return made


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a folder; raises InputError for none or a wrong one."""
    return read(Manifest, load_mapping(folder / MANIFEST), str(folder / MANIFEST))


def photo(draw: Draw, scale: float) -> bytes:
    """Return a JPEG of about `scale` pixels a side whose detail falls off as in photographs: noise at every scale,
    its amplitude in proportion to it (a spectrum of 1/f, Field 1987), and grain."""
    side = max(8, round(scale))
    pixels: NDArray[np.float32] = np.full((side, side, 3), 128, np.float32)
    cells = 4
    while cells < side:
        coarse = Image.fromarray(draw.integers(0, 256, (cells, cells, 3), np.uint8))
        pixels += (np.asarray(coarse.resize((side, side), Image.Resampling.BICUBIC), np.float32) - 128) * (3 / cells)
        cells *= 2
    pixels += draw.normal(0, GRAIN, (side, side, 1)).astype(np.float32)
    file = BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


def recording(draw: Draw, scale: float) -> bytes:
    """Return a FLAC of about `scale` seconds: a few tones that fade, and noise 30 dB below them."""
    at_s = np.arange(max(1, round(scale * RATE_HZ))) / RATE_HZ
    sound = draw.normal(0, 0.01, at_s.shape)
    for _ in range(4):
        pitch_hz, fading_s = draw.uniform(100, 2_000), draw.uniform(0.2, 2.0)
        sound += 0.15 * np.sin(2 * np.pi * pitch_hz * at_s) * np.exp(-(at_s % fading_s) / fading_s)
    file = BytesIO()
    soundfile.write(file, sound, RATE_HZ, format="FLAC")
    return file.getvalue()


MAKERS: Mapping[Kind, Callable[[Draw, float], bytes]] = {"images": photo, "audio": recording}
