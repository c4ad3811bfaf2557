"""Laws of saving every k steps: what it costs, what a failure loses, how much of the time trains (CheckFreq, FAST '21).

A snapshot begins when a step's weights are updated, and goes on beside the next step until that updates them (t_w, as
in CheckFreq's released code, is the time up to the update); what is left then is waited for. Then the state is written,
one at a time: while it is, a step takes `contention` (kappa) of itself longer, and so does the writing beside a step.
If it is not done when the next snapshot is due, training waits, and nothing slows the writing any more. With t_i the
step, s the snapshot, e what of it is waited for and P the writing alone, W = k t_i - (s - e) is trained beside it, and

    overhead(k) = [e + kappa min(P, W) + max(0, P - W)] / (k t_i)

A failure at any time loses half the time between two snapshots and what it takes until one is written. Goodput is exact
for failures at random (a Poisson process, also of what restarts): all training ends in one, takes its first snapshot
after k steps without overhead, and leaves what was written before its end.
"""

from functools import lru_cache

import sympy as sp
from sympy.codegen.cfunctions import expm1

from sim.costs.algebra import Compiled, Expr, ceiling, compile_expressions, maximum, minimum, symbol

iteration, hideable, snapshot, persist, contention = (
    symbol(n) for n in ("iteration_s", "hideable_s", "snapshot_s", "persist_s", "contention")
)
steps, reload, restart, mtbf, regrowths, budget = (
    symbol(n) for n in ("steps_between", "reload_s", "restart_s", "mtbf_s", "regrowths_per_s", "overhead_budget")
)
trained = steps * iteration
"""Training between two snapshots, without anything else."""
exposed = maximum(0, snapshot - hideable)
beside = trained - (snapshot - exposed)
"""Training that is left for the writing to go on beside."""
slowed = contention * minimum(persist, beside)
waited = maximum(0, persist - beside)
interval = trained + exposed + slowed + waited
written_after = snapshot + persist + slowed
"""From the beginning of a snapshot until it can be read."""
lost = interval / 2 + written_after
training = 1 / (1 + (1 + mtbf * regrowths) * expm1((restart + reload) / mtbf))
"""Share of the time between restarts: a restart that fails begins anew."""


@lru_cache
def costs() -> Compiled:
    """Return what saving every `steps_between` steps costs, as one function of arrays that broadcast.

    Outputs: exposed_s, slowed_s and waited_s of one checkpoint; interval_s from one to the next; overhead_fraction of
    training alone; written_after_s; lost_work_s, the mean of a failure; recovery_s, that and reading the state.
    """
    return compile_expressions(
        {
            "exposed_s": exposed,
            "slowed_s": slowed,
            "waited_s": waited,
            "interval_s": interval,
            "overhead_fraction": (exposed + slowed + waited) / trained,
            "written_after_s": written_after,
            "lost_work_s": lost,
            "recovery_s": reload + lost,
        }
    )


@lru_cache
def goodputs() -> Compiled:
    """Return which share of the time trains what is kept where nodes never run out, as a function of failures too.

    A failure every `mtbf_s`, after which `restart_s` and reading pass; beside them `regrowths_per_s` of training, which
    lose nothing and restart too, once, whatever comes back meanwhile. Outputs: goodput, exact without regrowths;
    first_order, that of small shares, (1 - overhead) (1 - (k t_i / 2 + P + reload + restart) / MTBF).
    """
    ends = 1 / mtbf + regrowths  # of training, per second
    saved = ends * trained * sp.exp(-(trained + written_after) * ends) / -expm1(-interval * ends)
    done = -expm1(-trained * ends) + sp.exp(-trained * ends) * trained / interval
    overhead = (exposed + slowed + waited) / trained
    lost_at_all = trained / 2 + persist + restart + reload
    return compile_expressions(
        {
            "goodput": training * (saved / mtbf + done * regrowths) / ends,
            "first_order": (1 - overhead) * (1 - lost_at_all / mtbf),
        }
    )


@lru_cache
def between_restarts() -> Compiled:
    """Return which share of the time lies between restarts, as output training."""
    return compile_expressions({"training": training})


@lru_cache
def frequencies() -> Compiled:
    """Return how many steps to leave between two snapshots.

    Outputs: at_once, the least with which one is written before the next is due; checkfreq, the rule: at_once, or what
    keeps the snapshot's stall within `overhead_budget`; released, the rule with the stall of the released code, all of
    the snapshot; bounded, the least at all within the budget, contention included. young and daly, not below at_once:
    seconds between two that lose the least time, sqrt(2 C M) (Young 1974) and with further terms of C / M (Daly 2006),
    C what one costs.
    """
    stall = exposed + contention * persist
    at_once = maximum(1, _steps(persist + snapshot - exposed))
    root = sp.sqrt(2 * stall * mtbf)
    share = stall / (2 * mtbf)
    daly = root * (1 + sp.sqrt(share) / 3 + share / 9) - stall
    few = sp.Heaviside(share - 1, 1, evaluate=False)  # a checkpoint costs twice the time between failures
    return compile_expressions(
        {
            "at_once": at_once,
            "checkfreq": maximum(at_once, _steps(exposed / budget)),
            "released": maximum(1, _steps(persist), _steps(snapshot / budget)),
            "bounded": maximum(at_once, _steps(stall / budget)),
            "young": maximum(at_once, _steps(root - iteration / 2)),
            "daly": maximum(at_once, _steps(few * mtbf + (1 - few) * daly - iteration / 2)),
        }
    )


def _steps(seconds: Expr) -> Expr:
    return ceiling(seconds / iteration)
