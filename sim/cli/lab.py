"""`trainsim lab`: JupyterLab on the notebooks, local and quiet."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from sim.specs import InputError

SETTINGS = Path(__file__).resolve().parent / "lab_settings"
"""Overrides of JupyterLab's settings: without them it asks every user about news."""


def lab_command(
    folder: Annotated[Path | None, typer.Option(help="Folder of notebooks (default: notebooks/).")] = None,
    port: Annotated[int, typer.Option(min=1024, max=65_535, help="Port of 127.0.0.1.")] = 8888,
    browser: Annotated[bool, typer.Option(help="Open a browser.")] = True,
) -> None:
    """Start JupyterLab on 127.0.0.1 with a token; nothing is fetched from outside."""
    os.execv(sys.executable, [sys.executable, *lab_arguments(_folder(folder), port, browser)])


def lab_arguments(folder: Path, port: int, browser: bool) -> list[str]:
    """Return the interpreter's arguments that start JupyterLab on `folder`; it makes and prints its own token."""
    return [
        "-m", "jupyterlab", str(folder),
        "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}",
        "--LabApp.news_url=None", f"--LabApp.app_settings_dir={SETTINGS}",
        "--LabApp.check_for_updates_class=jupyterlab.handlers.announcements.NeverCheckForUpdate",
        "--LabApp.extension_manager=readonly",
        *([] if browser else ["--no-browser"]),
        *(["--allow-root"] if os.geteuid() == 0 else []),
    ]  # fmt: skip


def _folder(asked: Path | None) -> Path:
    beside = Path(__file__).resolve().parents[2] / "notebooks"
    for folder in [asked] if asked else [Path("notebooks"), beside]:
        if folder.is_dir():
            return folder
    raise InputError("--folder", str(asked or "notebooks"), "an existing folder of notebooks")
