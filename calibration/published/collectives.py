"""Fits of `sim.costs.collectives` to measured all-reduces."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from calibration.contention import Together
from calibration.fit import Free, Parameters, Scores, Solution, conformal_coverage, scores, solve
from calibration.published.public import AllReduce, Public
from calibration.published.tables import FOUR_NODES
from calibration.samples import Floats
from sim.costs.algebra import Compiled, compile_expressions, symbol
from sim.costs.collectives import OPTIONAL, PARAMETERS, Group
from sim.costs.run_level import RunLevel, symbol_values
from sim.specs.catalog import device
from sim.specs.device import Device
from sim.units import MIB

EFFICIENCY = Free(0.8, 0.01, 1.5)
ALPHA = Free(3e-5, 1e-7, 5e-3)
ASSUMED_PCIE_EFFICIENCY = 0.5
FILL_FREE = {"intra_fill_s": Free(5e-5, 1e-7, 1e-2), "intra_fill_bytes": Free(2e7, 1e5, 1e9)}
INTRA_FREE = {
    "intra_efficiency_reduce": EFFICIENCY,
    "intra_alpha": ALPHA,
    "intra_alpha_rank": Free(4e-6, 1e-9, 1e-3),
    "intra_own": Free(0.2, 1e-3, 2.0),
    **FILL_FREE,
}
RING = {"in_switch_reduction": 0.0, "intra_efficiency_switch": 1.0}
"""No reduction in the switch; the share is then never used."""
SWITCH_FREE = {"intra_efficiency_switch": Free(0.6, 0.5, 1.0), "intra_alpha": ALPHA, **FILL_FREE}
"""The share stays where the switch is faster than the ring of 8 ranks: below, it would decide nothing."""
GATHER_TEXT = "gather = reduce x the ratio of all-gather to ring all-reduce on 8 H200"
BRIDGE_SESSION = "Dazz993/Mist:mist/tools/backup/results-backup-0430"
"""The session on L4 whose host copies reach what Mist's own numbers say (its other one, two thirds)."""
NO_NETWORK = {"inter_efficiency": 1.0, "inter_alpha": 0.0}


@lru_cache
def _compiled(gather: bool) -> Compiled:
    group, size = Group.named("ranks"), symbol("size_bytes")
    return compile_expressions({"seconds": group.all_gather(size) if gather else group.all_reduce(size)})


def predict(samples: AllReduce, links: Device, parameters: Parameters, gather: bool = False) -> Floats:
    """Return the seconds of the all-reduces (`gather`: all-gathers) `samples` on a device with the rates of `links`."""
    values: dict[str, Floats | float] = {
        "ranks_n": samples.n,
        "ranks_in": samples.n_in,
        "ranks_out": samples.n_out,
        "size_bytes": samples.size,
        "intra_bytes_per_s": links.intra_bytes_per_s.value,
        "inter_bytes_per_s_per_node": links.inter_bytes_per_s_per_node.value,
        "gpus_per_node": float(links.gpus_per_node),
        "ranks_over": 1.0,
        **OPTIONAL,
        **RING,
        **symbol_values(RunLevel()),  # a kernel alone: nothing of whole runs
        **parameters,
    }
    return np.asarray(_compiled(gather)(values)["seconds"], dtype=np.float64)


def subset(samples: AllReduce, mask: NDArray[np.bool_]) -> AllReduce:
    """Return the samples where `mask` is true."""
    columns = ("n", "n_in", "n_out", "size", "seconds")
    return replace(samples, **{name: getattr(samples, name)[mask] for name in columns})


def half_octaves(samples: AllReduce) -> AllReduce:
    """Return the samples nearest to a half octave of size: octaves of a linear grid then count alike."""
    sizes = np.unique(samples.size)
    wanted = sizes.min() * 2 ** (np.arange(0, 2 * np.log2(sizes.max() / sizes.min()) + 1) / 2)
    kept = {float(sizes[np.argmin(np.abs(np.log(sizes / w)))]) for w in wanted}
    return subset(samples, np.isin(samples.size, sorted(kept)))


def fit(samples: AllReduce, links: Device, free: Mapping[str, Free], fixed: Parameters) -> Solution:
    """Return the parameters of the all-reduce form that fit the samples."""
    return solve(lambda values: predict(samples, links, values), samples.seconds, free, fixed)


def leave_ranks_out(samples: AllReduce, links: Device) -> tuple[Scores, dict[int, float]]:
    """Return the errors, in all and by ranks (mape), of predicting each number of ranks from the others."""
    predicted = np.empty(len(samples))
    for n in np.unique(samples.n):
        test = samples.n == n
        found = fit(half_octaves(subset(samples, ~test)), links, INTRA_FREE, NO_NETWORK)
        predicted[test] = predict(subset(samples, test), links, found.parameters)
    error = 100 * np.abs(predicted / samples.seconds - 1)
    each = {int(n): float(error[samples.n == n].mean()) for n in np.unique(samples.n)}
    coverage = conformal_coverage(predicted, samples.seconds, samples.n.astype(np.int64))
    return scores(predicted, samples.seconds, coverage), each


