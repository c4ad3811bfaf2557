"""Run-level parameters: what whole runs add to the sum of their kernels, as at most twelve named numbers.

They are fitted to measured runs (robustly, drawn to priors that come from component data) and shipped as sets: one
from every public source, and one per source that leaves it out, so that a source can be predicted without itself.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from functools import lru_cache
from hashlib import sha256
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from sim.catalog import data, names
from sim.specs.cluster import Cluster
from sim.specs.fields import InputError, read, real, spec, version_one
from sim.specs.files import load_mapping, state
from sim.units import digits3, many, percent

if TYPE_CHECKING:  # SymPy with it, which listing the sets needs not
    from sim.costs.profile import Profile

Text = Annotated[str, Field(min_length=1, max_length=2_000, description="text")]
FILE, SITE = "run-level.json", "site.json"
"""The shipped sets, and the set of one's own cluster, which lies beside the profile that it was fitted with."""


@spec
class RunLevel:
    """Factors and additions of a whole run over its kernels; the defaults leave the kernels alone.

    *_slowdown: time of matrix products, fused attention, memory-bound kernels, collectives and traffic between
    nodes over what the profile says; overlap_slowdown: share of the shorter of two concurrent activities that is paid
    all the same; unfused_compiled: share of memory-bound traffic that torch.compile leaves; low_precision_slowdown:
    time of 8- and 4-bit products over the ratio of peaks; misaligned_slowdown: of unfused
    attention products whose head dimension is no multiple of 8; host_s_per_launch: issue time of a kernel;
    step_overhead_s: of a step; straggler: relative time per doubling of the devices.
    """

    gemm_slowdown: Annotated[float, real(0.2, 5.0)] = 1.0
    attention_slowdown: Annotated[float, real(0.1, 10.0)] = 1.0
    memory_bound_slowdown: Annotated[float, real(0.1, 10.0)] = 1.0
    collective_slowdown: Annotated[float, real(0.1, 10.0)] = 1.0
    inter_slowdown: Annotated[float, real(0.1, 20.0)] = 1.0
    overlap_slowdown: Annotated[float, real(0.0, 1.0)] = 0.0
    unfused_compiled: Annotated[float, real(0.1, 1.0)] = 0.95
    misaligned_slowdown: Annotated[float, real(1.0, 50.0)] = 1.0
    low_precision_slowdown: Annotated[float, real(0.5, 10.0)] = 1.3
    host_s_per_launch: Annotated[float, real(0.0, 1e-3, "s")] = 0.0
    step_overhead_s: Annotated[float, real(0.0, 10.0, "s")] = 0.0
    straggler: Annotated[float, real(0.0, 0.2)] = 0.0


@spec
class RunLevelSet:
    """Fitted parameters, how far runs still lie from them, and what they were fitted to.

    sigma_log: standard deviation of the log of a measured step time of a source that was left out; source_sigma_log:
    the part of it that all runs of one source share (cluster, software), which drops out between plans on one cluster;
    experts: whether runs of mixtures of experts were among them.
    """

    parameters: RunLevel
    sigma_log: Annotated[float, real(0.0, 2.0)]
    devices: tuple[str, ...]
    source: Text
    source_sigma_log: Annotated[float, real(0.0, 2.0)] = 0.0
    experts: bool = False

    @classmethod
    def bare(cls, parameters: RunLevel) -> "RunLevelSet":
        """Return parameters of which nothing else is known: what a fit tries."""
        return cls(parameters=parameters, sigma_log=0.0, devices=(), source="not fitted")


@lru_cache
def shipped() -> Mapping[str, RunLevelSet]:
    """Return the shipped sets: `all`, and one per left-out source under the source's name."""
    sets = data(f"run-level/{FILE}")["sets"]
    return {name: read(RunLevelSet, value, f"run-level/{name}") for name, value in sets.items()}


def run_level(left_out: str | None = None) -> RunLevelSet:
    """Return the set that predicts rows of source `left_out` (None or an unknown source: fitted to all).

    Raises:
        InputError: the shipped file is damaged.
    """
    sets = shipped()
    if "all" not in sets:
        raise InputError("run-level", sorted(sets), "a set named all")
    return sets.get(left_out or "all", sets["all"])


DIGITS = 16
"""Hexadecimal digits that tell a run."""

Digest = Annotated[str, Field(pattern=rf"^[0-9a-f]{{{DIGITS}}}$", description=f"{DIGITS} hexadecimal digits")]


