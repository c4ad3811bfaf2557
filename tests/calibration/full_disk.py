"""A `measure` command whose result finds no room on the disk."""

import errno

import typer
from typer.testing import CliRunner


def on_a_full_disk(monkeypatch, cli, arguments):
    """Return how `cli.measure_command` ends where its file cannot be written."""

    def full(*_):
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(cli, "write_json", full)
    app = typer.Typer()
    app.command()(cli.measure_command)
    return CliRunner().invoke(app, arguments)