def leave_sizes_out(samples: AllReduce, links: Device, free: Mapping[str, Free], fixed: Parameters) -> Scores:
    """Return the errors of predicting each sample from the others."""
    predicted, index = np.empty(len(samples)), np.arange(len(samples))
    for i in index:
        found = fit(subset(samples, index != i), links, free, fixed)
        predicted[i] = predict(subset(samples, index == i), links, found.parameters)[0]
    return scores(predicted, samples.seconds, conformal_coverage(predicted, samples.seconds, index))


@dataclass(frozen=True)
class Links:
    """Fitted collective parameters of one kind of link, and where each comes from."""

    parameters: dict[str, float]
    source: str


def fit_links(public: Public) -> dict[str, Links]:
    """Return the parameters by links: nvlink2 (V100), 3 (A100), 4 (H100, H200), 5 (B200), pcie, xgmi; L4's PCIe where
    it was measured.

    Raises:
        InputError: a kind of measurement is missing.
    """
    three, text = _nvlink3(public)
    four, four_text = _nvlink4(public, three)
    five = _nvlink5(public, four)
    inter = _fit_network(public, device("b200"), five | {"in_switch_reduction": 1.0})
    pcie = three | dict.fromkeys(("intra_efficiency_reduce", "intra_efficiency_gather"), ASSUMED_PCIE_EFFICIENCY)
    xgmi = three | {"intra_efficiency_reduce": three["intra_efficiency_gather"]}
    xgmi_text = (
        "assumed: on xGMI, which has no switch that reduces, the share of the links' rate that all-gather reaches on "
        "NVLink 3, and its start-up"
    )
    five_text = (
        "8 devices on NVLink 5: all-reduce 838 GB/s with the switch's reduction, 682 ring (a table of "
        "stas00/ml-engineering network/README.md that does not name the device; only NVLink 5 is so fast); "
        f"{GATHER_TEXT}; start-up as on H100"
    )
    pcie_text = f"assumed: {ASSUMED_PCIE_EFFICIENCY:g} of the PCIe link's rate, start-up as on A100 SXM"
    found = {
        "nvlink2": _links(three, inter, f"no V100 samples, A100 as the nearest relative: {text}"),
        "nvlink3": _links(three, inter, text),
        "nvlink4": _links(four, inter, four_text),
        "nvlink5": _links(five, inter, five_text),
        "pcie": _links(pcie, inter, pcie_text),
        "xgmi": _links(xgmi, inter, xgmi_text),
    }
    if held := _bridged(public):
        l4, l4_text = _host_bridge(held, pcie)
        found["pcie l4"] = _links(l4, inter, l4_text)
    return found


def _nvlink3(public: Public) -> tuple[dict[str, float], str]:
    ranks, links = public.all_reduce("A100"), device("a100-sxm-80gb")
    found = fit(half_octaves(ranks), links, INTRA_FREE, NO_NETWORK).parameters
    errors, each = leave_ranks_out(ranks, links)
    by_ranks = ", ".join(f"{n}: {e:.1f}" for n, e in each.items())
    text = (
        f"all-reduce of 2 - 8 A100 SXM in a node ({ranks.source}, >= 1 MiB, out of place); each number of "
        f"ranks predicted from the others: mape {errors.mape:.1f} %, median {errors.median:.1f} %, bias "
        f"{errors.bias:.1f} % (mape by ranks {by_ranks}); {GATHER_TEXT}"
    )
    ring, gather = (public.bandwidth(f"nvlink4 {name}") for name in ("all-reduce Ring", "all-gather"))
    return found | {"intra_efficiency_gather": found["intra_efficiency_reduce"] * gather / ring}, text


def _nvlink4(public: Public, three: Parameters) -> tuple[dict[str, float], str]:
    """Fit start-up and the switch's rate to H100; the rings' rates are those that 8 H200 reach on large messages."""
    samples, links = public.all_reduce("H100"), device("h100-sxm-80gb")
    ring, gather = (public.bandwidth(f"nvlink4 {name}") for name in ("all-reduce Ring", "all-gather"))
    rings = _ring_shares(links, three["intra_own"], ring, gather)
    fixed = {**NO_NETWORK, **rings, "intra_alpha_rank": 0.0, "in_switch_reduction": 1.0}
    found = fit(samples, links, SWITCH_FREE, fixed).parameters
    # Only 8 ranks were measured: their start-up is divided between the first and the others as on the A100.
    by_rank = three["intra_alpha_rank"] / three["intra_alpha"]
    first = found["intra_alpha"] / (1 + 7 * by_rank)
    errors = leave_sizes_out(samples, links, SWITCH_FREE, fixed)
    text = (
        f"all-reduce of 8 H100 with the switch's reduction ({samples.source}); each size predicted from the others: "
        f"mape {errors.mape:.1f} %, median {errors.median:.1f} % (one of the {len(samples)} rows is four times its "
        "neighbours); start-up divided over ranks as on A100; rings of 8 H200, busbw "
        f"{ring / 1e9:.0f} GB/s all-reduce, {gather / 1e9:.0f} all-gather (stas00/ml-engineering network/README.md)"
    )
    return found | {"intra_alpha": first, "intra_alpha_rank": first * by_rank}, text


