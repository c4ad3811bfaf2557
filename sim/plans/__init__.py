"""Plans taken away: files that real frameworks execute, and plans read back from theirs."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from sim.engine.step import Step
from sim.plans import deepspeed as _deepspeed
from sim.plans import megatron as _megatron
from sim.plans import torch_csv as _torch_csv
from sim.plans import torchtitan as _torchtitan
from sim.specs import InputError
from sim.specs.arguments import checked
from sim.specs.files import write_all

Exporter = Callable[[Step, str], dict[str, str]]
"""Returns the text of each file by name, from a step and the stem of their names; the first file is the plan."""

TARGETS: Mapping[str, Exporter] = {
    "torch-csv": _torch_csv.torch_csv,
    "torchtitan": _torchtitan.torchtitan,
    "torchtitan-0.3": _torchtitan.torchtitan_release,
    "megatron": _megatron.megatron,
    "deepspeed": _deepspeed.deepspeed,
}
EXPRESSED: Mapping[str, tuple[str, ...]] = {
    "torch-csv": ("pp", "virtual_stages", "schedule", "microbatch_group_size"),
    "torchtitan": _torchtitan.EXPRESSES,
    "torchtitan-0.3": _torchtitan.EXPRESSES,
    "megatron": _megatron.EXPRESSES,
    "deepspeed": _deepspeed.EXPRESSES,
}
"""Fields of a plan that a target's files say; reading them back gives the same."""


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
    if target not in TARGETS:
        raise InputError("target", target, "one of " + ", ".join(TARGETS))
    return TARGETS[target](getattr(plan, "step", plan), stem)  # type: ignore[arg-type]


def save_emitted(plan: Step | HasStep, target: str, path: str | Path) -> list[Path]:
    """Write the plan for `target` to `path`, what belongs to it beside (same name, other suffix), and return the paths.

    All files are written or none.

    Raises:
        InputError: as for `emitted`, or the name is that of a file beside it.
        OSError: a file cannot be written.
    """
    first, *others = emitted(plan, target, Path(path).stem).items()
    beside = {Path(path).parent / name: text for name, text in others}
    if Path(path) in beside:
        allowed = f"another suffix than {Path(path).suffix}, which a second file has"
        raise InputError("path", str(path), allowed)
    files = {Path(path): first[1]} | beside
    write_all(files)
    return list(files)
