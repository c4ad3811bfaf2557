"""The `trainsim` command: thin typer commands, one file a family, each loaded when it runs."""

import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import entry_points
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
    "calibrate": "Measure this machine's kernels, or fit published measurements or a trace, into a profile.",
    "execute": "Run a small network's plan on a process per rank, beside its prediction.",
    "trace": "Write the layer table of a torch module of your own.",
}
"""Lines of the commands that join by the entry points `trainsim.commands`; any other says where it is from."""


class _Commands(TyperGroup):
    """Commands by name, of which only the one that runs is imported: what another needs takes a second to load."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.places = {name: f"sim.cli.{place}" for name, (place, _) in COMMANDS.items()}
        lines = {**JOINED, **{name: line for name, (_, line) in COMMANDS.items()}}
        for entry in entry_points(group="trainsim.commands"):
            self.places.setdefault(entry.name, entry.value)
        for name, place in self.places.items():
            self.add_command(TyperCommand(name, help=lines.get(name, f"From {place}.")))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first word names, loaded."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, loaded(name, self.places[name]) if name in self.places else found, rest


def loaded(name: str, place: str) -> Any:
    """Return the command `name` at `module:attribute`: its help ends with an example, its errors name options."""
    from sim.cli.usage import naming_options  # noqa: PLC0415 - the version and the help of all need no more than names

    command = _made(name, place)
    for entry in entry_points(group=f"trainsim.commands.{name}"):
        command.add_command(_made(entry.name, entry.value))
    for words, part in leaves(command):
        naming_options(part)
        part.epilog = f"Example: trainsim {EXAMPLES[words]}" if words in EXAMPLES else None
    return command


def _made(name: str, place: str) -> Any:
    """Return the command of a function or a typer app at `module:attribute`."""
    module, _, attribute = place.partition(":")
    found = getattr(import_module(module), attribute)
    if not isinstance(found, typer.Typer):
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        alone.command()(found)
        found = alone
    command: Any = typer.main.get_command(found)
    command.name = name
    return command


def leaves(command: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the words and the command of everything at or below `command` that does something."""
    words, parts = f"{above} {command.name}".strip(), getattr(command, "commands", None)
    if parts is None:
        yield words, command
    for part in (parts or {}).values():
        yield from leaves(part, words)


app = typer.Typer(
    cls=_Commands,
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
