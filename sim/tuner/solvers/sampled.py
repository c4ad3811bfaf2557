"""Random choices: what searching without any idea finds."""

from math import inf

import numpy as np

from sim.tuner.solvers.chain import USUAL, Chain, Choice, Effort, Solution, value
from sim.tuner.solvers.graph import Graph, on_graph, unproven

SAMPLES = 2_000


def sampled(chain: Chain, effort: Effort = USUAL) -> Solution:
    """Return the best of seeded random choices; steps are choices drawn.

    From the last stage on each takes any of the cells that can still be finished, then any point of it.
    """

    def search(graph: Graph) -> Solution:
        rng = np.random.default_rng(effort.seed)
        best: tuple[float, Choice | None] = (inf, None)
        drawn = 0
        for _ in range(SAMPLES if effort.steps is None else effort.steps):
            if effort.stop():
                break
            choice = graph.decode(rng.random((chain.stages, 2)))
            best = min(best, (value(chain, choice), choice), key=lambda pair: pair[0])
            drawn += 1
        return unproven(chain, effort, best[1], drawn)

    return on_graph(chain, effort, search)
