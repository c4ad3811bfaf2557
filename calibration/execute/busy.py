"""Whether the machine is idle enough for its times to mean something."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

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


T = TypeVar("T")


def beside(run: Callable[[], T]) -> tuple[T, float]:
    """Return what `run()` returns, and the share of the machine that others than it and its processes used meanwhile,
    0 to 1."""
    from calibration.host import TeamLoad  # noqa: PLC0415 - loads torch

    load = TeamLoad()
    return run(), load.others()


Drift = Callable[[], float]
"""Says how long the sentinel takes now, over what it took in the calibration."""


def steady() -> float:
    """Take the machine to be as it was."""
    return 1.0


def drift_since(session: Path) -> Drift:
    """Return the drift of this machine's CPU since the calibration whose `session.json` is given; none without one."""
    from calibration.host import host_instruments  # noqa: PLC0415 - loads torch
    from calibration.store import load_session  # noqa: PLC0415 - loads torch

    reference_s = load_session(session.parent).sentinel_s if session.exists() else 0.0
    if not reference_s:
        return steady
    sentinel = host_instruments(threads=1).sentinel
    return lambda: sentinel() / reference_s


def idle(busy: Busy) -> None:
    """Return if the machine is idle.

    Raises:
        ExecutionError: with the reason, if it is not.
    """
    reason = busy()
    if reason:
        raise ExecutionError(reason)
