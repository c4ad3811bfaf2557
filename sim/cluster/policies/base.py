"""What a scheduling policy is."""

from abc import ABC, abstractmethod
from typing import ClassVar

from sim.cluster.state import Floats, State


class Policy(ABC):
    """Divides a cluster's time among jobs; made anew for every simulation, as some remember what they gave.

    `packs`: it gives time to pairs of jobs, so the state should hold them. `aware`: it knows how fast jobs are on
    each type. `costs`: it wants prices. `strict`: a job without a share never runs, even on devices that are idle
    (FIFO's queue). `gavel_parity`: it does what the published system does, oddities too.
    """

    name: ClassVar[str]
    packs: ClassVar[bool] = False
    aware: ClassVar[bool] = True
    costs: ClassVar[bool] = False
    strict: ClassVar[bool] = False

    def __init__(self, seed: int = 0, gavel_parity: bool = False) -> None:
        self.seed = seed
        self.gavel_parity = gavel_parity

    @abstractmethod
    def allocate(self, state: State) -> Floats:
        """Return X (n + k, m): shares of time of the jobs, then of the pairs, on each type; rows sum to at most 1.

        Over all rows, shares times devices used stay within `state.devices`.
        """
