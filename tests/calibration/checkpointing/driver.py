"""Trainings to kill: `driver.py` forks one for each line of its input, so that torch is imported once.

A line is JSON: folder, steps, every, workers, engine, and `at`: [phase, times], or null. It says `pid N`, then, if `at`
is given, `inside` once that phase is reached so many times, where the training stays until it is killed; then
`ended STATUS` of waitpid.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch

from calibration.checkpointing.async_save import AsyncSave
from calibration.checkpointing.checkpointer import Checkpointer
from calibration.checkpointing.engine import TorchSave
from calibration.checkpointing.iterator import Order, ResumableLoader
from calibration.checkpointing.training import Run, Sizes, Tokens, Trainee

SIZES = Sizes()
SAMPLES, BATCH, SEED = 37, 4, 5
ENGINES = {"torch.save": TorchSave, "async_save": AsyncSave}


def train(folder: Path, steps: int, every: int, workers: int = 0, engine: str = "torch.save", phase=None) -> None:
    """Train to the end, from where the folder's checkpoints say."""
    made = ENGINES[engine]() if phase is None else ENGINES[engine](phase=phase)
    order = Order(samples=SAMPLES, batch=BATCH, seed=SEED)
    loader = ResumableLoader(Tokens(SAMPLES, SIZES), order, num_workers=workers)
    with Checkpointer(folder, made) as checkpointer:
        Run(Trainee(SIZES), loader, checkpointer, folder / "log").until(steps, every)


def said(line: str) -> None:
    """Write a line at once."""
    os.write(1, line.encode() + b"\n")


def stays(at):
    """Return what says `inside` the phase, and stays there."""
    wanted, left = at

    def told(phase: str) -> None:
        nonlocal left
        left -= phase == wanted
        if left == 0:
            said("inside")
            time.sleep(600)

    return told


def main() -> None:
    """Fork a training for each line."""
    torch.set_num_threads(1)
    for line in sys.stdin:
        asked = json.loads(line)
        at = asked.pop("at")
        if pid := os.fork():
            said(f"pid {pid}")
            said(f"ended {os.waitpid(pid, 0)[1]}")
            continue
        train(Path(asked.pop("folder")), phase=at and stays(at), **asked)
        os._exit(0)


if __name__ == "__main__":
    main()
