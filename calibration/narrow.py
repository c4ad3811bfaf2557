"""Products whose matrices have rows that do not all begin at multiples of 16 bytes: how much longer they take.

Fitted after all others, whose parameters stay: networks for GPUs mostly have sizes that avoid it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from calibration.fit import Free, conformal_coverage, cross_validate_together, scores
from calibration.kernels.gemm import LAYOUT
from calibration.samples import Samples
from calibration.variants import SAMPLES_EACH, joined
from sim.costs.fitted import KernelModel, all_six_digits
from sim.costs.kernels import NARROW_ROWS, in_rows, narrow

DIRECTION = {layout: direction for direction, layout in LAYOUT.items()}
TIMES, LATER = Free(4.0, 1.0, 100.0), Free(1e-6, 1e-9, 1e-3)
TERMS = {kind: {kind: TIMES, f"{kind}_t0": LATER} for kind in NARROW_ROWS}


def is_narrow(row: Mapping[str, Any]) -> bool:
    """Return whether a sample is of a 16-bit product with narrow rows (`layout` says what lies in rows)."""
    direction, shape = DIRECTION.get(row["layout"]), row["shape"]
    if row["op"] != "gemm" or row["dtype"] == "float32" or direction is None:
        return False
    return any(narrow(*in_rows(direction, shape["m"], shape["n"], shape["k"])).values())


def with_narrow(models: Mapping[str, KernelModel], parts: Mapping[str, Samples]) -> dict[str, KernelModel]:
    """Return one implementation's models by direction with what narrow rows cost, and how far off that is.

    parts: samples `is_narrow` of each direction; directions share the parameters. All are fitted, and their errors are
    those of folds. Kinds of rows with too few samples stay unknown.
    """
    marked = {}
    for direction, some in parts.items():
        x = some.inputs
        marked[direction] = replace(some, inputs={**x, **narrow(*in_rows(direction, x["m"], x["n"], x["k"]))})
    counts = {kind: sum(some.inputs[kind].sum() for some in marked.values()) for kind in TERMS}
    known = [kind for kind, terms in TERMS.items() if counts[kind] >= SAMPLES_EACH * len(terms)]
    if not known:
        return dict(models)
    held = {d: some.where(np.any([some.inputs[kind] for kind in known], axis=0)) for d, some in marked.items()}
    held = {d: some for d, some in held.items() if len(some)}
    free = {name: term for kind in known for name, term in TERMS[kind].items()}
    fixed = {f"{name} {d}": value for d in held for name, value in models[d].parameters.items()}
    fits = cross_validate_together(models[next(iter(held))].form, held, free, fixed)
    predicted, measured = joined(fits, held)
    fold = np.concatenate([fits[d].fold for d in held])
    errors = scores(predicted, measured, conformal_coverage(predicted, measured, fold)).errors(len(measured))
    found = next(iter(fits.values())).solution
    values = all_six_digits({name: found.parameters[name] for name in free})
    certain = all_six_digits({name: found.standard_errors[name] for name in free})
    return {
        d: replace(
            model,
            parameters=model.parameters | values,
            standard_errors=model.standard_errors | certain,
            held_out=model.held_out | {"narrow": errors},
        )
        for d, model in models.items()
    }
