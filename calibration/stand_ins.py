"""Kernels that were not measured often enough: they have the numbers of a relative, and a wide interval."""

from collections.abc import Mapping
from dataclasses import replace
from math import hypot, log
from statistics import NormalDist

from calibration.samples import LEAST
from sim.costs import kernels
from sim.costs.fitted import KernelModel, SizeBin, all_six_digits
from sim.specs.fields import InputError

Key = tuple[str, str]

STAND_INS: dict[Key, Key] = {
    ("gemm", "dgrad"): ("gemm", "forward"),
    ("gemm", "wgrad"): ("gemm", "forward"),
    ("attention", "forward"): ("gemm", "forward"),
    ("attention", "backward"): ("attention", "forward"),
    ("norm", "any"): ("elementwise", "any"),
    ("softmax", "any"): ("elementwise", "any"),
}
"""Whose numbers a kernel has that was not measured often enough; the others must be there."""


def stand_ins(held: Mapping[Key, KernelModel], dtype: str, counts: Mapping[Key, int]) -> list[KernelModel]:
    """Return models for required kernels without samples enough, from those of their nearest relatives.

    counts: fitted samples of each kernel, those without a model too.

    Raises:
        InputError: there is neither a model of a kernel nor of its relative.
    """
    made = []
    for key, form in kernels.KERNELS.items():
        if key in held:
            continue
        other = STAND_INS.get(key)
        if other is None or other not in held:
            lacking = other or key
            allowed = f"at least {LEAST} fitted samples of {'/'.join(lacking)} in {dtype}"
            raise InputError("samples", counts.get(lacking, 0), allowed)
        base = held[other]
        source = f"too few samples of its own: the numbers of {'/'.join(other)}, assumed to be within a factor of two"
        parameters = {name: base.parameters.get(name, 0.0) for name in kernels.FORMS[form].parameters}
        made.append(
            replace(
                base,
                op=key[0],
                direction=key[1],
                form=form,
                parameters=parameters,
                standard_errors={},
                domain={},
                n_train=0,
                bins=[_widened(each) for each in base.bins],
                status="scaled",
                source=source,
            )
        )
        held = {**held, key: made[-1]}
    return made


def _widened(of: SizeBin) -> SizeBin:
    """Return a relative's interval as that of a kernel of which it is known only roughly: a factor of two at 80 %."""
    normal = NormalDist()
    unit = log(2) / normal.inv_cdf(0.9)
    wide = {x: hypot(width, unit * normal.inv_cdf((1 + float(x)) / 2)) for x, width in of.half_widths.items()}
    return replace(of, half_widths=all_six_digits(wide))
