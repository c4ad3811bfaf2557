"""The program as a user starts it."""

import sys

import pytest

from sim.cli import main


@pytest.fixture
def trainsim(monkeypatch, capsys):
    """Return a function of words after `trainsim` that gives exit code, stdout and stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["trainsim", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        out = capsys.readouterr()
        return code, out.out, out.err

    return run
