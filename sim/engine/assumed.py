"""What a step's times rest on, as text: its profiles, and what is known of the links, the precision and the experts."""

from collections.abc import Iterator
from math import exp

from sim.catalog import names, newer_profile, profiled_device
from sim.costs.carry import ratios
from sim.costs.other_kernels import scan_times
from sim.costs.profile import Z80, Profile, load_profile
from sim.costs.run_level import RunLevelSet
from sim.engine.certainty import experts_sigma
from sim.specs import Cluster, Model, Plan
from sim.specs.catalog import device, precision
from sim.units import si


def of_profile(profile: Profile) -> tuple[str, ...]:
    """Return where a profile's times and memory come from."""
    of_data = "fitted to measurements of" if profile.measured else "fitted to public data of"
    kind = "an estimate scaled from" if profile.estimate else of_data
    return (
        f"profile {profile.name}: {kind} {profile.base or profile.name}; {profile.uncertainty_source}",
        *_of_newer_software(profile),
        *((profile.disturbed_words,) if profile.disturbed_words else ()),
        *((f"what hosts take to issue kernels: as measured for {profile.issue_of}",) if profile.issue_of else ()),
        f"collectives: {profile.collectives_source}",
        f"memory outside tensors: {profile.memory.source}",
        f"reserved memory: allocated x {profile.memory.reserved_over_allocated:g}, the profile's constant (no replay)",
    )


def _of_newer_software(profile: Profile) -> tuple[str, ...]:
    newer = newer_profile(profile.name)
    if newer is None:
        return ()
    of = f"the kernels of {load_profile(newer).base} with libraries of {newer[-4:]}"
    return (f"newer software is faster: cluster.profile = {newer} takes {of}, carried over",)


def of_hardware(cluster: Cluster, plan: Plan) -> tuple[str, ...]:
    """Return whose kernels a profile has, how fast products of few bits are, and links of other rates than logs'."""
    lines = ((*_of_chip(m), *_of_precision(m, plan), *_of_links(m)) for m in cluster.members)
    return tuple(dict.fromkeys(line for each in lines for line in each))


def _of_chip(cluster: Cluster) -> Iterator[str]:
    """Yield that the profile is of a catalog device whose kernels are faster or slower than those of the cluster's."""
    profiled, own = profiled_device(load_profile(cluster.profile).name), cluster.hardware
    if own.on_host or profiled not in names("devices"):
        return
    by = ratios(device(profiled), own)
    if (by.compute, by.bandwidth, by.sms) != (1, 1, 1):
        times = f"{by.compute:.3g} times its 16-bit peak and {by.bandwidth:.3g} times its memory bandwidth"
        yield f"profile of another device: {profiled}'s kernel times as they are, though {own.name} has {times}"


def _of_precision(cluster: Cluster, plan: Plan) -> Iterator[str]:
    recipe, held = precision(plan.precision), cluster.hardware
    for rate in dict.fromkeys((recipe.gemm.forward, recipe.gemm.dgrad, recipe.gemm.wgrad)):
        if rate in ("fp8", "fp4"):
            measured = held.fp8_speedup if rate == "fp8" else None
            source = f"; {measured.source}" if measured else " by the ratio of dense peaks, which nobody has measured"
            times = f"{held.speedup(rate):.3g} times as fast as in 16 bits"
            yield f"precision {plan.precision}: large products on {held.name} are {times}{source}"


def _of_links(cluster: Cluster) -> Iterator[str]:
    """Yield the links whose rate is not that of which a profile's collectives are shares, as logs told them."""
    for name, measured in load_profile(cluster.profile).collectives_links.items():
        stated = getattr(cluster.links, name)
        if stated != measured:
            told = f"logs of nccl-tests were read for {si(measured, 'B/s')} of cluster.links.{name}, here it is"
            again = "are these the links that were measured, read them with --base and a device file that says so"
            yield f"collectives: {told} {si(stated, 'B/s')}, and they are taken in proportion ({again})"


def of_graphs(plan: Plan) -> Iterator[str]:
    """Yield what is not counted of CUDA graphs."""
    for name in ("cuda_graphs", "layer_graphs"):
        if getattr(plan, name):
            yield f"plan.{name}: kernels as long as launched ones; memory of its own that a graph keeps is left out"


def of_scans(model: Model, cluster: Cluster) -> Iterator[str]:
    """Yield how fast scans are taken to be on matrix units that nobody has published one of."""
    later = [m.hardware.name for m in cluster.members if any(t > 1 for t in scan_times(m).values())]
    if later and "M" in model.pattern:
        told = "forward as fast per SM and clock as on an H100, backward as long as on an H200, as Triton's tiles"
        yield f"scans of state spaces on {', '.join(later)}: {told}"


def of_experts(model: Model, plan: Plan, level: RunLevelSet) -> Iterator[str]:
    """Yield that every rank of experts is taken to have as many rows, where nothing else was said, and how unsure
    steps of mixtures of experts are."""
    if plan.ep > 1 and model.imbalance == 1 and not model.capacity_factor:
        yield "experts are balanced: model.imbalance = 1, as many rows on every rank of plan.ep"
    if sigma := experts_sigma(model, level):
        off = f"public runs that have them ask for {100 * (exp(Z80 * sigma) - 1):.0f} % by themselves"
        wider = f"so that the interval is wider: {off}; runs of your own narrow it"
        yield f"experts beside state spaces or sinks were in no fitted run, {wider}"
