"""Where the bytes of samples come from: files, and what is put before them."""

from pathlib import Path
from typing import Protocol

from calibration.loading.generated import Manifest, file_name


class Source(Protocol):
    """Encoded samples by number; it may be sent to other processes."""

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def read(self, item: int) -> bytes:
        """Return sample `item` as it is stored."""
        ...


class Files:
    """The files that a manifest names, as the operating system gives them."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.kind, self.samples = folder, manifest.kind, len(manifest.sizes_bytes)

    def __len__(self) -> int:
        return self.samples

    def read(self, item: int) -> bytes:
        """Return the file's bytes."""
        return (self.folder / file_name(self.kind, item)).read_bytes()
