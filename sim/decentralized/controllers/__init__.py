"""Controllers of theta by name; a line in `CONTROLLERS` adds one."""

from collections.abc import Mapping, Sequence

from sim.decentralized.controllers.annealing import Annealing
from sim.decentralized.controllers.base import Controller
from sim.decentralized.controllers.fixed import Fixed
from sim.decentralized.controllers.hill_climbing import HillClimbing
from sim.decentralized.controllers.stochastic_hill_climbing import StochasticHillClimbing
from sim.decentralized.objective import Objective
from sim.specs.fields import InputError

_ALL: tuple[type[Controller], ...] = (Fixed, HillClimbing, StochasticHillClimbing, Annealing)
CONTROLLERS: Mapping[str, type[Controller]] = {kind.name: kind for kind in _ALL}


def controller(
    name: str, thetas: Sequence[float], objective: Objective, seed: int = 0, first: int | None = None
) -> Controller:
    """Return a new controller that begins with theta number `first` (left out: the last, of the least traffic).

    Raises:
        InputError: there is no such controller, or no such theta.
    """
    if name not in CONTROLLERS:
        raise InputError("controller", name, f"one of {', '.join(CONTROLLERS)}")
    if not thetas:
        raise InputError("thetas", (), "a theta or more, from the most traffic to the least")
    begin = len(thetas) - 1 if first is None else first
    if not 0 <= begin < len(thetas):
        raise InputError("first", begin, f"the number of a theta, from 0 to {len(thetas) - 1}")
    return CONTROLLERS[name](thetas, objective, seed, begin)
