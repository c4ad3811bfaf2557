"""Communicators of a mesh against the same groups enumerated rank by rank."""

from itertools import product
from typing import get_args

import numpy as np
import pytest

from sim.costs.mesh import Mesh, group_values
from sim.specs.plan import RankOrder

DOMAIN, LEAF = 8, 16


def enumerated(order, sizes, ep, etp, shard):
    """Return every communicator's groups, one row a group."""
    axes = order.split("-")
    ids = np.arange(np.prod(list(sizes.values()))).reshape([sizes[a] for a in reversed(axes)])
    at = {a: len(axes) - 1 - i for i, a in enumerate(axes)}
    stage = np.moveaxis(ids, at["pp"], 0).reshape(sizes["pp"], -1, ep, etp)
    outer, inner = sorted(("cp", "dp"), key=at.get)
    data = np.moveaxis(ids, (at[outer], at[inner]), (-2, -1)).reshape(-1, sizes["cp"] * sizes["dp"])
    copies = data.reshape(len(data), -1, shard or data.shape[1])
    experts = np.moveaxis(stage, 1, -1).reshape(-1, stage.shape[1])
    parts = experts.reshape(len(experts), -1, max(1, copies.shape[2] * sizes["tp"] // (ep * etp)))
    return {
        **{a: np.moveaxis(ids, at[a], -1).reshape(-1, sizes[a]) for a in ("tp", "cp", "pp")},
        "dp": data,
        "shard": copies.reshape(-1, copies.shape[2]),
        "replica": np.moveaxis(copies, 1, -1).reshape(-1, copies.shape[1]),
        "etp": stage.reshape(-1, etp),
        "ep": np.moveaxis(stage, 2, -1).reshape(-1, ep),
        "edp": experts,
        "expert_shard": parts.reshape(-1, parts.shape[2]),
        "expert_replica": np.moveaxis(parts, 1, -1).reshape(-1, parts.shape[1]),
    }


@pytest.mark.slow
@pytest.mark.parametrize("order", get_args(RankOrder))
def test_shapes_are_those_of_the_enumerated_groups(order):
    checked = 0
    for tp, cp, dp, pp in product((1, 2, 4), (1, 2, 4), (1, 2, 8), (1, 2, 4)):
        sizes = {"tp": tp, "cp": cp, "dp": dp, "pp": pp}
        for ep, etp, shard in ((1, 1, 0), (2, 1, 2), (4, 2, 2), (8, 1, 4)):
            if tp * cp * dp % (ep * etp) or (shard and cp * dp % shard):
                continue
            wires = {"domain": min(DOMAIN, tp * cp * dp * pp), "leaf_gpus": LEAF, "oversubscription": 2.0}
            values = group_values(Mesh(order, sizes, ep, etp, shard), wires)
            for name, groups in enumerated(order, sizes, ep, etp, shard).items():
                inside = min(np.unique(row // DOMAIN, return_counts=True)[1].min() for row in groups)
                far = len(groups[0]) > 1 and any(np.ptp(row // LEAF) for row in groups)
                assert values[f"{name}_n"] == groups.shape[1]
                assert values[f"{name}_in"] == inside, (name, sizes, ep, etp, shard)
                assert (values[f"{name}_over"] == 2.0) == far, (name, sizes, ep, etp, shard)
                checked += 1
    assert checked > 500
