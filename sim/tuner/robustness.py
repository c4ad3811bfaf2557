"""How sure the choice is: the ranked plans scored again under other calibrations that the data allow as well.

What all plans on one cluster share (most of the error of a step time) drops out of their comparison. Left are errors of
the parts that plans use in different measure, each a factor on one run-level parameter:

- how far the run-level parameters move when one source is left out of their fit (jackknife over sources, with its
  correlations);
- what the profile states for each family of kernels at the sizes that the best plan uses, and for carrying figures over
  from another device (one error of compute rates, one of bandwidths), and how hosts differ in issuing kernels;
- what runs of one source still differ by (sigma_log without source_sigma_log): as far as the errors above do not
  explain it for the best plan, in equal measure on all parameters. That it is laid on the parts of a step, so that like
  plans share it, is an assumption.

Not drawn is what may be wrong with one plan alone (how its passes overlap and meet), so that a plan that is the fastest
in all draws is not certain to be.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import exp, hypot, log, sqrt

import numpy as np
from numpy.typing import NDArray

from sim.costs import spread
from sim.costs.run_level import kernels_year, shipped, symbol_values
from sim.engine.certainty import carried_sigma, waiting_sigma
from sim.engine.sensitivity import times_with
from sim.engine.step import Step

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
SAMPLES = 200
LEAST_SAMPLES = 50
MOST_OPERATIONS = 50_000_000
"""Operations of all runs together; plans with very many take fewer samples, so that a search does not wait for them."""

SMALL = 0.01
FARTHEST = 4
"""Standard deviations within which a flip is looked for."""

TITLES = {
    "gemm_slowdown": "time of matrix products",
    "attention_slowdown": "time of attention",
    "memory_bound_slowdown": "time of memory-bound kernels",
    "collective_slowdown": "time of collectives",
    "inter_slowdown": "time of traffic between nodes",
    "overlap_slowdown": "share paid of what overlaps",
    "unfused_compiled": "traffic that torch.compile leaves",
    "misaligned_slowdown": "time of misaligned attention products",
    "low_precision_slowdown": "time of 8- and 4-bit products",
    "host_s_per_launch": "issue time of a kernel, with that of its operation in Python",
    "step_overhead_s": "fixed time of a step",
}
"""Run-level parameters that plans on the same devices may use in different measure."""

SHARES = ("overlap_slowdown", "unfused_compiled")
"""Parameters that cannot exceed 1."""

COMPUTE = {"gemm": "gemm_slowdown", "convolution": "gemm_slowdown", "attention": "attention_slowdown"}
"""Family of kernels -> the parameter that is a factor on it; all others are bound by memory."""

MEMORY = "memory_bound_slowdown"
ISSUE = "host_s_per_launch"


@dataclass(frozen=True)
class Flip:
    """The smallest single error that makes another plan win.

    rival: the rank (from 1) of the plan that is the most probable winner beside the first, the second one where none
    ever wins; value: of the parameter as it is; at: where the plans take equally long; sigmas: how far that is, in
    standard deviations of the parameter.
    """

    rival: int
    parameter: str
    title: str
    value: float
    at: float
    sigmas: float


@dataclass(frozen=True, eq=False)
class Robustness:
    """The ranked plans under sampled calibrations.

    p_best: share of the samples in which each plan is the fastest of them; expected_regret: mean relative time that the
    first plan takes longer than the fastest; times_s[plan, sample]; sigmas: standard deviation of the log of each
    parameter; flip: None where no single error within `FARTHEST` standard deviations makes the rival win.
    """

    p_best: tuple[float, ...]
    expected_regret: float
    times_s: Floats
    sigmas: dict[str, float]
    flip: Flip | None


def robustness(
    steps: Sequence[Step], seconds: Sequence[float], samples: int = SAMPLES, seed: int = 0
) -> Robustness | None:
    """Return how robust the order of `steps` (best first) is; None for a single plan.

    seconds: their step times, which the path engine's relative changes under other parameters are applied to.
    """
    if len(steps) < 2:
        return None
    best = steps[0]
    names = [n for n in TITLES if symbol_values(best.level.parameters, best.plan.software_year)[n] > 0]
    loads = _loads(best, names)
    affordable = MOST_OPERATIONS // sum(len(step.timeline.graph) for step in steps)
    n = min(samples, max(LEAST_SAMPLES, affordable))
    deltas = np.random.default_rng(seed).standard_normal((n, len(loads))) @ loads
    times = np.array([_times(*of, names, deltas) for of in zip(steps, seconds, strict=True)])
    fastest = times == times.min(axis=0)
    sigmas = dict(zip(names, np.sqrt((loads**2).sum(axis=0)).tolist(), strict=True))
    p_best = (fastest / fastest.sum(axis=0)).mean(axis=1)
    rival = 1 + int(p_best[1:].argmax())
    return Robustness(
        tuple(p_best.tolist()),
        float((times[0] / times.min(axis=0) - 1).mean()),
        times,
        sigmas,
        _flip([steps[0], steps[rival]], [seconds[0], seconds[rival]], sigmas, rival + 1),
    )


def _times(step: Step, seconds: float, names: Sequence[str], deltas: Floats) -> Floats:
    """Return the seconds of a plan, [n], where the logs of run-level parameters change by deltas[n, parameter]."""
    values = symbol_values(step.level.parameters, step.plan.software_year)
    factors = {n: np.exp(d) for n, d in zip(names, deltas.T, strict=True)}
    if ISSUE in factors and not step.member.hardware.on_host:
        factors |= dict.fromkeys(step.profile.issue, factors[ISSUE])
    factors |= {n: np.minimum(factors[n], 1 / values[n]) for n in SHARES if n in factors}
    return times_with(step, factors) * seconds / step.step_time_s


def _loads(best: Step, names: list[str]) -> Floats:
    """Return how independent standard normal errors move the logs of the parameters: [error, parameter]."""
    stated = np.concatenate([_jackknife(best, names), _of_kernels(best, names)])
    ends = SMALL * np.concatenate([np.eye(len(names)), -np.eye(len(names))])
    up, down = np.log(_times(best, 1.0, names, ends)).reshape(2, -1)
    share = (up - down) / (2 * SMALL)
    between = sqrt(max(0.0, best.level.sigma_log**2 - best.level.source_sigma_log**2))
    unexplained = sqrt(max(0.0, between**2 - float(((stated @ share) ** 2).sum())))
    rest = np.eye(len(names)) * unexplained / max(float(np.sqrt((share**2).sum())), 1e-12)
    return np.concatenate([stated, rest, _carried(best, names)])


def _jackknife(best: Step, names: list[str]) -> Floats:
    """Return the jackknife's errors of a shipped run-level set: [left-out source, parameter]."""
    sets = shipped()
    held = [asdict(s.parameters) for source, s in sets.items() if source != "all"]
    if best.level not in sets.values() or not held:
        return np.zeros((0, len(names)))
    logs = np.array([[log(h[n]) if min(other[n] for other in held) > 0 else 0.0 for n in names] for h in held])
    return np.asarray((logs - logs.mean(axis=0)) * sqrt((len(held) - 1) / len(held)))


