"""What ends a command from outside: SIGTERM, Ctrl-C, a full disk."""

import errno
import os
import signal
import sys
from io import BytesIO, TextIOWrapper
from time import monotonic, sleep

import pytest

from sim import cli
from sim.cli.signals import ended_tidily


def ends(monkeypatch, capsys, act) -> tuple[int, str]:
    """Return the status and the errors of a command line whose command does `act`."""
    monkeypatch.setattr(cli, "app", act)
    with pytest.raises(SystemExit) as left:
        cli.main()
    return left.value.code, capsys.readouterr().err


@pytest.fixture(autouse=True)
def of_a_fresh_process():
    """Ray, where a test before this one started it, handles SIGTERM itself."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def full(**_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "out/a.json")


@pytest.mark.parametrize(
    ("act", "told"),
    [
        (lambda **_: signal.raise_signal(signal.SIGTERM), "interrupted\n"),
        (lambda **_: signal.raise_signal(signal.SIGINT), "interrupted\n"),
        (lambda **_: 130, "interrupted\n"),
        (full, "stopped: No space left on device: out/a.json\n"),
    ],
    ids=["terminated", "interrupted", "interrupted inside typer", "full disk"],
)
def test_one_line_and_status_1(monkeypatch, capsys, act, told):
    assert ends(monkeypatch, capsys, act) == (1, told)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


class Loader:
    """Ends its workers in a destructor, where the interrupt comes."""

    def __del__(self):
        signal.raise_signal(signal.SIGTERM)


class Broken:
    """Finds in its destructor that its workers have been ended too."""

    def __del__(self):
        raise RuntimeError("worker is killed by signal")


def in_a_destructor(**_):
    Loader()
    Broken()
    sleep(20)
    raise ValueError("went on")


def while_tidying_up(**_):
    try:
        signal.raise_signal(signal.SIGTERM)
    finally:
        raise RuntimeError("worker is killed by signal")


@pytest.mark.parametrize("act", [in_a_destructor, while_tidying_up])
def test_an_interrupt_is_neither_lost_nor_told_as_another_error(monkeypatch, capsys, act):
    begin = monotonic()
    assert ends(monkeypatch, capsys, act) == (1, "interrupted\n")
    assert monotonic() - begin < 5


def test_what_fails_in_a_destructor_without_an_interrupt_is_told(monkeypatch, capsys):
    lost = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    assert ends(monkeypatch, capsys, lambda **_: Broken() and None) == (0, "")
    assert str(lost[0].exc_value) == "worker is killed by signal"


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of Python 3.12 on: other threads run
def test_a_forked_process_leaves_ctrl_c_to_its_parent():
    with ended_tidily():
        child = os.fork()
        if child == 0:
            signal.raise_signal(signal.SIGINT)
            os._exit(7 if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL else 8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_what_a_terminal_cannot_show_is_no_error(monkeypatch, capsys):
    raw = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(raw, encoding="ascii"))
    assert ends(monkeypatch, capsys, lambda **_: print("43.4–52.1 s", flush=True)) == (0, "")
    assert raw.getvalue() == b"43.4?52.1 s\n"


def test_a_closed_stdout_is_no_error(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", None)
    assert ends(monkeypatch, capsys, lambda **_: print("a plan", file=sys.stdout) or sys.stdout.isatty()) == (0, "")
