"""HiGHS beside the thread that asks for it: it looks at no signal, and Ctrl-C would wait until it has solved all."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import Any

LOOK_EVERY_S = 0.1


def milp(stop: Callable[[], bool] = lambda: False, **problem: Any) -> Any:
    """Return `scipy.optimize.milp` of a problem, None where `stop`, asked ten times a second, says so before it ends.

    Ctrl-C is raised at once. What nobody waits for any longer ends with the program, or when it is solved.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    found: Future[Any] = Future()
    Thread(target=_solve, args=(found, problem), daemon=True).start()
    while True:
        try:
            return found.result(LOOK_EVERY_S)
        except TimeoutError:
            if stop():
                return None


def _solve(found: "Future[Any]", problem: dict[str, Any]) -> None:
    from scipy import optimize  # noqa: PLC0415 - every command would wait for it

    try:
        found.set_result(optimize.milp(**problem))
    except Exception as error:  # of whatever the problem is: told to who asks
        found.set_exception(error)