def _of_kernels(best: Step, names: list[str]) -> Floats:
    """Return what the profile states for its families of kernels: [family, parameter], one parameter each."""
    taken: dict[str, float] = {}
    for kernel in best.kernels:
        family = spread.family(best.profile, kernel)
        taken[family] = taken.get(family, 0.0) + abs(kernel.share)
    by_parameter: dict[str, list[tuple[float, float]]] = {}
    for op, sigma in spread.family_sigmas(best.profile, best.kernels).items():
        by_parameter.setdefault(COMPUTE.get(op, MEMORY), []).append((sigma, taken[op]))
    sigmas = {n: hypot(*(s for s, _ in each)) / max(sum(t for _, t in each), 1e-12) for n, each in by_parameter.items()}
    if not best.member.hardware.on_host:
        sigmas[ISSUE] = waiting_sigma(1.0, best.model, best.plan)
    return np.diag([sigmas.get(n, 0.0) for n in names])


def _carried(best: Step, names: list[str]) -> Floats:
    """Return the errors of carrying the profile over: one of compute rates, one of bandwidths."""
    sigma = carried_sigma(best.profile, best.level)
    return sigma * np.array([[n in COMPUTE.values() for n in names], [n == MEMORY for n in names]], dtype=float)


def _flip(steps: Sequence[Step], seconds: Sequence[float], sigmas: dict[str, float], rival: int) -> Flip | None:
    """Return the error of one parameter, the smallest in standard deviations, at which the second of two catches up."""
    names = [n for n, sigma in sigmas.items() if sigma > 0]

    def lead(at: Ints, z: Floats) -> Floats:
        """Return log(second / first), [n], with parameter at[n] off by z[n] standard deviations."""
        deltas = np.zeros((len(z), len(names)))
        deltas[np.arange(len(z)), at] = z * np.array([sigmas[n] for n in names])[at]
        first, second = (np.log(_times(*of, names, deltas)) for of in zip(steps, seconds, strict=True))
        return np.asarray(second - first)

    sides = [(at, side) for at in range(len(names)) for side in (1.0, -1.0)]
    if not sides:
        return None
    # All at once: evaluating the costs takes hardly longer for a hundred sets of parameters than for one.
    which, signs, far = (np.array(x) for x in zip(*((*s, z) for s in sides for z in range(FARTHEST + 1)), strict=True))
    ahead = lead(which, signs * far).reshape(len(sides), -1)
    crossings = [(int(np.argmax(row <= 0)), *s) for s, row in zip(sides, ahead, strict=True) if (row <= 0).any()]
    nearest = min((c[0] for c in crossings), default=0)
    exact = [_crossing(lead, *c) for c in crossings if c[0] == nearest]
    if not exact:
        return None
    sigma, parameter = min(exact, key=lambda e: abs(e[0]))
    name = names[parameter]
    best = steps[0]
    value = symbol_values(best.level.parameters, best.plan.software_year, kernels_year(best.profile))[name]
    return Flip(rival, name, TITLES[name], value, value * exp(sigma * sigmas[name]), sigma)


def _crossing(lead: Callable[[Ints, Floats], Floats], last: int, at: int, side: float) -> tuple[float, int]:
    """Return where between last - 1 and `last` standard deviations the lead ends, and the parameter."""
    if last == 0:
        return 0.0, at
    z = side * np.linspace(last - 1, last, 9)
    left = lead(np.full(len(z), at), z)
    i = int(np.flatnonzero(left <= 0)[0])
    if i == 0:
        return float(z[0]), at
    return float(z[i - 1] + (z[i] - z[i - 1]) * left[i - 1] / (left[i - 1] - left[i])), at
