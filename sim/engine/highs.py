"""HiGHS beside the thread that asks for it: it looks at no signal, and Ctrl-C would wait until it has solved all."""

from collections.abc import Callable
from concurrent.futures import Future, wait
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
    while not wait([found], LOOK_EVERY_S).done:
        if stop():
            return None
    return found.result()


def _solve(found: "Future[Any]", problem: dict[str, Any]) -> None:
    try:
        from scipy import optimize  # noqa: PLC0415 - every command would wait for it

        found.set_result(optimize.milp(**problem))
    except BaseException as error:  # whatever it is, who asks is told: nobody else would be
        found.set_exception(error)