def _ring_shares(links: Device, own: float, reduce: float, gather: float) -> dict[str, float]:
    """Return the parameters of rings that reach these bus bandwidths (bytes/s) with 8 ranks."""
    parts = (7 + own) / 7 / links.intra_bytes_per_s.value
    return {"intra_own": own, "intra_efficiency_reduce": reduce * parts, "intra_efficiency_gather": gather * parts}


def _nvlink5(public: Public, four: Parameters) -> dict[str, float]:
    links, over = device("b200"), four["intra_efficiency_gather"] / four["intra_efficiency_reduce"]
    ring = public.bandwidth("nvlink5 all-reduce Ring")
    # busbw is 2 (n - 1) / n of the rate at which a rank's bytes pass the switch.
    switch = public.bandwidth("nvlink5 all-reduce NVLS") * 8 / 14 / links.intra_bytes_per_s.value
    rings = _ring_shares(links, four["intra_own"], ring, ring * over)
    return {**four, **rings, "intra_efficiency_switch": switch}


BRIDGE_FREE = {
    "intra_efficiency_gather": Free(0.2, 0.01, 1.0),
    "intra_alpha": ALPHA,
    "intra_own": Free(0.5, 1e-3, 2.0),
}
REDUCE_OVER_GATHER = 1.05
"""Half of what Mist counts for an all-reduce over an all-gather: 2.1 (its `predict_gpu_gpu_comm_latency`)."""


def _bridged(public: Public) -> list[Together]:
    return [t for t in public.together if t.device == "l4" and t.session == BRIDGE_SESSION and t.n_out == 1]


def _host_bridge(held: Sequence[Together], pcie: Parameters) -> tuple[dict[str, float], str]:
    """Fit all-gathers over PCIe bridges of the host (no peer-to-peer): those of Mist's benchmark that run alone."""
    alone = [(t.amount[:, 1] > 0) & (t.amount[:, (0, 2, 3)].sum(axis=1) == 0) for t in held]
    n = np.concatenate([np.full(int(a.sum()), float(t.n_in)) for t, a in zip(held, alone, strict=True)])
    size = MIB * np.concatenate([t.amount[a, 1] for t, a in zip(held, alone, strict=True)])
    seconds = np.concatenate([t.seconds[a] for t, a in zip(held, alone, strict=True)])
    source = held[0].source.rpartition("/")[0]
    samples = AllReduce("l4", n, n, np.ones(len(n)), size, seconds, source)
    links, known = device("l4"), {**pcie, "intra_alpha_rank": 0.0, "intra_fill_s": 0.0, "intra_fill_bytes": 1.0}
    fixed = NO_NETWORK | {name: value for name, value in known.items() if name not in BRIDGE_FREE}
    found = solve(lambda values: predict(samples, links, values, gather=True), seconds, BRIDGE_FREE, fixed).parameters
    error = 100 * float(np.mean(np.abs(predict(samples, links, found, gather=True) / seconds - 1)))
    text = (
        f"all-gather of 2, 4 and 8 L4 over PCIe and the host ({source}, those that run alone; mape of the fit "
        f"{error:.1f} %); all-reduce: 2.1 times an all-gather (Mist's own factor)"
    )
    kept = {name: value for name, value in found.items() if name not in NO_NETWORK}
    return kept | {"intra_efficiency_reduce": found["intra_efficiency_gather"] / REDUCE_OVER_GATHER}, text


def _fit_network(public: Public, links: Device, inside: Parameters) -> dict[str, float]:
    """Fit the network terms to 4 nodes of 8 (400 GB/s a node), from 1 MiB: below, times are erratic."""
    samples = public.all_reduce(FOUR_NODES)
    samples = subset(samples, samples.size >= MIB)
    free = {"inter_efficiency": EFFICIENCY, "inter_alpha": ALPHA}
    fixed = {k: v for k, v in inside.items() if k not in free}
    found = fit(samples, links, free, fixed).parameters
    return {name: found[name] for name in free}


def _links(inside: Parameters, inter: Parameters, source: str) -> Links:
    found = {**inside, **inter}
    network = "all-reduce over 4 nodes of 8 devices, 8 x 400 Gb/s (stas00/ml-engineering network/README.md)"
    held = {name: found[name] for name in (*PARAMETERS, *OPTIONAL) if name in found}
    return Links(held, f"{source}. Between nodes: {network}.")
