"""The inter-stage problem for OR-tools' CP-SAT, in whole numbers: an opinion that shares no code with the solvers."""

from ortools.sat.python import cp_model

from sim.tuner.solvers.chain import Chain

SCALE = 2
"""Of all times: fill is a multiple of 1 / 2."""


def cp_sat(chain: Chain, seconds: float = 30) -> float | None:
    """Return the proven least value of a chain with whole times, infinite where there is none, None if unproven.

    Stages walk over places (layers left, devices used): one literal per place, cell and point.
    """
    model = cp_model.CpModel()
    place = (chain.layers, (0,) * len(chain.devices))
    entering = {place: [model.new_constant(1)]}
    columns = {name: [] for name in "txdo"}
    for stage in reversed(range(chain.stages)):
        following, taken = {}, []
        for (left, used), into in entering.items():
            here = []
            for cell in chain.cells(stage, left, used):
                after = left - cell.layers, tuple(a + b for a, b in zip(used, cell.uses, strict=True))
                for point in zip(*(getattr(cell, name).tolist() for name in "txdo"), strict=True):
                    here.append(model.new_bool_var(""))
                    taken.append((here[-1], *map(int, point)))
                    following.setdefault(after, []).append(here[-1])
            model.add(sum(here) == sum(into))
        for i, name in enumerate("txdo"):
            columns[name].insert(0, sum(var * values[i] for var, *values in taken))
        entering = following
    for place, into in entering.items():
        if place != (0, chain.devices):
            model.add(sum(into) == 0)
    if (0, chain.devices) not in entering:
        return float("inf")
    t, x, d, o = columns.values()
    fill, most = round(SCALE * chain.fill), 10**6
    slowest, surplus, last = (model.new_int_var(0, most, "") for _ in range(3))
    for i in range(chain.stages):
        model.add(slowest >= t[i])
        model.add(surplus >= SCALE * d[i] - fill * sum(x[:i]))
        model.add(last >= o[i])
    model.minimize((SCALE * chain.microbatches - fill) * slowest + fill * sum(x) + surplus + SCALE * last)
    solver = cp_model.CpSolver()
    solver.parameters.catch_sigint_signal = False  # its handler would stay, and Ctrl-C end the tests without a word
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = seconds
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return float("inf")
    return round(solver.objective_value) / SCALE if status == cp_model.OPTIMAL else None
