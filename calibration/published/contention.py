"""Which published contention benchmarks speak for which devices of the catalog."""

from collections.abc import Iterable
from dataclasses import replace

from calibration.contention import fit_device
from calibration.published.public import Public
from sim.costs.contention import Contention
from sim.costs.profile import Profile

SPEAKS_FOR = {
    "a100-sxm4-40gb": ("a100-sxm-40gb", "a100-sxm-80gb"),
    "v100-sxm2-32gb": ("v100-sxm-32gb", "v100-sxm-16gb"),
    "l4": ("l4",),
}
"""Device of the file -> devices of the catalog: the same chip on the same links."""

SET_ASIDE = {("l4", "Dazz993/Mist:mist/tools/results")}
"""Sessions in which a host copy and a product together take exactly the sum of both: there copies were not issued
beside compute, which says nothing of what streams cost each other. Mist's own numbers for L4
(benchmark/mist/configs/experiment/template-l4.yaml) have the two side by side, as its other session does."""


def with_contention(profiles: Iterable[Profile], public: Public) -> list[Profile]:
    """Return the profiles with the contention matrices of those devices that were measured."""
    profiles = list(profiles)
    held: dict[str, list[Contention]] = {}
    for measured, names in SPEAKS_FOR.items():
        if any(p.name in names for p in profiles):
            found = fit_device(
                each
                for each in public.together
                if each.device == measured and (measured, each.session) not in SET_ASIDE
            )
            held |= dict.fromkeys(names, found)
    return [replace(p, contention=held.get(p.name, [])) for p in profiles]
