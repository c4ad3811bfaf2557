"""How fast the machine is now: limits in seconds are those of an idle core, and machines are shared."""

import time

ADDITIONS, USUAL_S = 1_000_000, 0.05
"""What a core of 2020 takes for so many in a loop of Python, alone."""


def slower() -> float:
    """Return how many times longer than usual Python takes at the moment, at least 1."""
    begin, total = time.process_time(), 0
    for n in range(ADDITIONS):
        total += n
    return max(1.0, (time.process_time() - begin) / USUAL_S)
