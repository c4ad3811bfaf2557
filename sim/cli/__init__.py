"""The `trainsim` command: thin typer commands, one file a family."""

import sys
from importlib.metadata import entry_points

import typer

from sim.cli import lab, schedule, simulate, tune
from sim.specs.fields import InputError

app = typer.Typer(
    name="trainsim",
    help="What-if answers for distributed training: time, memory, cost, and which plan is best.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("simulate")(simulate.simulate_command)
app.command("tune")(tune.tune_command)
app.command("schedule")(schedule.schedule_command)
app.command("lab")(lab.lab_command)


def main() -> None:
    """Run the command line: exit 0 ok, 2 bad input, 1 anything else."""
    for entry in entry_points(group="trainsim.commands"):
        app.add_typer(entry.load(), name=entry.name)
    try:
        app()
    except InputError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(1)
