"""Made-up tables of measured runs."""

import csv
from pathlib import Path

from sim.validation.table import COLUMNS

ROW = {
    "id": "site-1", "source": "made up", "device": "a100-sxm-80gb", "gpus": "8", "gpus_per_node": "8",
    "model": "GPT", "layers": "24", "hidden": "2048", "heads": "16", "seq": "1024", "attention": "flash",
    "precision": "bf16", "global_batch": "64", "micro_batch": "4", "tp": "1", "pp": "1", "recompute": "none",
    "zero_stage": "1", "schedule": "none", "step_time_s": "2.0", "oom": "0", "group": "g", "use_for": "time",
}  # fmt: skip


def write(path: Path, *changes: dict[str, str]) -> Path:
    """Write a table with a row per mapping of changes, each with its own id; return its path."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(ROW | {"id": f"site-{n}"} | change for n, change in enumerate(changes, 1))
    return path
