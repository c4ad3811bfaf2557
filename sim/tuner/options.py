"""Options of a stage: every combination of degrees and memory techniques, evaluated by the compiled stage model.

Intra-stage tuning of Mist (arXiv 2503.19050, section 5), on the four times of `solvers.chain.Cell`.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.costs import inputs
from sim.costs.contention import contention_values
from sim.costs.layers.structure import Structure
from sim.costs.profile import load_profile
from sim.engine.closed_form import PLACES, stage_form
from sim.engine.step import most_allocated
from sim.specs import Cluster, Model, Offload, Plan, StagePlan
from sim.specs.plan import RECOMPUTE
from sim.specs.rules import shards
from sim.tuner.score import mesh_values, scalars
from sim.tuner.solvers.chain import Floats, Ints

OFFLOADED = tuple(f.name for f in fields(Offload))
IMBALANCE = 2.0
"""By what factor a stage's layers and devices may differ from an equal share, where its degrees are free and nothing
else is asked for."""

IN_PROPORTION = {"optimizer", "activations"}
"""Of these alone a larger share on the host never takes more room: that for copies is in proportion to what has left.
Beside weights or gradients an update's pieces are not, where a stage has fewer than three layers."""

BLOCK = 131_072
"""Options evaluated at once where something is offloaded: enough that Python's own work for each block counts little,
and few enough that blocks of all cores together take less than 2 GB."""


@dataclass(frozen=True)
class Techniques:
    """Values that every stage may take, whatever the others take; `offload`: shares of each of `OFFLOADED`.

    recompute_layers: how many layers of a stage recompute, 0 for all of them; any number where it is left out, and of
    micro_batch what the samples of a microbatch make it.
    """

    tp: tuple[int, ...]
    zero: tuple[int, ...]
    recompute: tuple[str, ...]
    recompute_layers: tuple[int, ...] = ()
    offload: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    micro_batch: tuple[int, ...] = ()

    @property
    def offloads(self) -> int:
        """Combinations of shares on the host, without that of none."""
        return int(np.prod([len(each) for each in self.shares])) - self.may_stay

    @property
    def moves(self) -> bool:
        """Whether anything may be on the host."""
        return any(each.max() > 0 for each in self.shares)

    @property
    def may_stay(self) -> bool:
        """Whether all of it may stay on the device."""
        return all(each.min() == 0 for each in self.shares)

    @property
    def shares(self) -> list[Floats]:
        """The shares on the host of each of `OFFLOADED`."""
        return [np.array(self.offload.get(name, (0.0,))) for name in OFFLOADED]


@dataclass(frozen=True)
class Question:
    """What the stages of a pipeline have in common: their number, samples per microbatch and the settings kept.

    tp: of every stage, on as many devices each; None leaves both to the stages. alike: stages differ in their layers
    alone. imbalance: layers and devices of a stage are within this factor of an equal share.
    """

    model: Model
    cluster: Cluster
    global_batch: int
    stages: int
    samples: int
    cp: int = 1
    ep: int = 1
    tp: int | None = None
    alike: bool = False
    kept: tuple[tuple[str, Any], ...] = ()
    imbalance: float = IMBALANCE

    @property
    def microbatches(self) -> int:
        """Microbatches of a step."""
        return self.global_batch // self.samples


@dataclass(frozen=True, eq=False)
class Table:
    """Options of one device type at one number of stages and samples per microbatch, flat.

    tp, dp, layers, micro_batch, zero, recompute (index into `RECOMPUTE`), again (layers that recompute), share
    [option, what is offloaded]; t, x, d, o [place, crossing, option] in seconds and alive [place, option]: how many
    microbatches may be under way so that memory lasts (negative: not even none). tied [option]: the part of d that the
    exchange of a tied table takes, as far as it is this end's own; it takes as long as the slower of both ends.
    """

    columns: Mapping[str, Ints]
    share: Floats
    t: Floats
    x: Floats
    d: Floats
    o: Floats
    alive: Floats
    tied: Floats

    def stage(self, option: int) -> StagePlan:
        """Return the stage that an option describes."""
        own: dict[str, Any] = {name: int(column[option]) for name, column in self.columns.items()}
        del own["gpus"]
        again, own["recompute"] = own.pop("again"), RECOMPUTE[own["recompute"]]
        if 0 < again < own["layers"]:
            own["recompute_layers"] = again
        return StagePlan(**own, offload=Offload(**dict(zip(OFFLOADED, self.share[option].tolist(), strict=True))))


PLACE = {"first": 0, "middle": 1, "last": 2, "only": 0}
"""Rows of `Table.t`: alone a stage stands where the first does."""


