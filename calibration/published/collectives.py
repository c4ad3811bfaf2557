"""Fits of `sim.costs.collectives` to measured all-reduces."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from calibration.fit import Free, Parameters, Scores, Solution, conformal_coverage, scores, solve
from calibration.published.tables import FOUR_NODES, AllReduce, Public
from calibration.samples import Floats
from sim.costs.algebra import Compiled, compile_expressions, symbol
from sim.costs.collectives import PARAMETERS, Group
from sim.costs.run_level import RunLevel, symbol_values
from sim.specs.catalog import device
from sim.specs.device import Device

EFFICIENCY = Free(0.8, 0.01, 1.5)
ALPHA = Free(3e-5, 1e-7, 5e-3)
MIB = 2**20
ASSUMED_PCIE_EFFICIENCY = 0.5
INTRA_FREE = {
    "intra_efficiency_reduce": EFFICIENCY,
    "intra_alpha": ALPHA,
    "intra_alpha_rank": Free(4e-6, 1e-9, 1e-3),
}
GATHER_TEXT = "gather = reduce x the ratio of all-gather to ring all-reduce on 8 H200"
NO_NETWORK = {"inter_efficiency": 1.0, "inter_alpha": 0.0}


@lru_cache
def _compiled() -> Compiled:
    return compile_expressions({"seconds": Group.named("ranks").all_reduce(symbol("size_bytes"))})


def predict(samples: AllReduce, links: Device, parameters: Parameters) -> Floats:
    """Return the seconds of the all-reduces `samples` on a device with the link rates of `links`."""
    values: dict[str, Floats | float] = {
        "ranks_n": samples.n,
        "ranks_in": samples.n_in,
        "ranks_out": samples.n_out,
        "size_bytes": samples.size,
        "intra_bytes_per_s": links.intra_bytes_per_s.value,
        "inter_bytes_per_s_per_node": links.inter_bytes_per_s_per_node.value,
        "gpus_per_node": float(links.gpus_per_node),
        "ranks_over": 1.0,
        **symbol_values(RunLevel()),  # a kernel alone: nothing of whole runs
        **parameters,
    }
    return np.asarray(_compiled()(values)["seconds"], dtype=np.float64)


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


@dataclass(frozen=True)
class Links:
    """Fitted collective parameters of one kind of link, and where each comes from."""

    parameters: dict[str, float]
    source: str


def fit_links(public: Public) -> dict[str, Links]:
    """Return the parameters by links: nvlink2 (V100), 3 (A100), 4 (H100, H200), 5 (B200), pcie, xgmi."""
    three, text = _nvlink3(public)
    four, five = _nvlink4(public, three), _nvlink5(public)
    inside5 = {k: four[k] for k in four if "alpha" in k} | five
    inter = _fit_network(public, device("b200"), inside5)
    pcie = three | dict.fromkeys(("intra_efficiency_reduce", "intra_efficiency_gather"), ASSUMED_PCIE_EFFICIENCY)
    xgmi = three | {"intra_efficiency_reduce": three["intra_efficiency_gather"]}
    xgmi_text = (
        "assumed: on xGMI, which has no switch that reduces, the share of the links' rate that all-gather reaches on "
        "NVLink 3, and its start-up"
    )
    four_text = (
        f"all-reduce of 8 H100 with the switch's reduction ({public.all_reduce('H100').source}), start-up "
        "divided over ranks as on A100; all-gather of 8 H200, 361 GB/s busbw "
        "(stas00/ml-engineering network/README.md)"
    )
    five_text = (
        "8 devices on NVLink 5: all-reduce 838 GB/s with the switch's reduction, 682 ring (a table of "
        "stas00/ml-engineering network/README.md that does not name the device; only NVLink 5 is so fast); "
        f"{GATHER_TEXT}; start-up as on H100"
    )
    pcie_text = f"assumed: {ASSUMED_PCIE_EFFICIENCY:g} of the PCIe link's rate, start-up as on A100 SXM"
    return {
        "nvlink2": _links(three, inter, f"no V100 samples, A100 as the nearest relative: {text}"),
        "nvlink3": _links(three, inter, text),
        "nvlink4": _links(four, inter, four_text),
        "nvlink5": _links(inside5, inter, five_text),
        "pcie": _links(pcie, inter, pcie_text),
        "xgmi": _links(xgmi, inter, xgmi_text),
    }


def _gather_over_ring(public: Public) -> float:
    return public.bandwidth("nvlink4 all-gather") / public.bandwidth("nvlink4 all-reduce Ring")


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
    gather = found["intra_efficiency_reduce"] * _gather_over_ring(public)
    return found | {"intra_efficiency_gather": gather}, text


def _nvlink4(public: Public, three: Parameters) -> dict[str, float]:
    links = device("h100-sxm-80gb")
    free = {"intra_efficiency_reduce": EFFICIENCY, "intra_alpha": ALPHA}
    found = fit(public.all_reduce("H100"), links, free, {**NO_NETWORK, "intra_alpha_rank": 0.0}).parameters
    # Only 8 ranks were measured: their start-up is divided between the first and the others as on the A100.
    by_rank = three["intra_alpha_rank"] / three["intra_alpha"]
    first = found["intra_alpha"] / (1 + 7 * by_rank)
    gather = public.bandwidth("nvlink4 all-gather") / links.intra_bytes_per_s.value
    return found | {
        "intra_alpha": first,
        "intra_alpha_rank": first * by_rank,
        "intra_efficiency_gather": gather,
    }


def _nvlink5(public: Public) -> dict[str, float]:
    rate = device("b200").intra_bytes_per_s.value
    return {
        "intra_efficiency_reduce": public.bandwidth("nvlink5 all-reduce NVLS") / rate,
        "intra_efficiency_gather": public.bandwidth("nvlink5 all-reduce Ring") / rate * _gather_over_ring(public),
    }


def _fit_network(public: Public, links: Device, inside: Parameters) -> dict[str, float]:
    """Fit the network terms to 4 nodes of 8 (400 GB/s a node), from 1 MiB: below, times are erratic."""
    samples = public.all_reduce(FOUR_NODES)
    samples = subset(samples, samples.size >= MIB)
    free = {"inter_efficiency": EFFICIENCY, "inter_alpha": ALPHA}
    fixed = {k: v for k, v in inside.items() if k.startswith("intra_")}
    found = fit(samples, links, free, fixed).parameters
    return {name: found[name] for name in free}


def _links(inside: Parameters, inter: Parameters, source: str) -> Links:
    found = {**inside, **inter}
    network = "all-reduce over 4 nodes of 8 devices, 8 x 400 Gb/s (stas00/ml-engineering network/README.md)"
    return Links({name: found[name] for name in PARAMETERS}, f"{source}. Between nodes: {network}.")
