"""The `trainsim` command: thin typer commands, one file a family, each loaded when it runs."""

import os
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from sim import __version__
from sim.cli.examples import EXAMPLES
from sim.cli.signals import ended_tidily

COMMANDS: Mapping[str, tuple[str, str]] = {
    "simulate": ("simulate:simulate_command", "Predict one training step of a plan."),
    "tune": ("tune:tune_command", "Search all plans for the job's devices and rank the best."),
    "compare": (
        "compare:compare_command",
        "Search jobs also as earlier tuners do, and simulate the plan that every search finds.",
    ),
    "sweep": ("sweep:sweep_command", "Predict every configuration of a grid, into a store that another run resumes."),
    "report": ("report:report_command", "Show what a sweep has found, and write it as a page or a table."),
    "optimal": (
        "optimal:optimal_command",
        "Spend a budget: tokens for the job's model, and the compute-optimal model and tokens.",
    ),
    "emit": (
        "emit:emit_command",
        "Write a plan for another framework, or say what of it that framework cannot run.",
    ),
    "import": (
        "importing:import_command",
        "Read the plan in another framework's settings; what is not read is listed.",
    ),
    "schedule": (
        "schedule:schedule_command",
        "Show a pipeline schedule: actions per rank, makespan, bubble, what is kept in flight.",
    ),
    "validate": (
        "validate:validate_command",
        "Predict measured runs: errors, order, regret and coverage beside two trivial baselines.",
    ),
    "list": ("list:list_command", "List what the catalog and the registries hold, one line each."),
    "check": ("check:check_command", "List every problem of a file; exit code 2 if there is one."),
    "schema": (
        "schema:schema_command",
        "Print the JSON Schema (draft 2020-12) of one kind of file, or of all by name.",
    ),
    "lab": (
        "lab:lab_command",
        "Start JupyterLab on 127.0.0.1 with a token; nothing is fetched from outside.",
    ),
    "checkpointing": (
        "checkpointing:app",
        "Say how often to save training state, and what failures leave of a run.",
    ),
    "cluster": ("cluster:app", "Simulate jobs that share a cluster of different devices."),
    "decentralized": (
        "decentralized:app",
        "Train on skewed data far apart: traffic, time, accuracy, and which theta.",
    ),
    "loading": ("loading:app", "Predict how fast training is fed with data, or measure it here."),
    "market": ("market:app", "Rent devices whose prices change: where, when, and whether to move."),
    "device": ("device:app", "Write a device file of your own to fill in."),
}
"""Command -> where it is below `sim.cli`, and its line in the help, which is the first one of its docstring."""

JOINED: Mapping[str, str] = {
    "calibrate": (
        "Measure this machine's kernels (--device), or fit published measurements (--from) or a trace (--trace)."
    ),
    "execute": "Predict a small network's training step, run it on a process per rank, and compare.",
    "trace": "Write the layer table of the module that FACTORY() returns as (module, inputs).",
    "checkpointing measure": (
        "Train a small network here, save it every k steps, and compare overhead, k and recovery with the prediction."
    ),
    "cluster measure": (
        "Run three trainings on two unequal slots here, as a policy divides them, and compare with the simulation."
    ),
    "decentralized measure": (
        "Train partitions of skewed data here, and say what they sent, how long that took and how well they learned."
    ),
    "loading measure": (
        "Measure a real input pipeline on generated files, by differential phases, beside its prediction."
    ),
}
"""Lines of the commands that join by the entry points `trainsim.commands`; any other says where it is from."""


class Commands(TyperGroup):
    """Commands by name, of which those with a place are imported when they run: what one needs takes seconds to load.

    `words`: those of the group itself.
    """

    words = ""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.places: dict[str, str] = {}

    def join(self, places: Mapping[str, str], lines: Mapping[str, str]) -> None:
        """Add the commands at `module:attribute` by name; one without a line in the help says where it is from."""
        for name, place in places.items():
            self.places[name] = place
            words = f"{self.words} {name}".strip()
            self.add_command(TyperCommand(name, help=lines.get(words, f"From {place}.")))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first word names, loaded."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, self.loaded(name) if name in self.places else found, rest

    def loaded(self, name: str) -> Any:
        """Return the command `name`: its help ends with an example, its errors name options."""
        from sim.cli.usage import naming_options  # noqa: PLC0415 - versions and lists of commands need only names

        command, words = _made(name, self.places[name]), f"{self.words} {name}".strip()
        own = {words: command}
        if isinstance(command, Commands):
            own = {f"{words} {part}": made for part, made in command.commands.items()}
            command.words = words
            command.join(_entries(f"trainsim.commands.{name}"), JOINED)
        for words, part in own.items():
            naming_options(part)
            part.epilog = f"Example: trainsim {EXAMPLES[words]}" if words in EXAMPLES else None
        return command


class _All(Commands):
    """All commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        own = {name: f"sim.cli.{place}" for name, (place, _) in COMMANDS.items()}
        lines = {**JOINED, **{name: line for name, (_, line) in COMMANDS.items()}}
        self.join({**own, **_entries("trainsim.commands"), **own}, lines)  # own ones first, and nobody else's instead


def _entries(group: str) -> dict[str, str]:
    return {entry.name: entry.value for entry in entry_points(group=group)}


def _made(name: str, place: str) -> Any:
    """Return the command of a function or a typer app at `module:attribute`."""
    module, _, attribute = place.partition(":")
    found = getattr(import_module(module), attribute)
    if not isinstance(found, typer.Typer):
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        alone.command()(found)
        found = alone
    found.info.cls = Commands
    command: Any = typer.main.get_command(found)
    command.name = name
    return command


def leaves(group: Commands) -> Iterator[tuple[str, Any]]:
    """Yield the words and the command of everything in a group that does something, loaded."""
    for name, part in group.commands.items():
        command = group.loaded(name) if name in group.places else part
        if isinstance(command, Commands):
            yield from leaves(command)
        else:
            yield f"{group.words} {name}".strip(), command


app = typer.Typer(
    cls=_All,
    name="trainsim",
    help="What-if answers for distributed training: time, memory, cost, and which plan is best.",
    invoke_without_command=False,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"trainsim {__version__}")
        raise typer.Exit


VERSION = typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)


@app.callback()
def _options(version: Annotated[bool, VERSION] = False) -> None:
    del version  # its callback has answered


INTERRUPTED = 130
"""What newer releases of typer return for Ctrl-C; older ones raise typer.Abort."""


def main() -> None:
    """Run the command line: exit 0 ok, 2 bad input, 1 anything else."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started this: what is said there goes nowhere
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - open to the end
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # as stderr does of itself: not every terminal knows every dash
    try:
        with ended_tidily():
            code = app(standalone_mode=False) or 0
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        sys.exit(code)
    except (KeyboardInterrupt, typer.Abort):
        sys.stderr.write("interrupted\n")
        sys.exit(1)
    except OSError as error:
        from sim.specs.files import FULL  # noqa: PLC0415 - as below

        if error.errno not in FULL:
            raise
        where = f": {error.filename}" if error.filename else ""
        sys.stderr.write(f"stopped: {error.strerror}{where}\n")
        sys.exit(1)
    except Exception as error:
        from sim.cli.usage import told  # noqa: PLC0415 - only here, so that the version and the help come at once

        message = told(error)
        if message is None:
            raise
        sys.stderr.write(f"error: {message}\n" if message else "")  # without arguments the help has been printed
        sys.exit(2)
