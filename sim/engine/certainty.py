"""How sure a step time is: runs that no fit has seen, experts, carried profiles, errors of kernels, other hosts."""

from collections.abc import Sequence
from math import hypot, sqrt

from sim.catalog import names
from sim.costs import spread, usage
from sim.costs.layers.issue import in_core
from sim.costs.profile import Profile, load_profile
from sim.costs.run_level import RunLevelSet, software_sigma
from sim.specs import Model, Plan

ISSUE_SIGMA_LOG = 0.26
"""Standard deviation of log time of issuing kernels on another host than the one that was measured: two H200 plans
bound by their host (full and selective recompute), by the issue times of one machine 20.1 and 24.7 % too fast for the
other (README, plans predicted and executed)."""

MEGATRON_SIGMA_LOG = 0.32
"""The same of Megatron-Core's modules: with `bias_dropout_fusion`, compiled by TorchScript, a layer took 1.35 - 1.38
times as long to issue as without on a CPU, 1.18 times on the host of an H200 (`calibration.issue_ratios --network
megatron-fused`)."""

EXPERTS_SIGMA_LOG = 0.29
"""Standard deviation of the log of a step time that mixtures of experts add in stacks that have state spaces or
attention with sinks too, where no fitted run had any: with it the 80 % interval holds 80 % of the public runs of six
such models (NVIDIA, Megatron-Bridge 25.09 - 26.08; 61 runs), every model counting the same, and where every run does;
by what the others need, it holds 79 % of the runs of a model that is left out. In stacks of plain attention it takes
none: 66 of 75 such runs of four models lie inside without."""


def experts_sigma(model: Model, level: RunLevelSet) -> float:
    """Return the standard deviation of the log of a step time that a model's experts add to a run level's."""
    return EXPERTS_SIGMA_LOG if model.has_experts and other_layers(model) and not level.experts else 0.0


def other_layers(model: Model) -> bool:
    """Return whether a stack has state spaces or attention with sinks, which no fitted run had."""
    return model.sinks or "M" in model.pattern


def waiting_sigma(waiting: float, model: Model, plan: Plan) -> float:
    """Return the standard deviation of the log of a step's time of which `waiting` grows with what hosts issue."""
    modules = MEGATRON_SIGMA_LOG if in_core(model, plan) else 0.0
    return waiting * hypot(ISSUE_SIGMA_LOG, modules)


def step_sigma(
    profile: Profile,
    level: RunLevelSet,
    kernels: Sequence[usage.Used] = (),
    software_year: float | None = None,
    hosts: float = 0.0,
    experts: float = 0.0,
) -> float:
    """Return the standard deviation of the log of a step time.

    What runs differ from the fitted run level, and what carrying the profile over from another device and software of
    another year add, and hosts other than the one whose issue times are known (`hosts`: `waiting_sigma`; hardly any
    fitted run waits for its host), and mixtures of experts (`experts`: `experts_sigma`). The run level's spread was
    found with the public profiles: the errors of their kernels, also outside their domains, are in it and count no
    second time. Of a profile whose kernels were timed, or those that a trace shows, which no such run has seen, the
    larger of the two counts, and what shapes outside its domain add comes on top.
    """
    beyond = carried_sigma(profile, level), software_sigma(software_year), hosts, experts
    if not profile.session:
        return hypot(level.sigma_log, *beyond)
    within = max(level.sigma_log, spread.kernel_sigma(profile, kernels, outside=False))
    return hypot(within, *beyond, spread.widening(profile, kernels))


def carried_sigma(profile: Profile, level: RunLevelSet) -> float:
    """Return the standard deviation of log time of carrying the profile over, as far as no fitted run has tested it.

    Nothing where it was measured, or runs of this very device were among those fitted; the last move alone where those
    of its base were, or of a device that was carried over from this one.
    """
    if profile.measured or profile.name in level.devices:
        return 0.0
    tested = [load_profile(name) for name in names("profiles") if name in level.devices]
    near = [p.scaling_sigma_log for p in tested if p.name == profile.base or p.base == profile.name]
    own = profile.scaling_sigma_log
    return min((sqrt(abs(own**2 - other**2)) for other in near), default=own)
