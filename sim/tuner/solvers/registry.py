"""The solvers of the inter-stage problem by name. A newcomer is a line here and passes `SolverContract`."""

from sim.tuner.solvers.chain import Solver
from sim.tuner.solvers.exact import exact
from sim.tuner.solvers.greedy import greedy
from sim.tuner.solvers.milp import milp
from sim.tuner.solvers.nsga import nsga
from sim.tuner.solvers.sampled import sampled

SOLVERS: dict[str, Solver] = {
    "exact": exact,
    "milp": milp,
    "greedy": greedy,
    "nsga": nsga,
    "sampled": sampled,
}
