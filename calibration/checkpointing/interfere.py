"""Another job on the machine, until it is killed: it computes on a core, writes to a folder's disk and waits for it.

python -m calibration.checkpointing.interfere FOLDER CORE
"""

import os
import sys
import zlib
from pathlib import Path

from sim.tuner.orphans import end_with_parent

BLOCK, BLOCKS = bytes(2**20), 16


def main(folder: Path, core: int) -> None:
    """Write, wait and compute in turn."""
    os.sched_setaffinity(0, {core})
    with (folder / "another-job").open("wb", buffering=0) as file:
        while True:
            file.seek(0)
            for _ in range(BLOCKS):
                file.write(BLOCK)
                zlib.crc32(BLOCK)
            os.fsync(file.fileno())


if __name__ == "__main__":
    end_with_parent()
    main(Path(sys.argv[1]), int(sys.argv[2]))