@dataclass(frozen=True, eq=False)
class Grid:
    """The axes of a table: rows (tp, dp, micro-batch), layers, ZeRO stage, recompute kind with its number of layers,
    and whether the message to the next stage leaves the fast domain."""

    asked: Question
    member: Cluster
    rows: Mapping[str, Ints]
    layers: Ints
    techniques: Techniques

    def table(self) -> Table:
        """Return all options without offload."""
        kind, counts = self._again()
        again = np.where((counts == 0) & (kind > 0), self.layers[:, None], counts)
        again[self.layers == 0] = 0
        once = np.arange(len(kind)) == 0  # without layers all kinds are the same
        axes = {
            "row": np.arange(len(self.rows["tp"]))[:, None, None, None],
            "layers": self.layers[None, :, None, None],
            "zero": np.array(self.techniques.zero, dtype=np.int64)[None, None, :, None],
            "kind": kind[None, None, None, :],
            "again": again[None, :, None, :],
        }
        shape = np.broadcast_shapes(*(a.shape for a in axes.values()))
        legal = (axes["again"] <= axes["layers"]) & (once | (axes["layers"] > 0))
        legal = legal & (self._sharded()[axes["row"]] | (axes["zero"] == 0) | (0 not in self.techniques.zero))
        none = np.zeros((int(np.prod(shape)), len(OFFLOADED)))
        return self._flat(axes, shape, self._evaluated(axes), none, np.broadcast_to(legal, shape).ravel())

    def offloaded(self, table: Table, of: NDArray[np.bool_], slowest: float) -> list[Table]:
        """Return the options `of` a table with every combination of shares kept on the host, block by block.

        slowest: t above which an option is of no use.
        """
        shares, picked = self.techniques.shares, np.flatnonzero(of)
        combined = tuple(len(each) for each in shares)
        step = max(1, BLOCK // int(np.prod(combined)))

        def block(first: int) -> Table:
            ids = picked[first : first + step]
            axes = self._axes_of(table, ids)
            out = self._evaluated(axes, shares)
            every = np.stack(np.meshgrid(*shares, indexing="ij"), axis=-1).reshape(-1, len(shares))
            some = np.tile(every.any(axis=1), len(ids))  # without any it is the table's own
            return self._flat(axes, (len(ids), *combined), out, np.tile(every, (len(ids), 1)), some, slowest)

        stage_form(Structure.of(self.asked.model), True)  # compiled once, before the threads ask for it
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            if {name for name, each in zip(OFFLOADED, shares, strict=True) if each.max() > 0} <= IN_PROPORTION:
                parts = (picked[first : first + BLOCK] for first in range(0, len(picked), BLOCK))
                picked = np.concatenate([picked[:0], *threads.map(lambda ids: self._may_fit(table, ids), parts)])
            return list(threads.map(block, range(0, len(picked), step)))

    def _may_fit(self, table: Table, ids: Ints) -> Ints:
        """Return which of these options fit at some place with the most on the host: of what is `IN_PROPORTION`."""
        out = self._evaluated(self._axes_of(table, ids), [each.max(keepdims=True) for each in self.techniques.shares])
        shape = (2, 1, len(ids), *[1] * len(OFFLOADED))
        least: Floats = np.min([np.broadcast_to(out[f"peak_{at}"], shape)[1].ravel() for at in self._places], axis=0)
        fits = least <= most_allocated(load_profile(self.member.profile), self.member) * (1 + 1e-9)
        return np.asarray(ids[fits])

    def _axes_of(self, table: Table, ids: Ints) -> dict[str, Ints]:
        """Return the axes of options of a table, [option, 1 for what each share is of]."""
        at = (len(ids), *[1] * len(OFFLOADED))
        axes = {name: table.columns[name][ids].reshape(at) for name in ("layers", "zero", "again")}
        return axes | {"row": self._row_of(table, ids).reshape(at), "kind": table.columns["recompute"][ids].reshape(at)}

    @property
    def _places(self) -> Sequence[str]:
        return ("only",) if self.asked.stages == 1 else PLACES[:3]

    def _sharded(self) -> NDArray[np.bool_]:
        """Return in which rows ZeRO is not the same as ZeRO-0."""
        asked, rows = self.asked, self.rows
        etp = dict(asked.kept).get("etp", 1)
        return np.asarray(shards(asked.model, rows["dp"] * asked.cp, rows["tp"], asked.ep * etp))

    def _row_of(self, table: Table, ids: Ints) -> Ints:
        key = {tuple(each): i for i, each in enumerate(zip(*(self.rows[n].tolist() for n in ROW), strict=True))}
        return np.array([key[tuple(each)] for each in zip(*(table.columns[n][ids].tolist() for n in ROW), strict=True)])

    def _again(self) -> tuple[Ints, Ints]:
        """Return every kind of recompute with every number of layers that repeat."""
        most = int(self.layers.max(initial=0))
        counts = self.techniques.recompute_layers or range(1, most + 1)
        codes = [RECOMPUTE.index(name) for name in self.techniques.recompute]
        pairs = [(0, 0)] * (0 in codes) + [(code, n) for code in codes if code for n in counts]
        kind, again = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        return kind, again

    def _evaluated(self, axes: Mapping[str, Ints], shares: Sequence[Floats] | None = None) -> dict[str, Any]:
        """Return the outputs of `stage_form`, [in flight 0 or 1, crossing, *axes]."""
        asked, row = self.asked, axes["row"]
        plain = {name: self.rows[name][row].astype(float) for name in ("tp", "dp", "micro_batch")}
        degrees = {"cp": float(asked.cp), "ep": float(asked.ep), "pp": float(asked.stages)}
        kept = dict(asked.kept)
        profile = load_profile(self.member.profile, kept.get("product_kernel"))
        values: dict[str, Any] = scalars(asked.model, self.member, profile, asked.global_batch, kept)
        laid_out = mesh_values(kept, plain | degrees, 0, values)
        share = axes["again"] / np.maximum(1, axes["layers"])
        values |= plain | degrees | laid_out | inputs.switch_values(axes["zero"], axes["kind"], plain["tp"] > 1, share)
        n = len(asked.model.blocks)
        parts = np.array([values[f"kind_layers_{k}"] for k in range(n)]) / asked.model.layers
        for k in range(n):
            values[f"layers_{k}"] = values[f"rank_layers_{k}"] = axes["layers"] * parts[k]
        values["blocks_beside_head"] = np.minimum(1.0, axes["layers"])
        dims = (1,) * row.ndim
        crossing = np.array([0.0, 1.0]).reshape(1, 2, *dims) * (asked.stages > 1)
        values |= {
            "virtual_stages": 1.0, "microbatches": float(asked.microbatches), "microbatch_group_size": 1.0,
            "in_flight": np.array([0.0, 1.0]).reshape(2, 1, *dims),
            "ends_inter": crossing, "pp_inter": crossing, "pp_inter_out": crossing,
        }  # fmt: skip
        if shares is not None:
            for i, (name, each) in enumerate(zip(OFFLOADED, shares, strict=True)):
                values[f"offload_{name}"] = each.reshape([-1 if k == i else 1 for k in range(len(shares))])
            values |= inputs.copy_values(Plan(global_batch=asked.global_batch, **kept), self.member)
        values |= contention_values(profile.contention, laid_out["shard_in"], laid_out["shard_out"])
        values |= inputs.rank_values(values)
        return stage_form(Structure.of(asked.model), shares is not None)(values)

    def _flat(
        self,
        axes: Mapping[str, Ints],
        shape: tuple[int, ...],
        out: Mapping[str, Any],
        share: Floats,
        some: Any,
        slowest: float = np.inf,
    ) -> Table:
        """Return a flat table from outputs [in flight, crossing, *shape]; `some` of the flat options are legal.

        Those that offload are left out where no place has room for them, all take `slowest` seconds, or a smaller
        share would do.
        """
        places, out = self._places, self._times(out, axes)
        most = most_allocated(load_profile(self.member.profile), self.member)

        def flat(value: Any) -> Any:
            return np.broadcast_to(value, shape).reshape(-1)

        alive = []
        for place in places:
            peak = np.broadcast_to(out[f"peak_{place}"], (2, 1, *shape))[:, 0]
            alive.append(np.floor((most - peak[0]) / np.maximum(peak[1] - peak[0], 1e-9)).reshape(-1))
        room = np.stack(alive)
        if share.any():
            quick = np.min([flat(out[f"t_{place}"].min(axis=(0, 1))) for place in places], axis=0)
            some = some & (room.max(axis=0) >= 1) & (quick < slowest)
            under_way = np.clip(room, 0, min(self.asked.microbatches, self.asked.stages)).reshape(-1, *shape)
            times = [np.asarray(out[f"{name}_{place}"]) for name in "txdo" for place in places]
            some = some & ~_needless(under_way, times, len(OFFLOADED)).ravel()
        keep = np.flatnonzero(some)

        def seconds(name: str) -> Floats:
            both = [np.broadcast_to(out[f"{name}_{place}"], (1, 2, *shape))[0] for place in places]
            return np.stack([[flat(one)[keep] for one in each] for each in both])

        columns = {name: self.rows[name][flat(axes["row"])[keep]] for name in ROW}
        columns |= {name: flat(axes[name])[keep] for name in ("layers", "zero", "again")}
        columns["recompute"] = flat(axes["kind"])[keep]
        t, x, d, o = (seconds(name) for name in "txdo")
        tied = flat(np.broadcast_to(out["own_tied"], (1, 1, *shape))[0, 0])[keep]
        return Table(columns, share[keep], t, x, d, o, room[:, keep], tied)

    def _times(self, out: Mapping[str, Any], axes: Mapping[str, Ints]) -> dict[str, Any]:
        """Return t, x, d and o by place, [in flight, crossing, *axes], beside the outputs.

        Where no rank sets the pace, a round trip over neighbouring stages does, shared by as many microbatches: the
        least over this one and the next, the longest over all. Of the others' times this stage knows that they have
        the mean number of layers for their devices, and that a slower one sees to its own pace; without layers itself
        it knows nothing. The two ends share a tied table, wherever the neighbours are; of the other's time it knows
        nothing.
        """
        asked, stages = self.asked, self.asked.stages
        across = -(-asked.cluster.gpus // inputs.domain(asked.cluster)) - 1
        near, far = _crossing(out["message"], 0), _crossing(out["message"], 1)
        mean = (near * max(0, stages - 1 - across) + far * min(stages - 1, across)) / stages
        equal = asked.model.layers / asked.cluster.gpus * self.rows["gpus"][axes["row"]]
        others = np.where(axes["layers"] > 0, np.minimum(1.0, equal / np.maximum(1, axes["layers"])), 0.0)
        kept = dict(self.asked.kept)
        waits = bool(Plan(global_batch=self.asked.global_batch, **kept).suited(self.member).optimizer_barrier)
        both = _crossing(out["tied"], int(across > 0))
        found: dict[str, Any] = {"own_tied": both if stages > 1 else 0.0}
        for place in PLACES:
            own, through = out[f"own_{place}"], out[f"through_{place}"]
            ends, update = place in ("last", "only"), out[f"o_{place}"]
            pair = through * (1 + others) / 2 + out["message"] / 2
            trip = through * (1 + others * (stages - 1)) / stages + mean
            tied = both if place in ("first", "last") else 0.0
            found |= {
                f"t_{place}": own if ends else np.maximum(own, np.maximum(pair, trip)),
                f"x_{place}": through + out[f"slowed_{place}"] + (0 if ends else out["message"]),
                f"d_{place}": out[f"d_{place}"] + tied + (0 if waits else update),
                f"o_{place}": update if waits else 0.0,
            }
        return {**out, **found}


def _crossing(value: Any, crosses: int) -> Any:
    """Return an output [in flight, crossing, ...] where a message crosses, or where it does not."""
    every = np.asarray(value)
    return every[:, crosses : crosses + 1] if every.ndim > 1 and every.shape[1] > 1 else every


def _needless(room: Floats, times: Sequence[Floats], shares: int) -> NDArray[np.bool_]:
    """Return which options are no better than the one with the next smaller share of something.

    room [place, *options], times [.., .., *options] where they vary; the last axes of the options are the shares.
    """
    found = np.zeros(room.shape[1:], dtype=bool)
    for axis in range(-shares, 0):
        less, more = ((..., part, *[slice(None)] * (-1 - axis)) for part in (slice(None, -1), slice(1, None)))
        worse = (room[less] >= room[more]).all(axis=0)
        for each in times:
            if each.ndim and each.shape[axis] > 1:
                worse = worse & (each[less] <= each[more]).all(axis=(0, 1))
        found[more] |= worse
    return found


def per_layer(table: Table, name: str) -> float:
    """Return the least t or x of any option with layers at any place for each of its layers, in seconds."""
    layers = table.columns["layers"]
    some = layers > 0
    each = getattr(table, name)[..., some].min(axis=(0, 1), initial=np.inf) / layers[some]
    return float(each.min(initial=np.inf))


ROW = ("gpus", "tp", "dp", "micro_batch")


def joined(tables: Sequence[Table]) -> Table:
    """Return the options of all tables as one."""
    columns = {name: np.concatenate([t.columns[name] for t in tables]) for name in tables[0].columns}
    times = (
        np.concatenate([getattr(x, name) for x in tables], axis=-1) for name in ("t", "x", "d", "o", "alive", "tied")
    )
    return Table(columns, np.concatenate([x.share for x in tables]), *times)
