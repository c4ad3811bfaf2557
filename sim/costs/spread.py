"""How far a step may be off because its kernels are: conformal intervals of a profile carried to the step's time.

Kernels of one family err together (one fit, one device: a kernel that the profile times as another is of that one's
family), so their errors add; those of different families do not, and add as squares: sigma = sqrt(sum over families f
of (sum over kernels i in f of |share_i| sigma_i)^2), with sigma_i the half-width of the nominal 80 % interval at the
kernel's size over that of a normal distribution.

Beyond the shapes that a model was fitted to, sigma_i grows: to hypot(sigma_i, slope * d), d being the log of the factor
by which the kernel lies outside (the largest over its inputs) and slope the profile's `outside_slope`, which comes from
held-out samples larger than all fitted ones, or is the last interval itself where there are none. Products of narrow
rows have errors of their own, and so have first convolutions.
"""

from collections import defaultdict
from collections.abc import Iterable
from math import ceil, hypot, log1p, sqrt

from sim.costs.fitted import Z80, Z90, KernelModel
from sim.costs.kernels import ALIGNED, FEW_INPUTS, NARROW_ROWS, in_rows
from sim.costs.profile import Profile
from sim.costs.usage import Used


def kernel_sigma(profile: Profile, shares: Iterable[Used], outside: bool = True) -> float:
    """Return the standard deviation of the log of a step's time that its kernels' models bring.

    `shares`: the step's kernels with their shares of its time; `outside=False` takes every kernel for one inside the
    fitted shapes. The profile's constant where it states no intervals.
    """
    if not any(model.bins for model in profile.models):
        return profile.kernel_sigma_log
    return float(hypot(*family_sigmas(profile, shares, outside).values()))


def family_sigmas(profile: Profile, shares: Iterable[Used], outside: bool = True) -> dict[str, float]:
    """Return the same by family (gemm, norm, ...: the `family` of each kernel), with the step's shares in it."""
    families: dict[str, float] = defaultdict(float)
    for kernel in shares:
        model = profile.model_of((kernel.op, kernel.direction))
        sigma = max(model.half_width(kernel.size) / Z80, _narrow(model, kernel))
        if outside:
            sigma = hypot(sigma, model.outside_slope * model.distance(kernel.inputs))
        families[model.op] += abs(kernel.share) * sigma
    return dict(families)


def _narrow(model: KernelModel, kernel: Used) -> float:
    """Return the standard deviation of log time of a product of narrow rows, 0 of others and where it is not known."""
    narrow = any(kernel.inputs.get(kind) for kind in (*NARROW_ROWS, *FEW_INPUTS))
    found = model.held_out.get("narrow") if narrow else None
    return log1p(found.p90 / 100) / Z90 if found else 0.0


def family(profile: Profile, kernel: Used) -> str:
    """Return the kernel whose fit times `kernel`: itself, or what the profile falls back on."""
    return profile.model_of((kernel.op, kernel.direction)).op


def widening(profile: Profile, shares: Iterable[Used]) -> float:
    """Return what shapes outside the fitted ones add to `kernel_sigma`, as a standard deviation (in squares)."""
    held = tuple(shares)
    inside, whole = kernel_sigma(profile, held, outside=False), kernel_sigma(profile, held)
    return sqrt(max(0.0, whole**2 - inside**2))


def outside_domain(profile: Profile, kernels: Iterable[Used]) -> list[str]:
    """Return a line for every input of a kernel model that the step takes beyond its fitted range, the worst value."""
    worst: dict[tuple[str, str], tuple[float, str]] = {}
    for kernel in kernels:
        model = profile.model_of((kernel.op, kernel.direction))
        for name, value in kernel.inputs.items():
            far = model.distance({name: value})
            label = f"{model.op} {model.direction}"
            if far > worst.get((label, name), (0.0, ""))[0]:
                low, high = model.domain[name]
                worst[label, name] = far, f"{label} {name} = {value:.6g} (fitted to {low:g} .. {high:g})"
    return [text for _, text in worst.values()]


NOTABLE, MOST_ROWS = 0.01, 4
"""Share of the step of a product that is worth a word, and how many rows are named."""


def told(profile: Profile, kernels: Iterable[Used]) -> tuple[str, ...]:
    """Return what to say of kernels whose shapes the profile does not know, or that their rows slow."""
    held = tuple(kernels)
    lines = outside_domain(profile, held)
    wider = "the interval is wider for it" if profile.session else "runs beyond them are in the run level"
    texts = [f"outside the fitted shapes: {'; '.join(lines)}; {wider}"] if lines else []
    ends = {
        True: f"take longer for it, up to {{:.1f}} times: a size padded to a multiple of {ALIGNED} would not",
        False: "count like others, though they may take several times as long",
    }
    rows = narrow_rows(profile, held)
    for known, end in ends.items():
        sizes = {size: times for size, times in rows.items() if (times > 1) is known}
        if sizes:
            named = ", ".join(map(str, sorted(sizes)[:MOST_ROWS]))
            most = end.format(max(sizes.values()))
            texts.append(f"products with rows of {named} elements, no multiple of 16 bytes, {most}")
    return tuple(texts)


def narrow_rows(profile: Profile, kernels: Iterable[Used]) -> dict[int, float]:
    """Return the narrow rows (elements) of 16-bit products, and how many times as long as others these compute: 1 where
    nothing counts it, because the profile has measured none or nobody said what lies in rows."""
    found = dict[int, float]()
    for kernel in kernels if profile.dtype != "float32" else ():
        x = kernel.inputs
        padded = "odd" in x and not any(x[kind] for kind in NARROW_ROWS)
        if kernel.op != "gemm" or abs(kernel.share) <= NOTABLE or x["batch"] > 1 or padded:
            continue
        model = profile.model_of((kernel.op, kernel.direction))
        times = max(model.parameters.get(kind, 1.0) if x.get(kind) else 1.0 for kind in NARROW_ROWS)
        for size in in_rows(kernel.direction, x["m"], x["n"], x["k"]):
            if ceil(size) % ALIGNED:
                found[ceil(size)] = max(times, found.get(ceil(size), 1.0))
    return found
