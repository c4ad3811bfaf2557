"""What a checkpoint says about itself: where training stood, and which bytes and tensors it holds, as JSON."""

import json
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from sim.specs.fields import InputError, read, spec, whole
from sim.specs.files import text_of

FILE = "manifest.json"
DATA: Literal["state.pt"] = "state.pt"
MOST_BYTES = 2**26
"""Of a manifest: some 200 bytes a tensor."""

Text = Annotated[str, Field(min_length=1, max_length=500, description="text of 1 to 500 characters")]
Count = Annotated[int, whole(0, 10**18)]
Format = Literal["torch.save", "async_save"]


@spec
class Progress:
    """Where training stands: weight updates done, the epoch, and the samples of it that all ranks have trained on."""

    step: Count
    epoch: Count = 0
    consumed: Count = 0


@spec
class Tensor:
    """A tensor of the state; for async_save its bytes in the file, else offset and length are 0."""

    name: Text
    dtype: Text
    shape: list[Count]
    offset: Count = 0
    length: Count = 0


@spec
class Manifest:
    """Everything known of a checkpoint before one byte of its state is read.

    crc32: of the whole file; tree: the state without its tensors (`calibration.checkpointing.tree.taken_apart`).
    """

    progress: Progress
    format: Format
    torch: Text
    file: Literal["state.pt"]
    bytes: Count
    crc32: Annotated[int, whole(0, 2**32 - 1)]
    tensors: list[Tensor]
    tree: Any

    def text(self) -> str:
        """Return it as JSON, with a checksum of its own."""
        body = json.dumps(asdict(self))
        return f'{{"crc32": {zlib.crc32(body.encode())}, "manifest": {body}}}\n'


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a checkpoint's folder; raises InputError where there is none, or not what was written."""
    path = folder / FILE
    text = text_of(path, MOST_BYTES)
    try:
        held = json.loads(text)
        body = held["manifest"]
        whole_text = zlib.crc32(json.dumps(body).encode()) == held["crc32"]
    except (ValueError, RecursionError, TypeError, KeyError):
        whole_text = False
    if not whole_text:
        raise InputError(str(path), "other bytes", "a manifest as it was written")
    return read(Manifest, body, str(path))
