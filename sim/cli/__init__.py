"""The `trainsim` command: thin typer commands, one file a family."""

import sys
from importlib.metadata import entry_points
from typing import Annotated

import typer

from sim import __version__
from sim.cli import (
    check,
    compare,
    device,
    emit,
    importing,
    lab,
    list,
    optimal,
    report,
    schedule,
    schema,
    simulate,
    sweep,
    tune,
    validate,
)
from sim.cli.usage import usage_message
from sim.specs.fields import InputError

app = typer.Typer(
    name="trainsim",
    help="What-if answers for distributed training: time, memory, cost, and which plan is best.",
    invoke_without_command=False,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("simulate")(simulate.simulate_command)
app.command("tune")(tune.tune_command)
app.command("compare")(compare.compare_command)
app.command("sweep")(sweep.sweep_command)
app.command("report")(report.report_command)
app.command("optimal")(optimal.optimal_command)
app.command("emit")(emit.emit_command)
app.command("import")(importing.import_command)
app.command("schedule")(schedule.schedule_command)
app.command("validate")(validate.validate_command)
app.command("list")(list.list_command)
app.command("check")(check.check_command)
app.command("schema")(schema.schema_command)
app.command("lab")(lab.lab_command)
app.add_typer(device.app, name="device")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"trainsim {__version__}")
        raise typer.Exit


VERSION = typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)


@app.callback()
def _options(version: Annotated[bool, VERSION] = False) -> None:
    del version  # its callback has answered


def main() -> None:
    """Run the command line: exit 0 ok, 2 bad input, 1 anything else."""
    added, known = {group.name for group in app.registered_groups}, {one.name for one in app.registered_commands}
    for entry in entry_points(group="trainsim.commands"):
        if entry.name not in added and known.isdisjoint(sys.argv[1:2]):
            app.add_typer(entry.load(), name=entry.name)
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except InputError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        sys.stderr.write("interrupted\n")
        sys.exit(1)
    except Exception as error:
        # A usage error of typer's parser, whose class differs between its releases.
        if not hasattr(error, "format_message"):
            raise
        message = usage_message(error)
        sys.stderr.write(f"error: {message}\n" if message else "")  # without arguments the help has been printed
        sys.exit(2)
