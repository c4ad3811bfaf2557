"""Scores of explicit plans, one a row, whatever models, clusters and settings they are of.

The tuner's spaces are whole products; here every row states all of its own. A row that breaks a rule has a reason.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.costs import inputs
from sim.costs.algebra import Compiled
from sim.costs.contention import contention_values
from sim.costs.layers.structure import Structure
from sim.costs.learned import factors
from sim.costs.profile import Profile, load_profile
from sim.costs.run_level import level_of, straggling
from sim.engine.closed_form import chunk_form, closed_form
from sim.engine.step import device_memory, memory_sigma, most_allocated
from sim.schedules import CLOSED
from sim.specs import Cluster, InputError, Model, Plan
from sim.specs.catalog import precision
from sim.specs.rules import RULES
from sim.specs.spread import Spread
from sim.tuner.chunks import Pipelines, Stacks
from sim.tuner.grids import distinct, evaluated
from sim.tuner.score import Floats, Scores, layout, row_values, scalars, score_members
from sim.tuner.space import KEPT, NONE, ONE_F_ONE_B, ORDERS, PRECISIONS, Column, Space
from sim.units import HOUR_S

DEGREES = ("tp", "pp", "virtual_stages", "dp", "cp", "ep", "fsdp_shard", "micro_batch")
"""Columns that are symbols of the cost model, beside `microbatches`."""

SWITCHES = ("zero", "recompute", "sequence_parallel")
FITS = ("no", "close", "yes")
"""Codes of the `fits` column, as `Step.fits` says it."""

NEAR = 16_384
"""How many of a space's fastest and of its smallest plans are scored by their order, where chunks differ: of more, a
search of millions would do little else."""
HOPEFUL = 1.5
"""By the mean of its chunks a plan that fits may take so many times what there is (at most 1.31 times was seen)."""


class Setting(NamedTuple):
    """What rows share: a model, a cluster, and a plan of which the columns' own fields do not count."""

    model: Model
    cluster: Cluster
    plan: Plan


@dataclass(frozen=True, eq=False)
class Rows:
    """Plans by row. columns: `DEGREES` (dp and fsdp_shard 0: left out), `SWITCHES` (recompute an index of `RECOMPUTE`),
    global_batch and schedule (an index of `ORDERS`); setting: an index of `settings`.

    stated: symbols' values that every row has of its own, and memory_bytes and usd_per_gpu_hour, in place of the
    cluster's.
    """

    columns: Mapping[str, Column]
    setting: Column
    settings: Sequence[Setting]
    stated: Mapping[str, Floats] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.setting)

    def of(self, kept: Any) -> "Rows":
        """Return some rows alone."""
        columns, stated = ({k: v[kept] for k, v in each.items()} for each in (self.columns, self.stated))
        return Rows(columns, self.setting[kept], self.settings, stated)

    def each(self, what: Any, dtype: Any = np.int64) -> NDArray[Any]:
        """Return what a function says of a row's setting, for every row."""
        return np.array([what(one) for one in self.settings], dtype=dtype)[self.setting]


@dataclass(frozen=True, eq=False)
class RowScores:
    """Predictions by row: step_time_s, peak_memory_bytes allocated on the fullest rank, fits (a code of `FITS`), MFU
    (Megatron's convention), tokens_per_s_per_gpu, and USD per 1e9 tokens, NaN where the cluster has no price."""

    step_time_s: Floats
    peak_memory_bytes: Floats
    fits: NDArray[np.int8]
    mfu: Floats
    tokens_per_s_per_gpu: Floats
    usd_per_1e9_tokens: Floats


