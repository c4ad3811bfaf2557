"""Measured collectives of the user's own machine, and the collective parameters of a profile that fit them.

On a CPU: processes of one thread each over gloo on the loopback interface. On CUDA devices: NCCL, one process a
device. The processes are started afresh, end by themselves, and are killed when they take longer than they may.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch

from calibration.execute.processes import ExecutionError, run_processes
from calibration.fit import Free, Scores, Solution, conformal_coverage, scores, solve
from calibration.rank import Request
from calibration.samples import Floats
from sim.costs.algebra import Compiled, compile_expressions, symbol
from sim.costs.collectives import OPTIONAL, PARAMETERS, Group, send
from sim.costs.run_level import RunLevel, symbol_values
from sim.specs.fields import InputError

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "p2p")
FITTED = OPERATIONS[:3]
SIZES = tuple(4**k for k in range(5, 13))
"""1 KiB to 16 MiB."""
STARTUP_S = 60.0
"""Importing torch and meeting takes this long at most."""
COMMAND = (sys.executable, "-m", "calibration.rank")
QUANTILE = {"gloo": 0.0, "nccl": 0.5}
"""Quantile of the samples: the minimum on a CPU, where whatever else runs only adds; the median on devices."""
REPEATS = {"gloo": 25, "nccl": 20}


@dataclass(frozen=True)
class Measured:
    """Seconds of one collective of `size` bytes over `n` ranks of one node: of every sample, and what is kept of them.

    error: largest relative error of its result.
    """

    operation: str
    n: int
    size: int
    backend: str
    seconds: tuple[float, ...]
    calls: int
    error: float

    @property
    def t_s(self) -> float:
        """The quantile in `QUANTILE`."""
        return float(np.quantile(self.seconds, QUANTILE[self.backend]))

    @property
    def row(self) -> dict[str, Any]:
        """The columns of `samples.parquet` that belong to the case and its times."""
        shape = {"n": self.n, "n_in": self.n, "size": self.size}
        low, high = (float(q) for q in np.quantile(self.seconds, (0.1, 0.9)))
        text = " ".join(f"{k}={v:g}" for k, v in shape.items())
        return {
            "op": "collective", "direction": self.operation, "dtype": "float32", "layout": "",
            "implementation": self.backend, "group": f"{self.n} ranks, {self.size} bytes", "use": "fit",
            "id": f"collective/{self.operation}/float32/{self.backend}//{text}", "calls": 1,
            "t_s": self.t_s, "t_min_s": min(self.seconds), "t_p10_s": low, "t_p90_s": high,
            "n": len(self.seconds), "launches": self.calls, "flop": 0.0, "bytes": float(self.size),
            "shape": json.dumps(shape), "error": self.error,
        }  # fmt: skip


def measure(
    ranks: int = 2,
    backend: Literal["gloo", "nccl"] = "gloo",
    budget_s: float = 60.0,
    operations: Sequence[str] = OPERATIONS,
    sizes: Sequence[int] = SIZES,
) -> tuple[list[Measured], dict[str, str]]:
    """Return the collectives that fit into `budget_s` (smallest first), and {operation: why the backend has none}.

    Raises:
        InputError: fewer than two ranks, more than there are devices, or a rank failed or did not end in time.
    """
    _check(ranks, backend)
    cases = tuple((operation, size) for size in sizes for operation in operations)
    request = Request(ranks, backend, cases, REPEATS[backend], 1e-3, budget_s)
    try:
        written, *_ = run_processes(asdict(request), budget_s + STARTUP_S, COMMAND)
    except ExecutionError as error:
        raise InputError("ranks", ranks, f"processes that {backend} connects: {error}") from None
    found, skipped = [], {}
    for case in written["cases"]:
        if "reason" in case:
            skipped[case["operation"]] = case["reason"]
        else:
            seconds = tuple(case["seconds"])
            place = case["operation"], ranks if case["operation"] != "p2p" else 2, case["size"]
            found.append(Measured(*place, backend, seconds, case["calls"], case["error"]))
    return found, skipped


def _check(ranks: int, backend: str) -> None:
    if ranks < 2:
        raise InputError("ranks", ranks, "at least 2")
    if backend == "nccl" and torch.cuda.device_count() < ranks:
        raise InputError("ranks", ranks, f"at most the CUDA devices here ({torch.cuda.device_count()})")


@lru_cache
def _compiled() -> Compiled:
    group, size = Group.named("ranks"), symbol("size_bytes")
    named = {name: getattr(group, name)(size) for name in OPERATIONS if name != "p2p"}
    return compile_expressions({**named, "p2p": send(size, symbol("pp_inter"))})


FREE = {
    "intra_efficiency_reduce": Free(0.3, 1e-4, 10.0),
    "intra_efficiency_gather": Free(0.3, 1e-4, 10.0),
    "intra_alpha": Free(5e-5, 1e-7, 1e-1),
    "intra_fill_s": Free(5e-5, 1e-9, 1e-1),
    "intra_fill_bytes": Free(1e5, 1e2, 1e9),
}
RANKS_FREE = {"intra_alpha_rank": Free(1e-5, 1e-9, 1e-1), "intra_own": Free(0.2, 1e-3, 10.0)}
"""Needs several numbers of ranks."""
FIXED = {"inter_efficiency": 1.0, "inter_alpha": 0.0, "intra_alpha_rank": 0.0}


@dataclass(frozen=True)
class HostLinks:
    """Collective parameters of a profile for one node, with standard errors and held-out errors by operation."""

    parameters: dict[str, float]
    standard_errors: dict[str, float]
    errors: dict[str, Scores]


def predict(samples: Sequence[Measured], rate: float, parameters: Mapping[str, float]) -> Floats:
    """Return the seconds of the samples' collectives over links of `rate` bytes/s inside one node."""
    ranks = np.array([float(s.n) for s in samples])
    values: dict[str, Floats | float] = {
        "ranks_n": ranks, "ranks_in": ranks, "ranks_out": 1.0, "ranks_over": 1.0, "pp_inter": 0.0, "pp_over": 1.0,
        "size_bytes": np.array([float(s.size) for s in samples]), "intra_bytes_per_s": rate,
        "inter_bytes_per_s_per_node": rate, "gpus_per_node": ranks, "in_switch_reduction": 0.0,
        **OPTIONAL, "intra_efficiency_switch": 1.0, **symbol_values(RunLevel()), **FIXED, **parameters,
    }  # fmt: skip
    all_forms = {name: np.broadcast_to(t, ranks.shape) for name, t in _compiled()(values).items()}
    return np.array([all_forms[s.operation][i] for i, s in enumerate(samples)], dtype=np.float64)


