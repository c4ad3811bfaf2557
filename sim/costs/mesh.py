"""Which ranks a communicator has, and how many of them share a fast domain."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sim.specs.plan import PlacedPlan


@dataclass(frozen=True)
class Mesh:
    """How ranks are laid out: sizes of the axes (tp, cp, dp, pp), experts' degrees, ranks of a ZeRO copy (0: all).

    Numbers, or columns of one shape; `order` names the axes, innermost first.
    """

    order: str
    sizes: Mapping[str, Any]
    ep: Any = 1
    etp: Any = 1
    shard: Any = 0

    def groups(self) -> dict[str, tuple["Line", ...]]:
        """Return every communicator as one or two lines of ranks, the nearer neighbours first."""
        size = {k: _whole(v) for k, v in self.sizes.items()}
        stride: dict[str, Any] = {}
        inner: Any = np.int64(1)
        for axis in self.order.split("-"):
            stride[axis], inner = inner, inner * size[axis]
        ep, etp, ranks = _whole(self.ep), _whole(self.etp), size["dp"] * size["cp"]
        shard = np.where(_whole(self.shard) > 0, self.shard, ranks).astype(np.int64)
        edp, copy = (np.maximum(1, n * size["tp"] // (ep * etp)) for n in (ranks, shard))
        copy = np.gcd(edp, copy)
        first, between = self._data_axes()
        lowest = stride[first]
        stage = "" if self.order.endswith("pp") else "pp"

        def line(n: Any, step: Any, other: str) -> tuple[Line, ...]:
            return _broken(n, step, stride[other], size[other]) if other else (Line(n, step),)

        return {
            **{axis: (Line(size[axis], stride[axis]),) for axis in ("tp", "cp", "pp")},
            "dp": line(ranks, lowest, between),
            "shard": line(shard, lowest, between),
            "replica": line(ranks // shard, lowest * shard, between),
            "etp": line(etp, np.int64(1), stage),
            "ep": line(ep, etp, stage),
            "edp": line(edp, etp * ep, stage),
            "expert_shard": line(copy, etp * ep, stage),
            "expert_replica": line(edp // copy, etp * ep * copy, stage),
        }

    def _data_axes(self) -> tuple[str, str]:
        """Return the inner one of cp and dp, and the axis between them or ""."""
        axes = self.order.split("-")
        low, high = sorted(axes.index(a) for a in ("cp", "dp"))
        return axes[low], "".join(axes[low + 1 : high])


class Line(NamedTuple):
    """Ranks at equal distances."""

    n: Any
    step: Any


def _broken(n: Any, step: Any, at: Any, times: Any) -> tuple[Line, Line]:
    """Return `n` ranks at distance `step` where another axis of `times` ranks takes the places from `at` on."""
    near = np.where(step < at, np.gcd(n, np.maximum(1, at // step)), 1)
    rest = n // near
    return Line(near, step), Line(rest, np.where(step < at, at, step) * times)


def _whole(value: Any) -> Any:
    return np.asarray(value).astype(np.int64)


def group_values(mesh: Mesh, wires: Mapping[str, Any]) -> dict[str, Any]:
    """Return the communicator shapes of a mesh; `wires` holds domain, leaf_gpus and oversubscription.

    A group that does not divide its domain straddles domains: the greatest common divisor is the part that every
    group surely has in one. A group that reaches beyond one leaf switch pays the fabric's oversubscription. Of the
    messages between neighbours on a pipeline, `pp_inter` is the share that leaves the domain.
    """
    domain = _whole(wires["domain"])
    values: dict[str, Any] = {}
    n: Any
    inside: Any
    span: Any
    for name, lines in mesh.groups().items():
        n = inside = span = np.int64(1)
        for line in lines:
            whole = inside == n  # what already left the domain has no further ranks in it
            part = np.where(domain % line.step == 0, np.gcd(line.n, np.maximum(1, domain // line.step)), 1)
            inside, n = inside * np.where(whole, part, 1), n * line.n
            span = np.where(line.n > 1, line.n * line.step, span)
        over = np.where(span > wires["leaf_gpus"], wires["oversubscription"], 1.0)
        values |= {f"{name}_n": n, f"{name}_in": inside, f"{name}_out": -(-n // inside), f"{name}_over": over}
        if name == "pp":
            apart = np.where(span > domain, 1.0, 0.0)  # the first rank from the last
            crossing = apart * (values["pp_out"] - 1) / np.maximum(1, n - 1)
            values |= {"ends_inter": apart, "pp_inter": crossing, "pp_inter_out": crossing}
    return values | {"dp_apart": _apart(values)}


def _apart(groups: Mapping[str, Any]) -> Any:
    """Return 1 where data-parallel collectives and those that a pass waits for cross different links, 0 where they
    share them: those inside a node, or those between nodes."""
    beside, inner = (sum(groups[f"{name}_out"] > 1 for name in some) > 0 for some in (BESIDE, INNER))
    return 1.0 * (beside != inner)


BESIDE, INNER = ("dp", "shard", "replica"), ("tp", "cp", "ep")
"""Communicators whose collectives run beside compute, and of those that a pass waits for."""


def hops(placed: PlacedPlan, groups: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether messages into every chunk and out of it leave the fast domain, where some do and some do not.

    Those of a boundary do where those of any copy of the model do; nothing enters the first chunk or leaves the last.
    """
    if groups["pp_inter"] in (0, 1):
        return {}
    domains = np.reshape(placed.plan.rank_of, (-1, placed.stages)) // int(groups["pp_in"])
    crossed = (domains[:, 1:] != domains[:, :-1]).any(axis=0).astype(float)
    return {"pp_inter": np.append(crossed[0], crossed), "pp_inter_out": np.append(crossed, crossed[-1])}


def twins(groups: dict[str, Any], copies: int) -> dict[str, Any]:
    """Return the communicator shapes where `copies` of the model share gradients: the ranks of a chunk and of its
    twin on another pipeline rank."""
    if copies == 1:
        return groups
    tier = "out" if bool(groups["ends_inter"]) else "in"
    grown = {f"{name}_{part}" for name in ("dp", "shard", "edp", "expert_shard") for part in ("n", tier)}
    more = {name: value * copies if name in grown else value for name, value in groups.items()}
    return more | {"dp_apart": _apart(more)}
