"""Whether the machine is idle enough for its times to mean something."""

from collections.abc import Callable

from calibration.execute.processes import ExecutionError
from calibration.guards import BusyError, admit

Busy = Callable[[], str | None]
"""Says why the machine is too busy to measure, or None."""


def nobody() -> None:
    """Take the machine to be idle."""


def others() -> str | None:
    """Return the reason if others use the CPU, asked for up to three seconds."""
    from calibration.host import host_instruments  # noqa: PLC0415 - loads torch, which every command would wait for

    try:
        admit(host_instruments(threads=1))
    except BusyError as error:
        return str(error)
    return None


def idle(busy: Busy) -> None:
    """Return if the machine is idle.

    Raises:
        ExecutionError: with the reason, if it is not.
    """
    reason = busy()
    if reason:
        raise ExecutionError(reason)
