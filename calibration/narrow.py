"""Products whose matrices have rows that do not all begin at multiples of 16 bytes: how much longer they take.

Convolutions of few channels, the first of most networks, are such products.

Fitted after all others, whose parameters stay: networks for GPUs mostly have sizes that avoid it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from calibration.fit import Free, Solution, conformal_coverage, cross_validate_together, predict, scores
from calibration.kernels.gemm import LAYOUT
from calibration.samples import Floats, Samples
from calibration.variants import CLEARLY_BETTER, SAMPLES_EACH, enough, joined
from sim.costs.fitted import Errors, KernelModel, all_six_digits, six_digits
from sim.costs.kernels import ALIGNED, NARROW_ROWS, few_channels, in_rows, narrow

Row = Mapping[str, Any]
DIRECTION = {layout: direction for direction, layout in LAYOUT.items()}
TIMES, LATER = Free(4.0, 1.0, 100.0), Free(1e-6, 1e-9, 1e-3)
TERMS = {kind: {kind: TIMES, f"{kind}_t0": LATER} for kind in NARROW_ROWS}
TERMS |= {"few": {"few": TIMES, "few_k0": Free(50.0, 1.0, 1e4), "few_t0": LATER}}
OWN = ("few",)
"""Each direction has its own: that of the weights sums up over all places, by other kernels."""


def is_narrow(row: Row) -> bool:
    """Return whether a sample is of a 16-bit product with narrow rows (`layout` says what lies in rows), or of a
    convolution of few channels."""
    if row["op"] == "convolution":
        return bool(row["dtype"] != "float32" and row["shape"]["inputs"] < ALIGNED)
    direction, shape = DIRECTION.get(row["layout"]), row["shape"]
    if row["op"] != "gemm" or row["dtype"] == "float32" or direction is None:
        return False
    return any(narrow(*in_rows(direction, shape["m"], shape["n"], shape["k"])).values())


def apart(rows: Iterable[Row]) -> list[Row]:
    """Return the samples that `with_narrow` is for, of one type: convolutions of few channels only where they are
    enough to know what these cost; fewer say more among all others."""
    found = [row for row in rows if is_narrow(row)]
    few = [row["direction"] for row in found if row["op"] == "convolution"]
    terms = len(TERMS["few"].keys() - set(OWN)) + len(OWN) * len(set(few))
    return found if len(few) >= SAMPLES_EACH * terms else [row for row in found if row["op"] != "convolution"]


def with_narrow(models: Mapping[str, KernelModel], parts: Mapping[str, Samples]) -> dict[str, KernelModel]:
    """Return one implementation's models by direction with what narrow rows cost, and how far off that is.

    parts: samples `is_narrow` of each direction; directions share the parameters, but for `OWN`, and those without
    samples stay as they are. All are fitted, and their errors are those of folds. Kinds of rows with too few samples
    stay unknown, and all do where folds are not told better for it.
    """
    marked = {d: replace(some, inputs={**some.inputs, **_kinds(d, some.inputs)}) for d, some in parts.items()}
    known = [kind for kind, terms in TERMS.items() if enough(_of(marked, kind), set(terms), OWN)]
    if not known:
        return dict(models)
    held = _of(marked, *known)
    free = {name: term for kind in known for name, term in TERMS[kind].items()}
    fixed = {f"{name} {d}": value for d in held for name, value in models[d].parameters.items()}
    form = models[next(iter(held))].form
    fits = cross_validate_together(form, held, free, fixed, OWN)
    predicted, measured = joined(fits, held)
    without = np.concatenate([predict(form, some.inputs, models[d].parameters) for d, some in held.items()])
    if not np.mean(np.abs(predicted / measured - 1)) < CLEARLY_BETTER * np.mean(np.abs(without / measured - 1)):
        return dict(models)
    fold = np.concatenate([fits[d].fold for d in held])
    errors = scores(predicted, measured, conformal_coverage(predicted, measured, fold)).errors(len(measured))
    return dict(models) | {d: _with(models[d], fit.solution, set(free), errors, held[d]) for d, fit in fits.items()}


def _kinds(direction: str, x: Mapping[str, Floats]) -> dict[str, Floats]:
    """Return what a form is told of the rows of products of these sizes."""
    if "channels" in x:
        return few_channels(direction, x["m"], x["n"], x["k"], x["channels"])
    return narrow(*in_rows(direction, x["m"], x["n"], x["k"]))


def _of(parts: Mapping[str, Samples], *kinds: str) -> dict[str, Samples]:
    """Return the samples that are of one of the kinds, of directions that have any."""
    found = {d: s.where(np.any([s.inputs.get(kind, 0 * s.seconds) > 0 for kind in kinds], 0)) for d, s in parts.items()}
    return {d: some for d, some in found.items() if len(some)}


def _with(model: KernelModel, found: Solution, names: set[str], errors: Errors, samples: Samples) -> KernelModel:
    """Return a model with the parameters of these names, and the samples they are of inside its domain."""
    edges = {
        n: (*model.domain[n], float(samples.inputs[n].min()), float(samples.inputs[n].max())) for n in model.domain
    }
    return replace(
        model,
        parameters=model.parameters | all_six_digits({n: v for n, v in found.parameters.items() if n in names}),
        standard_errors=model.standard_errors
        | all_six_digits({n: v for n, v in found.standard_errors.items() if n in names}),
        domain={n: [six_digits(min(held)), six_digits(max(held))] for n, held in edges.items()},
        held_out=model.held_out | {"narrow": errors},
    )
