"""`trainsim lab`: JupyterLab on the notebooks, local and quiet."""

import os
import sys
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated

import typer
from jupyter_core.paths import jupyter_config_dir, jupyter_data_dir, jupyter_runtime_dir

from sim.specs import InputError

SETTINGS = Path(__file__).resolve().parent / "lab_settings"
"""Overrides of JupyterLab's settings: without them it asks every user about news."""


def lab_command(
    folder: Annotated[Path | None, typer.Option(help="Folder of notebooks (default: notebooks/).")] = None,
    port: Annotated[int, typer.Option(min=1024, max=65_535, help="Port of 127.0.0.1.")] = 8888,
    browser: Annotated[bool, typer.Option(help="Open a browser.")] = True,
) -> None:
    """Start JupyterLab on 127.0.0.1 with a token; nothing is fetched from outside.

    What Jupyter would keep in a home that cannot be written is kept in a temporary folder, whose name is said.
    """
    arguments, moved = lab_arguments(_folder(folder), port, browser), moved_folders()
    if moved:
        place = Path(next(iter(moved.values()))).parent
        sys.stderr.write(f"the home cannot be written: settings and open tabs of JupyterLab are kept in {place}\n")
    os.execve(sys.executable, [sys.executable, *arguments], os.environ | moved)


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


def moved_folders() -> dict[str, str]:
    """Return the environment that gives Jupyter and IPython temporary folders for those they cannot make or write."""
    folders = {
        "JUPYTER_CONFIG_DIR": jupyter_config_dir(),
        "JUPYTER_DATA_DIR": jupyter_data_dir(),
        "JUPYTER_RUNTIME_DIR": jupyter_runtime_dir(),
        "IPYTHONDIR": os.environ.get("IPYTHONDIR") or str(Path.home() / ".ipython"),
    }
    lost = [name for name, folder in folders.items() if not _can_be_kept(Path(folder))]
    place = Path(mkdtemp(prefix="trainsim-lab-")) if lost else Path()
    return {name: str(place / name.lower()) for name in lost}


def _can_be_kept(folder: Path) -> bool:
    there = next(place for place in (folder.absolute(), *folder.absolute().parents) if os.access(place, os.F_OK))
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def _folder(asked: Path | None) -> Path:
    beside = Path(__file__).resolve().parents[2] / "notebooks"
    for folder in [asked] if asked else [Path("notebooks"), beside]:
        if folder.is_dir():
            return folder
    raise InputError("--folder", str(asked or "notebooks"), "an existing folder of notebooks")
