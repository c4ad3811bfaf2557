"""Plans taken away: files that real frameworks execute, and plans read back from theirs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from sim.engine.step import Step
from sim.plans import deepspeed as _deepspeed
from sim.plans import megatron as _megatron
from sim.plans import torch_csv as _torch_csv
from sim.plans import torchtitan as _torchtitan
from sim.plans.exporter import Exporter
from sim.specs import InputError
from sim.specs.arguments import checked
from sim.specs.files import none_left_empty, writable, write_all

EXPORTERS: Mapping[str, Exporter] = {
    exporter.name: exporter
    for exporter in (
        Exporter("torch-csv", _torch_csv.torch_csv, _torch_csv.EXPRESSES, "c", "torch"),
        Exporter("torchtitan", _torchtitan.torchtitan, _torchtitan.EXPRESSES_MAIN, "t", "torchtitan"),
        Exporter("torchtitan-0.3", _torchtitan.torchtitan_release, _torchtitan.EXPRESSES, "t", "torchtitan-0.3"),
        Exporter("megatron", _megatron.megatron, _megatron.EXPRESSES, "m", "megatron"),
        Exporter("deepspeed", _deepspeed.deepspeed, _deepspeed.EXPRESSES, "d", "deepspeed"),
    )
}


@runtime_checkable
class HasStep(Protocol):
    """A ranked plan: anything that carries its confirmed step."""

    @property
    def step(self) -> Step:
        """The step."""


@checked
def emit(plan: Step | HasStep, target: str) -> str:
    """Return the text that makes `target` run the plan: its first file (`emitted` has all of them).

    Raises:
        InputError: an unknown target, or the plan asks for what the target cannot express.
    """
    return next(iter(emitted(plan, target).values()))


@checked
def emitted(plan: Step | HasStep, target: str, stem: str = "plan") -> dict[str, str]:
    """Return every file that makes `target` run the plan, its text by its name: the first is the plan itself.

    Raises:
        InputError: an unknown target, or the plan asks for what the target cannot express.
    """
    if target not in EXPORTERS:
        raise InputError("target", target, "one of " + ", ".join(EXPORTERS))
    return EXPORTERS[target].files(getattr(plan, "step", plan), stem)  # type: ignore[arg-type]


def save_emitted(plan: Step | HasStep, target: str, path: str | Path) -> list[Path]:
    """Write the plan for `target` to `path`, what belongs to it beside (same name, other suffix), and return the paths.

    All files are written or none; their folder is made where there is none.

    Raises:
        InputError: as for `emitted`, the name is that of a file beside it, or a file cannot be written.
    """
    place = Path(path)
    files = placed(emitted(plan, target, stem_of(place)), place)
    with none_left_empty(place.parent):
        with writable(place):
            place.parent.mkdir(parents=True, exist_ok=True)
        write_all(files)
    return list(files)


def stem_of(path: Path) -> str:
    """Return a file's name without its suffix; what follows a dot and is a number is none: `torchtitan-0.3`."""
    return path.name if path.suffix[1:].isdigit() else path.stem


def placed(files: Mapping[str, str], path: Path) -> dict[Path, str]:
    """Return the texts of `emitted` by where they go: the first to `path`, the others beside it.

    Raises:
        InputError: the name is that of a file beside it.
    """
    first, *others = files.items()
    beside = {path.parent / name: text for name, text in others}
    if path in beside:
        raise InputError("path", str(path), f"another suffix than {path.suffix}, which a second file has")
    return {path: first[1]} | beside
