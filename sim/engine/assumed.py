"""What a step's times rest on, as text: its profiles, and what is known of the links, the precision and the experts."""

from collections.abc import Iterator

from sim.catalog import newer_profile
from sim.costs.profile import Profile, load_profile
from sim.specs import Cluster, Model, Plan
from sim.specs.catalog import precision
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
    newer = newer_profile(profile.name) if profile.estimate else None
    if newer is None:
        return ()
    of = f"the same chip's kernels as {load_profile(newer).base} has them with libraries of {newer[-4:]}"
    return (f"software since mid-2024 is faster: cluster.profile = {newer} takes {of}",)


def of_hardware(cluster: Cluster, plan: Plan) -> tuple[str, ...]:
    """Return how fast products of less than 16 bits are taken to be, and which links logs were not measured on."""
    return tuple(dict.fromkeys(line for m in cluster.members for line in (*_of_precision(m, plan), *_of_links(m))))


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


def of_experts(model: Model, plan: Plan) -> tuple[str, ...]:
    """Return that every rank of experts is taken to have as many rows, where nothing else was said."""
    if plan.ep == 1 or model.imbalance != 1 or model.capacity_factor:
        return ()
    return ("experts are balanced: model.imbalance = 1, as many rows on every rank of plan.ep",)
