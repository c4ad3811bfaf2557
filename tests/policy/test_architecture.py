"""ARCHITECTURE.md names what there is: its paths exist, its dotted names resolve, its picture is the order kept."""

import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from tests.oracle import ROOT

TEXT = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
PICTURE = re.search(r"```text\n(.*?)```", TEXT, re.DOTALL).group(1)
PROSE = re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL)
QUOTED = sorted(set(re.findall(r"`([^`]+)`", PROSE)))
PACKAGES = ("sim", "calibration")
SUFFIXES = (".py", ".md", ".toml", ".json", ".yaml", ".ipynb")
WRITTEN = ("samples.parquet", "profile.json", "tbd.json")
"""Files that a command writes."""


def paths(quoted: str) -> list[str]:
    """Return the words of a quoted text that are paths of the repository."""
    return [w for w in quoted.split() if w not in WRITTEN and ("/" in w or w.endswith(SUFFIXES))]


def resolves(name: str) -> bool:
    """Return whether a dotted name is a module, or something in one; a field of a dataclass counts."""
    parts = name.split(".")
    held, rest = import_module(parts[0]), parts[1:]
    while rest:
        part, *rest = rest
        fields = getattr(held, "__dataclass_fields__", {})
        if hasattr(held, part):
            held = getattr(held, part)
        elif part in fields:
            return not rest
        else:
            try:
                held = import_module(f"{held.__name__}.{part}")
            except (ImportError, AttributeError):
                return False
    return True


DOTTED = [q for q in QUOTED if re.fullmatch(r"[a-z]+(\.\w+)+", q) and q.split(".")[0] in PACKAGES]
BARE = [q for q in QUOTED if re.fullmatch(r"[A-Za-z_]\w+", q)]
COMMANDS = [q.split()[1] for q in QUOTED if q.startswith("trainsim ")]


@pytest.mark.parametrize("path", sorted({path for quoted in QUOTED for path in paths(quoted)}))
def test_a_path_exists(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize("name", DOTTED)
def test_a_dotted_name_resolves(name: str) -> None:
    assert resolves(name)


def test_a_bare_name_stands_in_the_code() -> None:
    folders = (*PACKAGES, "tests", "pyproject.toml")
    files = [file for f in folders for file in ([ROOT / f] if Path(f).suffix else (ROOT / f).rglob("*.py"))]
    words = {word for file in files for word in re.findall(r"\w+", file.read_text("utf-8"))}
    assert [name for name in BARE if name not in words] == []


def test_a_command_is_one() -> None:
    done = subprocess.run([sys.executable, "-m", "sim", "--help"], capture_output=True, text=True, check=True)
    shown = set(re.findall(r"[a-z]+", done.stdout))
    assert COMMANDS
    assert set(COMMANDS) <= shown


def test_the_picture_is_the_order_that_is_kept() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["id"] == "house")
    drawn = [re.match(r"\w+( \| \w+)*", line).group() for line in PICTURE.splitlines() if line[:1].isalpha()]
    assert drawn == layers
    for package in (p for layer in layers for p in layer.split(" | ")):
        assert f"- **{package}**" in TEXT


def test_every_way_to_fail_fails() -> None:
    assert not resolves("sim.engine.step.simulated")
    assert not resolves("sim.engines.step")
    assert resolves("sim.engine.step.Step.step_time_s")
    assert paths("pytest tests/nowhere.py") == ["tests/nowhere.py"]
    assert len(DOTTED) > 50
    assert len(BARE) > 20
