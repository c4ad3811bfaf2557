"""Collectives of the user's own cluster, from logs of nccl-tests, in a profile that is otherwise another's.

What the logs cannot tell stays the base's: of all-reduces alone, how much slower gathers are; of one number of ranks,
how start-up grows with them; of one node, the network; of several nodes, the links inside one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

from calibration.fit import Free, Parameters, Scores, Solution, conformal_coverage, folds, scores, solve
from calibration.folder import alone
from calibration.from_trace import device_of
from calibration.nccl_logs import Log, read_logs
from calibration.own_site import left_behind
from calibration.published.collectives import ALPHA, EFFICIENCY, FILL_FREE, INTRA_FREE
from calibration.samples import Floats
from calibration.store import SESSION
from sim.costs.algebra import Compiled, compile_expressions, symbol
from sim.costs.collectives import OPTIONAL, RING_RANKS, Group
from sim.costs.fitted import all_six_digits
from sim.costs.profile import Profile, load_profile, profile_name, profile_text
from sim.costs.run_level import RunLevel, symbol_values
from sim.specs.catalog import device
from sim.specs.device import Device, Sourced
from sim.specs.fields import InputError
from sim.specs.files import print_json, write_atomically
from sim.units import MIB, percent, si

SWITCH = "intra_efficiency_switch"
GATHERS = ("all_gather", "reduce_scatter")
FITTED = ("all_reduce", *GATHERS)
"""The operations whose rates a profile holds; the others' are predicted with them, and shown."""
FREE: Mapping[str, Free] = {
    **INTRA_FREE,
    "intra_efficiency_gather": EFFICIENCY,
    SWITCH: Free(0.6, 0.01, 1.5),
    "inter_efficiency": EFFICIENCY,
    "inter_alpha": ALPHA,
}
FEWEST_SIZES, BEYOND = 3, 1.05
NO_SWITCH = 1.0
"""The share where no switch reduces: never used."""