def fit(samples: Sequence[Measured], rate: float) -> HostLinks:
    """Return the collective parameters of a profile that fit the samples, each size predicted without itself.

    They are fitted to the reducing and gathering operations, whose they are; broadcasts and messages are predicted.
    rate: `intra_bytes_per_s` of the device, of which the efficiencies are shares.

    Raises:
        InputError: fewer than three sizes.
    """
    sizes, fitted = np.array([s.size for s in samples]), [s for s in samples if s.operation in FITTED]
    if len({s.size for s in fitted}) < 3:
        raise InputError("samples", sorted(set(sizes.tolist())), f"{', '.join(FITTED)} of at least three sizes")
    predicted = np.empty(len(samples))
    for size in np.unique(sizes):
        found = _solve([s for s in fitted if s.size != size], rate)
        test = [s for s in samples if s.size == size]
        predicted[sizes == size] = predict(test, rate, found.parameters)
    seconds = np.array([s.t_s for s in samples])
    names = np.array([s.operation for s in samples])
    errors = {}
    for name in dict.fromkeys(names.tolist()):
        mine = names == name
        coverage = conformal_coverage(predicted[mine], seconds[mine], sizes[mine])
        errors[name] = scores(predicted[mine], seconds[mine], coverage)
    found = _solve(fitted, rate)
    held = {k: v for k, v in found.parameters.items() if k in (*PARAMETERS, *OPTIONAL)}
    return HostLinks(held, found.standard_errors, errors)


def _solve(samples: Sequence[Measured], rate: float) -> Solution:
    free = FREE | (RANKS_FREE if len({s.n for s in samples}) > 1 else {})
    seconds = np.array([s.t_s for s in samples])
    fixed = {k: v for k, v in FIXED.items() if k not in free}
    return solve(lambda values: predict(samples, rate, values), seconds, free, fixed)