@spec
class Site:
    """What `site.json` holds: a set fitted to runs of one cluster, and the SHA-256 of the `profile.json` beside it.

    runs: digests of the runs (`Case.digest`), by which a test on them is told from one on later ones; empty: not known.
    """

    schema_version: Annotated[int, version_one()] = 1
    profile_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="64 hexadecimal digits")]
    run_level: RunLevelSet
    runs: Annotated[tuple[Digest, ...], Field(max_length=100_000)] = ()


def read_site(profile: str) -> RunLevelSet | None:
    """Return the set in a profile folder; None where `profile` is another one, or nobody has fitted any.

    Raises:
        InputError: the file is damaged, or the profile beside it is another one since.
    """
    held = _held(profile)
    return held.run_level if held else None


def site_runs(profile: str) -> frozenset[str]:
    """Return the digests of the runs that `read_site(profile)` was fitted to; none where they are not known."""
    held = _held(profile)
    return frozenset(held.runs if held else ())


def _held(profile: str) -> Site | None:
    folder = Path(profile)
    if profile in names("profiles") or not (folder / SITE).is_file():
        return None
    return _site(folder, state(folder / SITE), state(folder / "profile.json"))


@lru_cache(maxsize=64)
def _site(folder: Path, *_: tuple[int, ...]) -> Site:
    place = folder / SITE
    held = read(Site, load_mapping(place), str(place))
    try:
        now = sha256((folder / "profile.json").read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(str(folder / "profile.json"), error.strerror, "a readable file") from None
    if held.profile_sha256 != now:
        again = f"trainsim calibrate --from RUNS.csv --base {folder} --out {folder}"
        allowed = f"that of the profile beside it, which was written anew: `{again}` fits the runs to it"
        raise InputError(f"{place}.profile_sha256", held.profile_sha256, allowed)
    return held


ON_HOST = RunLevelSet(
    parameters=RunLevel(),
    sigma_log=0.1,
    devices=(),
    source="host processors: kernels alone, as the runs that are fitted are of accelerators; 10 % between runs assumed",
)


OF_THE_SITE = "fitted to runs of the site"
"""How the source of a set begins that was fitted to one's own runs."""


def level_of(cluster: Cluster) -> RunLevelSet:
    """Return the set that predicts runs on the cluster's devices: the site's own, fitted to all sources, or of hosts.

    Processes of one host slow each other by what their profile has measured of that.

    Raises:
        InputError: groups of a mixed cluster whose profiles do not hold the same site.
    """
    members = cluster.members
    if not all(member.hardware.on_host for member in members):
        sites = {member.profile: read_site(member.profile) for member in members}
        if len({*sites.values()}) > 1:
            with_one = [name for name, site in sites.items() if site]
            raise InputError("cluster.groups.profile", with_one, f"profiles that all hold the same {SITE}, or none")
        return next(iter(sites.values())) or on_own_links(run_level(), sites)
    from sim.costs.profile import load_profile  # noqa: PLC0415 - SymPy with it, which listing the sets needs not

    beside = load_profile(members[0].profile).beside
    others = members[0].gpus_per_node - 1
    slower = {kind: 1 + added * others for kind, added in beside.items()}
    memory, product = slower.get("memory", 1.0), slower.get("product", 1.0)
    made = RunLevel(gemm_slowdown=product, attention_slowdown=product, memory_bound_slowdown=memory)
    if made == ON_HOST.parameters:
        return ON_HOST
    told = f"products x {digits3(product)}, memory-bound kernels x {digits3(memory)}"
    source = f"{ON_HOST.source}; with {many(others, 'process', 'processes')} beside: {told}"
    return replace(ON_HOST, parameters=made, source=source)


def on_own_links(level: RunLevelSet, profiles: Iterable[str]) -> RunLevelSet:
    """Return a shipped set for profiles whose collectives were all timed on the very cluster, else the set as it is.

    `inter_slowdown` corrects the network's rate in the shipped profiles, which is of one cluster, by the runs of others
    (0.82): a rate that was measured leaves nothing to correct, and no step passes messages faster than a collective
    alone. `collective_slowdown` stays: public runs inside one node, whose links are those that the profiles were
    measured on, take as much longer (1.17, fitted to them alone).
    """
    from sim.costs.profile import load_profile  # noqa: PLC0415 - SymPy with it, which listing the sets needs not

    shipped_ones = names("profiles")
    own = [set() if name in shipped_ones else {*load_profile(name).collectives_links} for name in profiles]
    timed = set.intersection(*own) if own else set()
    if not timed:
        return level
    between = "inter_bytes_per_s_per_node" in timed
    made = replace(level.parameters, inter_slowdown=1.0) if between else level.parameters
    told = f"collectives x {made.collective_slowdown:.3g} of logs of nccl-tests, as in those runs"
    if between:
        told += f"; inter_slowdown 1, not {level.parameters.inter_slowdown:.3g}: the network was timed itself"
    return replace(level, parameters=made, source=f"{level.source}; {told}")


SOFTWARE_YEAR = 2024.0
"""Date of the software behind the shipped sets: the middle of the runs that they are fitted to, from 2021 (PTD-P) to
2025 (SimuMax on B200)."""

LESS_A_YEAR = 0.03
"""Relative time that framework overheads lose in a year of newer software (fused kernels, fewer launches, collectives
better placed and hidden). An assumption, fitted to nothing: of the timed runs one table alone states a date."""

SOFTWARE_SIGMA = 0.01
"""Standard deviation of the log of a step time per year from `SOFTWARE_YEAR`: `LESS_A_YEAR` is as unsure as it is
large, and framework overheads are about a third of a step. An assumption too."""

OVERHEADS = ("memory_bound_slowdown", "collective_slowdown", "host_s_per_launch", "step_overhead_s")
"""Parameters of what newer software shortens; tensor units and wires stay as fast as they are."""


def symbol_values(
    parameters: RunLevel, software_year: float | None = None, kernels_of: float = SOFTWARE_YEAR
) -> dict[str, float]:
    """Return the values of the symbols that the cost expressions use, for software of a decimal year if it is known.

    kernels_of: the year of the memory-bound kernels that are slowed down (`kernels_year`): what they have gained from
    `SOFTWARE_YEAR` until then is in their times already.
    """
    aged = dict.fromkeys(OVERHEADS, software_slowdown(software_year))
    aged["memory_bound_slowdown"] = software_slowdown(software_year, kernels_of)
    return {name: float(value) * aged.get(name, 1.0) for name, value in asdict(parameters).items()}


def kernels_year(profile: "Profile") -> float:
    """Return the year of the libraries whose kernels a profile holds: of a calibration, its own or that which it is
    carried over from, when it was made; of published figures `SOFTWARE_YEAR`."""
    from sim.costs.profile import load_profile  # noqa: PLC0415 - as above

    carried = not profile.measured and profile.base in names("profiles")
    timed = load_profile(str(profile.base)) if carried else profile
    year = timed.date[:4]
    return float(year) if timed.measured and year.isdecimal() else SOFTWARE_YEAR


def software_slowdown(year: float | None, counted: float = SOFTWARE_YEAR) -> float:
    """Return the time of framework overheads of software of a decimal year over `SOFTWARE_YEAR`'s; 1 if not known.

    counted: gains until this year are none, as they are counted elsewhere.
    """
    if year is None:
        return 1.0
    return exp(-LESS_A_YEAR * (year - min(max(year, SOFTWARE_YEAR), counted)))


def software_sigma(year: float | None) -> float:
    """Return the standard deviation of the log of a step time that software of another year adds."""
    return 0.0 if year is None else SOFTWARE_SIGMA * abs(year - SOFTWARE_YEAR)


def straggling(straggler: Any, gpus: Any) -> Any:
    """Return the relative time that waiting for the slowest of `gpus` devices adds (numbers or arrays)."""
    return straggler * np.log2(gpus)


NOTABLE = 0.1
"""Share of a step from which what frameworks do once a step is named among the assumptions."""


def between_steps(parameters: RunLevel, software_year: float | None, step_time_s: float) -> tuple[str, ...]:
    """Return what is assumed of a step so short that most of what frameworks do once a step shows."""
    overhead_s = symbol_values(parameters, software_year)["step_overhead_s"]
    if overhead_s < NOTABLE * step_time_s:
        return ()
    share = f"{percent(overhead_s / step_time_s)} of this step"
    return (
        f"{overhead_s * 1e3:.3g} ms of what frameworks do once a step (optimizer's launches, checks, logging) are "
        f"{share}, in its optimizer: fitted to runs of large models, a bare training loop takes less",
    )