@dataclass(frozen=True)
class Timings:
    """Measured collectives, an element each: operation, ranks, of them in a fast domain, domains, bytes, seconds."""

    operation: NDArray[np.str_]
    n: Floats
    n_in: Floats
    n_out: Floats
    size: Floats
    seconds: Floats

    def where(self, mask: NDArray[np.bool_]) -> "Timings":
        """Return those of which `mask` is true."""
        return Timings(*(getattr(self, name)[mask] for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class Collective:
    """One collective over one communicator: errors of the base and, each size predicted by the others, of the fit."""

    operation: str
    ranks: int
    domains: int
    smallest: float
    largest: float
    n: int
    base: Scores
    fitted: Scores

    @property
    def shape(self) -> str:
        """The ranks, domains first where there are several: `4 x 8`."""
        return str(self.ranks) if self.domains == 1 else f"{self.domains} x {self.ranks // self.domains}"


@dataclass(frozen=True)
class Links:
    """The profile with the logs' collectives, its base, standard errors of what was fitted, and errors by collective.

    device: that the rates are of, as a job names it.
    """

    profile: Profile
    base: Profile
    standard_errors: Mapping[str, float]
    errors: tuple[Collective, ...]
    device: str


def calibrate_links(logs: Sequence[Path], out: Path, base: str | None) -> Links:
    """Write the profile folder `out` (profile.json): `base` with the collectives of the logs.

    base: a profile of a GPU of the catalog, a folder with one, or a device file.

    Raises:
        InputError: a log that cannot be read, of more ranks on a host than the base's device has, or of too few or too
            small sizes; no base, or one of a processor; `out` holds a measuring session or other kernels than the
            base's, or cannot be written.
    """
    held, name = _based(base)
    links = device(name)
    if links.on_host:
        raise InputError("--base", base, "a GPU's profile: nccl-tests run on GPUs")
    # All shares of one profile are of the same rates, those of its earlier logs.
    earlier: dict[Any, Any] = {k: Sourced(value=v, source="earlier logs") for k, v in held.collectives_links.items()}
    found = fitted([log for path in logs for log in read_logs(path)], held, replace(links, **earlier))
    with alone(out):
        if (out / SESSION).exists():
            raise InputError("--out", str(out), f"a folder without {SESSION}, whose profile would be lost")
        if (out / "profile.json").exists() and not _same_kernels(out, held):
            raise InputError("--out", str(out), f"a folder without other kernels than {base}'s (or --base {out})")
        try:
            write_atomically(out / "profile.json", profile_text(found.profile))
        except OSError as error:
            raise InputError("--out", str(out), f"a folder that can be written ({error.strerror})") from None
    return replace(found, device=name)


def _same_kernels(out: Path, held: Profile) -> bool:
    try:
        return load_profile(profile_name(out)).models == held.models
    except InputError:
        return False


def _based(base: str | None) -> tuple[Profile, str]:
    """Return the profile that `--base` names, and the device that it is of as a job names it."""
    if base is None:
        raise InputError("--base", None, "required: the device or profile that the logs of nccl-tests are of")
    try:
        held = load_profile(base)
    except InputError as error:
        raise InputError("--base", base, f"a device file, or {error.allowed}") from None
    if not (name := device_of(base, held)):
        raise InputError("--base", base, "a profile of a device of the catalog, or a device file")
    return held, name


def fitted(logs: Sequence[Log], base: Profile, links: Device) -> Links:
    """Return `base` with collectives that fit the logs, measured on links of the device `links`.

    Raises:
        InputError: as `calibrate_links` says of logs.
    """
    all_timings = timings(logs, links)
    mine = all_timings.where(np.isin(all_timings.operation, FITTED))
    _check(mine, logs)
    found = _solve(mine, links, base.collectives)
    fold = folds([f"{size:020.0f}" for size in all_timings.size])
    left_out = np.empty(len(all_timings.size))
    for each in np.unique(fold):
        others = mine.where(~np.isin(mine.size, all_timings.size[fold == each]))
        held = _solve(others, links, base.collectives) if len(others.size) else found
        left_out[fold == each] = predict(all_timings.where(fold == each), links, held.parameters)
    errors = _errors(all_timings, predict(all_timings, links, base.collectives), left_out, fold)
    told = f"{_told(errors)}; what these do not tell as before: {base.collectives_source}"
    # The kernels are the base's, and so are its name and whatever goes by that.
    profile = replace(
        base,
        collectives=all_six_digits(found.parameters),
        collectives_source=told[:1_900],
        collectives_links=base.collectives_links | _measured_on(mine, links),
    )
    return Links(profile, base, found.standard_errors, errors, links.name)


def _measured_on(mine: Timings, links: Device) -> dict[Any, float]:
    """Return the rates of those links that the timings tell of."""
    told = {"intra_bytes_per_s": mine.n_out == 1, "inter_bytes_per_s_per_node": mine.n_out > 1}
    return {name: getattr(links, name).value for name, where in told.items() if where.any()}


def timings(logs: Sequence[Log], links: Device) -> Timings:
    """Return what the logs hold, with communicators split over the fast domains of the device.

    Raises:
        InputError: a log has more ranks on a host than the device has to a node, or ranks that fill no whole domains.
    """
    parts: list[tuple[Any, ...]] = []
    for log in logs:
        inside = log.ranks // log.hosts
        if inside > links.gpus_per_node:
            allowed = f"at most {links.gpus_per_node}, which a node of {links.name} has (--base names the device)"
            raise InputError(str(log.path), f"{inside} ranks on a host", allowed)
        if links.domain_gpus > links.gpus_per_node:
            inside = min(log.ranks, links.domain_gpus)
        if log.ranks % inside:
            raise InputError(str(log.path), f"{log.ranks} ranks", f"whole domains of {inside}")
        shape = (log.operation, float(log.ranks), float(inside), log.ranks / inside)
        parts += [(*shape, size, s) for size, s in zip(log.sizes, log.seconds, strict=True)]
    operation, *numbers = zip(*parts, strict=True)
    return Timings(np.array(operation), *(np.array(column, dtype=np.float64) for column in numbers))


def _check(mine: Timings, logs: Sequence[Log]) -> None:
    """Refuse logs that tell no rate, or no start-up, of the links that they use."""
    paths = ", ".join(str(log.path) for log in logs)
    if not len(mine.size):
        raise InputError("--from", paths, f"a log of one of {', '.join(FITTED)}")
    for where, links in ((mine.n_out == 1, "inside a node"), (mine.n_out > 1, "between nodes")):
        sizes = np.unique(mine.size[where])
        if len(sizes) and (len(sizes) < FEWEST_SIZES or sizes[-1] < MIB):
            told = f"{len(sizes)} sizes {links}, the largest {si(float(sizes[-1]), 'B')}"
            raise InputError("--from", told, f"at least {FEWEST_SIZES}, to 1 MiB and more (-b 8 -e 8G -f 2)")


@lru_cache
def _compiled() -> Compiled:
    group, size = Group.named("ranks"), symbol("size_bytes")
    names = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "shift")
    return compile_expressions({name: getattr(group, name)(size) for name in names})


def predict(t: Timings, links: Device, parameters: Parameters) -> Floats:
    """Return the seconds of the collectives on links of the device; without a rate of the switch, in rings."""
    values: dict[str, Floats | float] = {
        "ranks_n": t.n,
        "ranks_in": t.n_in,
        "ranks_out": t.n_out,
        "ranks_over": 1.0,
        "size_bytes": t.size,
        "intra_bytes_per_s": links.intra_bytes_per_s.value,
        "inter_bytes_per_s_per_node": links.inter_bytes_per_s_per_node.value,
        "gpus_per_node": float(links.gpus_per_node),
        "in_switch_reduction": float(parameters.get(SWITCH, 0.0) > 0),
        **symbol_values(RunLevel()),  # a kernel alone: nothing of whole runs
        **OPTIONAL,
        SWITCH: NO_SWITCH,
        **{name: value for name, value in parameters.items() if name != SWITCH or value > 0},
    }
    seconds = _compiled()(values)
    return np.asarray(np.choose(_index(t), [np.broadcast_to(seconds[o], t.n.shape) for o in seconds]), dtype=np.float64)


def _index(t: Timings) -> NDArray[np.int64]:
    names = {name: n for n, name in enumerate(_compiled().outputs)}
    return np.array([names[operation] for operation in t.operation.tolist()], dtype=np.int64)


def _solve(t: Timings, links: Device, base: Parameters) -> Solution:
    """Return all collective parameters: those that the timings tell fitted, the others the base's or tied to these.

    A switch whose share of the rate leaves it slower than the ring does not reduce: the fit is repeated without.
    """
    switched = _switched(t) & (base.get(SWITCH, 0.0) > 0)
    found = _solved(t, links, base, bool(switched.any()))
    if switched.any():
        ring = {name: value for name, value in found.parameters.items() if name != SWITCH}
        largest = t.where(switched & (t.size == t.size[switched].max()))
        if np.all(predict(largest, links, found.parameters) > 0.98 * predict(largest, links, ring)):
            without = {name: value for name, value in base.items() if name != SWITCH}
            return _solved(t, links, without, False)
    return found


def _switched(t: Timings) -> NDArray[np.bool_]:
    """Return which all-reduces a switch would do: those inside a node of more than `RING_RANKS` ranks."""
    return np.asarray((t.operation == "all_reduce") & (t.n_out == 1) & (t.n_in > RING_RANKS))


def _solved(t: Timings, links: Device, base: Parameters, switch: bool) -> Solution:
    inside, gathers = t.n_out == 1, np.isin(t.operation, GATHERS)
    rings = inside & ~gathers & ~(_switched(t) & switch)
    told = {
        "intra_efficiency_reduce": rings.any(),
        "intra_efficiency_gather": (inside & gathers).any(),
        SWITCH: switch,
        **dict.fromkeys(("intra_alpha", *FILL_FREE), inside.any()),
        **dict.fromkeys(("intra_alpha_rank", "intra_own"), len(np.unique(t.n_in[inside])) > 1),
        **dict.fromkeys(("inter_efficiency", "inter_alpha"), (~inside).any()),
    }
    free = {name: FREE[name] for name, known in told.items() if known}
    solution = solve(lambda values: predict(t, links, _tied(values, free, base)), t.seconds, free, {})
    return replace(solution, parameters=_tied(solution.parameters, free, base))


TIED = (
    ("intra_efficiency_reduce", "intra_efficiency_gather"),
    ("intra_efficiency_gather", "intra_efficiency_reduce"),
    ("intra_alpha_rank", "intra_alpha"),
)
"""What keeps the base's ratio to the other where the logs tell that one alone."""


def _tied(values: Mapping[str, Any], free: Mapping[str, Free], base: Parameters) -> dict[str, Any]:
    """Return all parameters, given those that are free."""
    ratios = {a: base[a] * values[b] / base[b] for a, b in TIED if a not in free and b in free and base[b] > 0}
    return {**base, **ratios, **{name: values[name] for name in free}}


def _errors(t: Timings, by_base: Floats, left_out: Floats, fold: NDArray[np.int64]) -> tuple[Collective, ...]:
    found = []
    for operation, n, n_out in dict.fromkeys(zip(t.operation.tolist(), t.n.tolist(), t.n_out.tolist(), strict=True)):
        mine = (t.operation == operation) & (t.n == n) & (t.n_out == n_out)
        base, fit = (
            scores(p[mine], t.seconds[mine], conformal_coverage(p[mine], t.seconds[mine], fold[mine]))
            for p in (by_base, left_out)
        )
        sizes = t.size[mine]
        held = (int(n), int(n_out), float(sizes.min()), float(sizes.max()), int(mine.sum()))
        found.append(Collective(str(operation), *held, base, fit))
    return tuple(found)


def _told(errors: Sequence[Collective]) -> str:
    mean = sum(e.fitted.mape * e.n for e in errors) / sum(e.n for e in errors)
    each = ", ".join(f"{e.operation} over {e.shape} {e.fitted.mape:.1f} %" for e in errors)
    return f"logs of nccl-tests, whose sizes, left out of the fit, are {mean:.1f} % off; {each}"


def too_fast(found: Links) -> list[str]:
    """Return which fitted rates no link of the device has, as text: the logs are of another one, or its file is."""
    told: list[str] = []
    rates: Mapping[Any, float] = found.profile.collectives_links
    for name, where, link in (
        ("intra_efficiency_reduce", "inside a node all-reduces", "intra_bytes_per_s"),
        ("intra_efficiency_gather", "inside a node gathers", "intra_bytes_per_s"),
        ("inter_efficiency", "between nodes collectives", "inter_bytes_per_s_per_node"),
    ):
        share = found.profile.collectives[name]
        if name in found.standard_errors and share > BEYOND:
            of = f"{where} reach {percent(share)} of the {si(rates[link], 'B/s')} that the links are said to have"
            told.append(f"{of}: are these logs of another device (--base)?")
    return told


def links_command(logs: Sequence[Path], out: Path, base: str | None, as_json: bool) -> None:
    """Do what `trainsim calibrate --from` does with logs of nccl-tests: write the profile, print its errors."""
    progress = Console(stderr=True)
    with progress.status("reading and fitting"):
        found = calibrate_links(logs, out, base)
    profile = found.profile
    for line in left_behind(out, str(base)):
        progress.print(line, markup=False, highlight=False, soft_wrap=True)
    if as_json:
        before, sure = found.base.collectives, found.standard_errors
        parameters = {
            name: {"value": value, "standard_error": sure.get(name), "base": before.get(name)}
            for name, value in profile.collectives.items()
        }
        errors = [asdict(each) for each in found.errors]
        told = {"path": str(out / "profile.json"), "base": profile.name}
        print_json(told | {"device": found.device, "parameters": parameters, "errors": errors})
        return
    made = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), caption=f"{out / 'profile.json'}; errors in percent")
    headings = ("collective", "ranks", "sizes", "up to", found.base.name, "fitted", "median", "bias")
    for heading in headings:
        made.add_column(heading, justify="left" if heading in headings[:2] else "right")
    for e in found.errors:
        numbers = (e.base.mape, e.fitted.mape, e.fitted.median, e.fitted.bias)
        made.add_row(e.operation, e.shape, str(e.n), si(e.largest, "B"), *(f"{round(x, 1) + 0.0:.1f}" for x in numbers))
    Console(markup=False, emoji=False).print(made)
    progress.print("fitted: each size predicted without it", markup=False)
    for line in too_fast(found):
        progress.print(line, markup=False, highlight=False, soft_wrap=True)
    if SWITCH in found.base.collectives and SWITCH not in profile.collectives:
        progress.print("all-reduces are not faster than rings: no reduction in the switch", markup=False)
    job = f"cluster: {{device: {found.device}, profile: {profile_name(out)}}}"
    progress.print(job, markup=False, highlight=False, soft_wrap=True)
