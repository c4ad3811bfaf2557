"""Run-level parameters for shipping: one set from all measured runs, and one per source that leaves it out."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.costs.run_level import FILE, RunLevel, RunLevelSet
from sim.specs.fields import InputError
from sim.specs.files import write_json
from sim.validation.fit import fit_run_level, spread, spread_of_unseen
from sim.validation.predict import log_errors
from sim.validation.translate import Case

ALL = "all"


def fit_sets(cases: Sequence[Case]) -> dict[str, RunLevelSet]:
    """Return the set fitted to all sources, and under each source's name the set that never saw it.

    The spread of a set is what left-out sources show (`spread_of_unseen`): 80 % of their errors, every source counting
    the same. What is left of it once every source's mean error is removed is a run's own; the rest all runs of a source
    share.

    Raises:
        InputError: fewer than two sources have step times that may score.
    """
    sources = sorted({case.row.source for case in cases})
    if len(sources) < 2:
        raise InputError(
            "--from", sources, "measured runs of at least two sources, or --base: of one cluster on a profile"
        )
    by = {s: [c for c in cases if c.row.source == s] for s in sources}
    without = {s: fit_run_level([c for c in cases if c.row.source != s]) for s in sources}
    errors = {s: log_errors(by[s], without[s]) for s in sources}
    sets = {ALL: _set(fit_run_level(cases), by, errors)}
    for s in sources:
        others = {o: by[o] for o in sources if o != s}
        sets[s] = _set(without[s], others, {o: errors[o] for o in others})
    return sets


def _set(
    parameters: RunLevel, by: Mapping[str, Sequence[Case]], errors: Mapping[str, NDArray[np.float64]]
) -> RunLevelSet:
    wide, own = spread_of_unseen([*errors.values()]), spread([e - e.mean() for e in errors.values()])
    return RunLevelSet(
        parameters=RunLevel(**{k: float(f"{v:.4g}") for k, v in asdict(parameters).items()}),
        sigma_log=float(f"{wide:.4g}"),
        devices=tuple(sorted({case.cluster.device for cases in by.values() for case in cases})),
        source="fitted to public runs of "
        + "; ".join(f"{s} ({len(c)})" for s, c in by.items())
        + "; spread: errors of sources left out of their own fit",
        source_sigma_log=float(f"{sqrt(max(0.0, wide**2 - own**2)):.4g}"),
        experts=any(case.model.has_experts for cases in by.values() for case in cases),
    )


def write_sets(sets: Mapping[str, RunLevelSet], out: Path) -> Path:
    """Write all sets to `out`/run-level.json, whole or not at all.

    Raises:
        InputError: the folder cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("--out", str(out), f"a folder that can be written ({error.strerror})") from None
    data: dict[str, Any] = {"sets": {name: asdict(held) for name, held in sets.items()}}
    write_json(out / FILE, data)
    return out / FILE