def settled(rows: Rows) -> Rows:
    """Return rows with dp as tp, pp and cp leave it where it was left out, and their microbatches."""
    held, gpus = dict(rows.columns), rows.each(lambda s: s.cluster.gpus)
    left = np.maximum(1, gpus // (held["tp"] * held["pp"] * held["cp"]))
    held["dp"] = np.where(held["dp"] > 0, held["dp"], left)
    held["microbatches"] = held["global_batch"] // (held["dp"] * held["micro_batch"])
    return Rows(held, rows.setting, rows.settings, rows.stated)


def refusals(rows: Rows) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Yield the reasons for which settled rows cannot run, and which rows; each row once, by the first rule it breaks
    as `Plan.on` finds it."""
    models = list({id(s.model): s.model for s in rows.settings}.values())
    known = {id(model): n for n, model in enumerate(models)}
    both = rows.each(lambda s: known[id(s.model)]) * len(ORDERS) + rows.columns["schedule"]
    for key in np.unique(both).tolist():
        at, (model, schedule) = np.flatnonzero(both == key), divmod(key, len(ORDERS))
        spread, alive = _spread(rows.of(at), schedule), np.ones(len(at), dtype=bool)
        for rule in RULES:
            broken = alive & rule.broken(models[model], spread)
            if broken.any():
                yield rule.reason, at[broken]
                alive &= ~broken


def _spread(rows: Rows, schedule: int) -> Spread:
    c: Mapping[str, Any] = rows.columns
    return Spread(
        gpus=rows.each(lambda s: s.cluster.gpus), group=c["pp"], etp=rows.each(lambda s: s.plan.etp),
        sequence_parallel=c["sequence_parallel"] > 0, shard=c["fsdp_shard"], zero=c["zero"],
        selective=c["recompute"] == 1, repeats=c["recompute"] > 0, schedule=ORDERS[schedule],
        tp=c["tp"], pp=c["pp"], virtual_stages=c["virtual_stages"], dp=c["dp"], cp=c["cp"], ep=c["ep"],
        global_batch=c["global_batch"], micro_batch=c["micro_batch"], tempo=rows.each(lambda s: s.plan.tempo, bool),
        tp_comm_overlap=rows.each(lambda s: s.plan.tp_comm_overlap, bool),
        ep_overlap=rows.each(lambda s: s.plan.ep_overlap, bool),
    )  # fmt: skip


class _On(NamedTuple):
    """A setting on one device of its cluster, and what of it no column changes."""

    setting: Setting
    member: Cluster
    profile: Profile
    structure: Structure
    values: Mapping[str, float]
    factors: tuple[float, ...]


FACTORS = ("slower", "reserved", "outside_bytes", "low", "high", "capacity", "tokens", "flop_share", "usd")
"""Of a device of a setting: straggling per doubling of devices, device memory over allocated bytes and what comes on
top, the ends of its 80 % interval over it, its capacity, tokens of a sample, MFU over samples a second, USD per GPU and
hour."""


@dataclass(eq=False)
class RowScorer:
    """Scores rows of schedules with a closed form; keeps what it knows of the settings it has seen."""

    known: dict[tuple[object, ...], tuple[Setting, list[_On] | InputError]] = field(default_factory=dict)
    most: int = 20_000

    def given(self, setting: Setting, schedule: int) -> "list[_On] | InputError":
        """Return a setting on every device of its cluster, or why it cannot be; the schedule counts where something is
        offloaded."""
        key = (*map(id, setting), ORDERS[schedule] if setting.plan.offload.used else "")
        if key not in self.known:
            if len(self.known) >= self.most:
                self.known.clear()
            try:
                found: list[_On] | InputError = [_on(setting, m, ORDERS[schedule]) for m in setting.cluster.members]
            except InputError as error:
                found = error
            self.known[key] = setting, found  # with the setting, so that no other has its id
        return self.known[key][1]

    def scores(self, rows: Rows) -> RowScores:
        """Return the scores of settled rows that no rule and no setting refuses."""
        parts, part, row = self._on_devices(rows)
        each = rows.of(row)
        times, peaks = np.empty(len(row)), np.empty(len(row))
        for pool, at in _pools(parts, part, each.columns["schedule"]):
            times[at], peaks[at] = _scored(pool, each.of(at), parts, part[at])
        f = dict(zip(FACTORS, np.array([p.factors for p in parts]).reshape(-1, len(FACTORS)).T, strict=True))
        c, gpus = each.columns, each.each(lambda s: s.cluster.gpus)
        times *= (1 + straggling(f["slower"][part], gpus)) * _learned(each, parts, part)
        held = device_bytes(peaks, f["reserved"][part], f["outside_bytes"][part])
        capacity = each.stated.get("memory_bytes", f["capacity"][part])
        fits = np.where(held * f["high"][part] <= capacity, 2, np.where(held * f["low"][part] > capacity, 0, 1))
        first = np.flatnonzero(np.diff(row, prepend=-1))
        step = np.maximum.reduceat(times, first)
        samples_per_s = c["global_batch"][first] / step
        of_gpu = samples_per_s * f["tokens"][part[first]] / gpus[first]
        usd = each.stated.get("usd_per_gpu_hour", f["usd"][part])[first]
        return RowScores(
            step,
            np.maximum.reduceat(peaks, first),
            np.minimum.reduceat(fits, first).astype(np.int8),
            samples_per_s * f["flop_share"][part[first]],
            of_gpu,
            1e9 / (of_gpu * HOUR_S) * usd,
        )

    def _on_devices(self, rows: Rows) -> tuple[list[_On], Column, Column]:
        """Return the devices of all settings, and of every row on each of its devices the device's and its own index;
        those of one row stand together."""
        keys = rows.setting * len(ORDERS) + rows.columns["schedule"]
        kinds, kind = np.unique(keys, return_inverse=True)
        held = []
        for setting, schedule in (divmod(key, len(ORDERS)) for key in kinds.tolist()):
            found = self.given(rows.settings[setting], schedule)
            if isinstance(found, InputError):
                raise found
            held.append(found)
        sizes = np.array([len(one) for one in held])
        begin, of_row = np.cumsum(sizes) - sizes, sizes[kind.ravel()]
        row = np.repeat(np.arange(len(rows)), of_row)
        place = np.arange(len(row)) - np.repeat(np.cumsum(of_row) - of_row, of_row)
        return [one for found in held for one in found], begin[kind.ravel()][row] + place, row


def scored(space: Space) -> Scores:
    """Return the scores of a space as `score_members`, but of pipelines whose chunks differ by their order.

    Of these the `NEAR` fastest that may fit and the `NEAR` smallest; the others keep those of the mean of their chunks.
    """
    found = score_members(space)
    orders = [i for i, name in enumerate(ORDERS) if name in CLOSED]
    none = np.zeros(len(space.rows["tp"]), dtype=np.int64)
    uneven = Stacks.of([space.model], none, space.rows["pp"], space.rows["virtual_stages"]).uneven
    uneven = uneven & np.isin(space.rows["schedule"], orders)
    at = np.nonzero(space.allowed & uneven[:, None, None, None])
    if not len(at[0]):
        return found
    near = _near(found.step_time_s[at], found.peak_memory_bytes[at], space)
    at = tuple(index[near] for index in at)
    row, switches = at[0], zip(("recompute", "zero", "sequence_parallel"), at[1:], strict=True)
    columns = {name: space.rows[name][row] for name in (*DEGREES, "microbatches", "schedule")}
    columns |= {name: getattr(space, name)[index] for name, index in switches}
    columns["global_batch"] = np.full(len(row), space.global_batch)
    own, setting = np.unique([space.rows[name][row] for name in ("precision", "tempo")], axis=1, return_inverse=True)
    plans = [
        Plan(**{**space.kept, "global_batch": space.global_batch, "precision": PRECISIONS[p], "tempo": bool(t)})
        for p, t in own.T.tolist()
    ]
    settings = [Setting(space.model, space.cluster, plan.suited(space.cluster)) for plan in plans]
    exact = RowScorer().scores(Rows(columns, setting.ravel(), settings))
    step, peak, fits = found.step_time_s.copy(), found.peak_memory_bytes.copy(), found.fits.copy()
    step[at], peak[at], fits[at] = exact.step_time_s, exact.peak_memory_bytes, exact.fits == FITS.index("yes")
    return Scores(step, peak, fits)


def _near(step: Floats, peak: Floats, space: Space) -> Column:
    """Return which plans are among the `NEAR` fastest that may fit, or smallest."""
    room = max(most_allocated(load_profile(m.profile), m) for m in space.cluster.members)
    orders = np.where(peak <= HOPEFUL * room, step, np.inf), peak
    return np.unique([np.argsort(each, kind="stable")[:NEAR] for each in orders])


def device_bytes(peak: Any, reserved: Any, outside: Any) -> Any:
    """Return the device memory behind allocated bytes, as `sim.engine.step.device_memory` has it of one profile."""
    return peak * reserved + outside


def _on(setting: Setting, member: Cluster, schedule: str) -> _On:
    model, cluster, plan = setting
    profile = load_profile(member.profile, plan.product_kernel)
    kept = {name: getattr(plan, name) for name in KEPT if name not in {*plan.derived, "fsdp_shard"}}
    values = scalars(model, member, profile, plan.global_batch, {**kept, "schedule": schedule})
    rate, outside = precision(plan.precision).gemm.forward, float(device_memory(0.0, profile))
    price = cluster.usd_per_gpu_hour
    found = (
        level_of(member).parameters.straggler,
        float(device_memory(1.0, profile)) - outside,
        outside,
        *profile.interval80(1.0, memory_sigma(profile)),
        member.memory_bytes,
        model.tokens_per_sample,
        model.tokens_per_sample * model.flop_per_token("megatron") / cluster.peak_flop_per_s(rate),
        np.nan if price is None else price,
    )
    return _On(setting, member, profile, Structure.of(model), values, found)


class _Pool(NamedTuple):
    structure: Structure
    schedule: str
    layout: tuple[str, int]
    offloads: bool


def _pools(parts: Sequence[_On], part: Column, schedule: Column) -> Iterator[tuple[_Pool, Column]]:
    """Yield what one compiled function evaluates together, and which rows."""
    kinds: dict[Any, int] = {}
    of_part = np.array(
        [
            kinds.setdefault((p.structure, layout(vars(p.setting.plan)), p.setting.plan.offload.used), len(kinds))
            for p in parts
        ]
    )
    # Without a pipeline 1F1B is as good an order as any.
    both = of_part[part] * len(ORDERS) + np.where(schedule == NONE, ONE_F_ONE_B, schedule)
    names = list(kinds)
    for each in np.unique(both).tolist():
        structure, order, offloads = names[each // len(ORDERS)]
        yield _Pool(structure, ORDERS[each % len(ORDERS)], order, offloads), np.flatnonzero(both == each)


def _scored(pool: _Pool, rows: Rows, parts: Sequence[_On], part: Column) -> tuple[Floats, Floats]:
    """Return step times (s) without stragglers and peaks (bytes) of the rows of a pool: by closed forms, or where the
    chunks of a pipeline hold different layers by its order."""
    function = closed_form(pool.structure, pool.schedule, pool.offloads)
    used, index = np.unique(part, return_inverse=True)
    index, held = index.ravel(), [parts[k] for k in used.tolist()]
    columns: dict[str, Any] = {}
    for name in held[0].values:
        each = np.array([one.values[name] for one in held])
        columns[name] = float(each[0]) if (each == each[0]).all() else each[index]
    columns |= {name: value for name, value in rows.stated.items() if name in columns}
    shape = {name: rows.columns[name].astype(np.float64) for name in (*DEGREES, "microbatches")}
    values = row_values(columns, shape, vars(held[0].setting.plan), len(held[0].setting.model.blocks))
    values |= _contention(held, index, values)
    values |= {"chunks_alive": 0.0} | inputs.rank_values(values)
    values |= inputs.switch_values(*(rows.columns[name] for name in SWITCHES))
    given = np.unique(
        [[one.values[n] for n in function.symbols if n in one.values] for one in held], axis=0, return_inverse=True
    )
    names = ("tp", "cp", "ep", "micro_batch", "sequence_parallel")
    alike = distinct(given[1].ravel()[index], *(rows.columns[name] for name in names))[1]
    if len(held[0].setting.model.blocks) == 1:
        return _even(function, values, alike)
    stacks = Stacks.of([one.setting.model for one in held], index, rows.columns["pp"], rows.columns["virtual_stages"])
    time, peak, even = np.empty(len(rows)), np.empty(len(rows)), ~stacks.uneven
    if even.any():
        time[even], peak[even] = _even(function, _some(values, even), distinct(alike[even])[1])
    if not even.all():
        waits = np.array([one.setting.plan.barrier(pool.schedule) for one in held], dtype=bool)
        form, at = chunk_form(pool.structure, pool.schedule, pool.offloads), np.flatnonzero(~even)
        pipelines = Pipelines(pool.schedule, stacks.of_rows(at), waits[index][at])
        time[at], peak[at] = pipelines.scored(form, _some(values, at), distinct(alike[at])[1])
    return time, peak


def _even(function: Compiled, values: Mapping[str, Any], alike: Column) -> tuple[Floats, Floats]:
    """Return what the closed form says of rows whose chunks are equal."""
    out = evaluated(function, values, alike=alike, threads=False)
    time, peak = (np.broadcast_to(out[name], len(alike)) for name in ("step_time_s", "peak_memory_bytes"))
    return time, peak


def _some(values: Mapping[str, Any], at: Any) -> dict[str, Any]:
    return {name: value[at] if np.ndim(value) else value for name, value in values.items()}


def _contention(held: Sequence[_On], index: Column, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return how much streams slow each other beside every row's collectives."""
    n = len(index)
    profiles = list({id(one.profile): one.profile for one in held}.values())
    which = np.array([[p is one.profile for p in profiles].index(True) for one in held])[index]
    ends = [np.broadcast_to(values[name], n) for name in ("shard_in", "shard_out")]
    found: dict[str, Any] = {}
    for k, profile in enumerate(profiles):
        at = which == k
        for name, value in contention_values(profile.contention, *(end[at] for end in ends)).items():
            found.setdefault(name, np.zeros(n))[at] = value
    return {name: value if value.any() else 0.0 for name, value in found.items()}


def _learned(rows: Rows, parts: Sequence[_On], part: Column) -> Floats:
    """Return the learned correction of every row; a mixed cluster's plans have none."""
    found = np.ones(len(rows))
    for k, one in enumerate(parts):
        if one.profile.learned is not None and len(one.setting.cluster.members) == 1:
            at = np.flatnonzero(part == k)
            columns = {name: column[at] for name, column in rows.columns.items()}
            found[at] = factors(one.profile.learned, columns, [one.setting.plan.precision] * len(at))
    return found
