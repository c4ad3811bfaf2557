"""The program as a user starts it."""

import sys

import pytest

from sim.cli import main


@pytest.fixture
def trainsim(monkeypatch, capsys):
    """Return a function of words after `trainsim` that gives exit code, stdout and stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["trainsim", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        out = capsys.readouterr()
        return stop.value.code, out.out, out.err

    return run
