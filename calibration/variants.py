"""Which terms of a form the samples support: each is taken only where cross-validation says that it helps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from calibration.fit import ROUGH, TOLERANCE, Fit, Free, Parameters, cross_validate_together
from calibration.samples import Floats, Samples

CLEARLY_BETTER = 0.98
"""A term is taken only if it lowers the cross-validated mean error below this share of the error without it."""


SAMPLES_EACH = 4
"""A term is tried only with that many samples for every free parameter."""


@dataclass(frozen=True)
class Term:
    """Parameters that a fit may have beside others: those to fit, and those given with them."""

    name: str
    free: Mapping[str, Free] = field(default_factory=dict)
    fixed: Parameters = field(default_factory=dict)


def together(*terms: Term) -> Term:
    """Return terms that are tried as one: what one of them explains may only show beside the others."""
    free = {name: value for term in terms for name, value in term.free.items()}
    fixed = {name: value for term in terms for name, value in term.fixed.items()}
    return Term(" & ".join(term.name for term in terms), free, fixed)


@dataclass(frozen=True)
class Chosen:
    """The best fit of each part, the terms it has, and the cross-validated mean error (%) of everything tried."""

    fits: Mapping[str, Fit]
    terms: tuple[str, ...]
    tried: Mapping[str, float]

    @property
    def note(self) -> str:
        """What was compared, as text."""
        found = ", ".join(f"{name} {error:.4g}" for name, error in self.tried.items())
        return f"terms: {', '.join(self.terms)}; cross-validated mean error in percent of those tried: {found}"


def choose(
    form: str, parts: Mapping[str, Samples], base: Term, further: Sequence[Sequence[Term]], own: Sequence[str] = ()
) -> Chosen:
    """Return the fit with the terms that cross-validation prefers.

    `further` holds groups of alternatives, tried in this order beside what is kept so far; the best of a group is kept
    if it is clearly better than the fit without it. `own` as in `cross_validate_together`.
    """
    kept = [base]
    best = _fitted(form, parts, kept, own)
    error = mean_error(best, parts)
    tried = {base.name: error}
    for group in further:
        fitted = {name for term in kept for name in term.free}
        untried = (t for t in group if not t.free or not set(t.free) <= fitted)
        new = [t for t in untried if enough(parts, fitted | set(t.free), own)]
        if not new:
            continue
        found = {term.name: _fitted(form, parts, [*kept, term], own) for term in new}
        errors = {name: mean_error(fits, parts) for name, fits in found.items()}
        tried |= {f"+ {name}": value for name, value in errors.items()}
        name = min(errors, key=lambda n: errors[n])
        if errors[name] < CLEARLY_BETTER * error:
            kept.append(next(term for term in new if term.name == name))
            best, error = found[name], errors[name]
    return Chosen(_fitted(form, parts, kept, own, TOLERANCE), tuple(term.name for term in kept), tried)


def enough(parts: Mapping[str, Samples], free: set[str], own: Sequence[str]) -> bool:
    """Return whether the parts have samples enough to fit `free`, of which each part has `own` ones."""
    several = sum(len(parts) if name in own else 1 for name in free)
    return sum(len(samples) for samples in parts.values()) >= SAMPLES_EACH * several


def _fitted(
    form: str, parts: Mapping[str, Samples], terms: Sequence[Term], own: Sequence[str], tolerance: float = ROUGH
) -> dict[str, Fit]:
    all_of_them = together(*terms)
    held = {name: value for name, value in all_of_them.fixed.items() if name not in all_of_them.free}
    return cross_validate_together(form, parts, all_of_them.free, held, own, tolerance=tolerance)


def joined(fits: Mapping[str, Fit], parts: Mapping[str, Samples]) -> tuple[Floats, Floats]:
    """Return held-out predictions and measurements of all parts."""
    return np.concatenate([fits[p].predicted for p in parts]), np.concatenate([s.seconds for s in parts.values()])


def mean_error(fits: Mapping[str, Fit], parts: Mapping[str, Samples]) -> float:
    """Return the mean absolute cross-validated error over all parts in percent."""
    predicted, measured = joined(fits, parts)
    return float(100 * np.mean(np.abs(predicted / measured - 1)))
