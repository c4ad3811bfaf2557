"""Profiles of catalog devices from public data, and the folders they are written to."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import log
from pathlib import Path

from calibration.published.collectives import BRIDGE_SESSION
from calibration.published.contention import SPEAKS_FOR, with_contention
from calibration.published.models import (
    ANCHOR_CHECK,
    BASE,
    PROFILED,
    Base,
    Profiled,
    carried_models,
    fit_base,
    own_models,
    ratios_to,
    vector_models,
)
from calibration.published.public import Public
from calibration.published.relatives import RELATIVES, relative
from calibration.store import SESSION
from sim.catalog import folder
from sim.costs.carry import Ratios
from sim.costs.fitted import all_six_digits, six_digits
from sim.costs.kernels import FALLBACK, KERNELS
from sim.costs.profile import Memory, Profile, load_profile, profile_text
from sim.specs.catalog import device
from sim.specs.fields import InputError
from sim.specs.files import write_atomically
from sim.units import MIB

DATE = "2026-11-21"
"""Recorded in the shipped profiles: the day of the fit, as the files do not say when they were retrieved."""

HOSTS = "h200-sxm-141gb"
"""The profile of measured GPUs whose hosts' issue times stand for all others: it is Python that they are made of."""

OLDER_HOSTS, OLDER = 1.36, ("a100", "a10g", "v100", "t4", "rtx-2080-ti")
"""How much longer the hosts of A100s take than those of H100s, and whose hosts are taken to be no faster.

The geometric mean over 28 plans of Megatron-LM's continuous integration that run on both and by our costs wait for
their hosts for 70 % of the step and more (`golden_values_dev_dgx_a100.json` beside `..._dgx_h100.json` in
`tests/functional_tests/test_cases`, medians of tests of the same plan; eight of ten within 1.11 to 1.64, the median
1.45). That the hosts of H100s are those of the measured H200s, and those of V100, T4, A10G and RTX 2080 Ti as A100's,
is assumed.
"""

NAMES = tuple(t.name for t in PROFILED + RELATIVES)
"""Devices whose profiles are written, in that order."""


def build(public: Public, only: str | None = None, date: str = DATE) -> list[Profile]:
    """Return the profiles of all target devices for which the files hold enough, or of the one named `only`; relatives
    of a device that was measured since come from what was measured. `public.set_aside` then tells what others lack.

    Raises:
        InputError: what all of these profiles, or that of `only`, are fitted to is missing; `only` is none of `NAMES`.
    """
    if only is not None and only not in NAMES:
        raise InputError("--only", only, "one of " + ", ".join(NAMES))
    base = fit_base(public)
    kin = {r.name: {r.base, r.links or r.base} for r in RELATIVES}
    needed = set(NAMES) if only is None else _with_kin(only, kin)
    made: dict[str, Profile] = {}
    lacking: dict[str, InputError] = {}
    for target in (t for t in PROFILED if t.name in needed):
        with _noted(lacking, target.name):
            made[target.name] = _profile(target, public, base, date)
    known = made | {
        name: load_profile(name) for name in made if (Path(str(folder("profiles"))) / name / SESSION).exists()
    }
    for each in (r for r in RELATIVES if r.name in needed):
        with _noted(lacking, each.name):
            if less := [lacking[name] for name in kin[each.name] if name in lacking]:
                raise less[0]
            made[each.name] = known[each.name] = relative(each, public, known)
    found = [_hosted(profile) for profile in made.values() if only in (None, profile.name)]
    if lacking and (only is not None or not found):
        raise next(iter(lacking.values()))
    public.set_aside.update({f"profile {name}": f"it needs {error.allowed}" for name, error in lacking.items()})
    profiles = with_contention(found, public)
    bare = [p.name for p in profiles if not p.contention and any(p.name in names for names in SPEAKS_FOR.values())]
    public.set_aside.update({f"contention of {name}": "no file tells what runs side by side on it" for name in bare})
    return profiles


def _with_kin(name: str, kin: Mapping[str, set[str]]) -> set[str]:
    """Return a profile's name, those of what it is made from, and so on."""
    return {name}.union(*(_with_kin(each, kin) for each in kin.get(name, ())))


@contextmanager
def _noted(lacking: dict[str, InputError], name: str) -> Iterator[None]:
    """Keep what the profile of device `name` lacks, for others can be made without."""
    try:
        yield
    except InputError as error:
        lacking[name] = error


def _hosted(profile: Profile) -> Profile:
    """Return the profile of a device with what its hosts take to issue kernels, its own or that of `HOSTS`."""
    if profile.issue_s:
        return profile
    return profile.with_issue_of(load_profile(HOSTS), OLDER_HOSTS if profile.name.startswith(OLDER) else 1.0)


def _profile(target: Profiled, public: Public, base: Base, date: str) -> Profile:
    by = ratios_to(target.name, public)
    vector = vector_models(target, public, base.models, by)
    gemms = base.gemms
    if target.name == BASE:
        models = dict(base.models)
    elif target.relation == "own":
        models, gemms = own_models(target, public, vector, base.s0)
    else:
        models = carried_models(target, public, base, vector, by)
    scaling, scaling_text = _scaling_sigma(target, by, base)
    if target.links not in base.links:
        raise InputError(
            "--from", sorted({t.session for t in public.together}), f"contention of L4 in {BRIDGE_SESSION}"
        )
    links = base.links[target.links]
    return Profile(
        schema_version=2,
        name=target.name,
        method=_method(target, by),
        date=date,
        base=None if target.relation == "own" else BASE,
        estimate=target.relation == "estimate",
        models=[models[key] for key in (*KERNELS, *FALLBACK) if key in models],
        collectives=all_six_digits(links.parameters),
        collectives_source=links.source,
        memory=_memory(target.name),
        kernel_sigma_log=six_digits(gemms.sums_sigma_log),
        scaling_sigma_log=six_digits(scaling),
        uncertainty_source=(
            "kernel: RMS log error of the summed held-out times of 12 random GEMMs"
            f"{'' if target.relation == 'own' else f' of {BASE}'}; scaling: {scaling_text}"
        ),
    )


def _scaling_sigma(target: Profiled, by: Ratios, base: Base) -> tuple[float, str]:
    if target.relation == "own":
        return 0.0, "none, own samples"
    if target.relation == "chip":
        return log(by.compute), f"same chip as {BASE}: all of the correction from its measured peak to this one's"
    if target.scaling_sigma_log is not None:
        return target.scaling_sigma_log, target.scaling_source
    text = f"RMS log error of the GEMM samples of {ANCHOR_CHECK} predicted from {BASE} "
    if not by.anchored:
        return base.unanchored.sigma_log, text + "without measured peaks"
    text += f"with measured peaks, their ratio to the power {base.exponent:.3g} that was found on the same samples"
    return base.anchored.sigma_log, text


def _method(target: Profiled, by: Ratios) -> str:
    if target.relation == "own":
        text = "public data: robust fit of each kernel family, 5-fold cross-validation by shape family"
        if target.vector is None:
            text += f"; memory-bound kernels: bandwidth of {BASE} scaled by the ratio of memory bandwidths"
        return text
    chip = f"{BASE}, the same chip (no estimate for that reason)" if target.relation == "chip" else BASE
    kept = "" if target.relation == "chip" else " and what products keep of them"
    anchor = f"anchored on measured matmul peaks{kept}" if by.anchored else "by datasheet peaks (no measured peak)"
    own = [n for n, held in (("attention", target.attention), ("memory-bound kernels", target.vector)) if held]
    extra = f"; {' and '.join(own)} from measurements" if own else ""
    return f"public data: GEMM carried over from {chip}, wave scaling {anchor}{extra}"


def _memory(name: str) -> Memory:
    te_mib = 32 if device(name).since_hopper else 4
    return Memory(
        context_bytes=6e8,
        communicator_bytes=1e9,
        workspace_bytes=float((2 * 32 + te_mib) * MIB),
        reserved_over_allocated=1.065,
        reserved_sigma_log=0.07,
        allocated_sigma_log=0.03,
        source="reserved over allocated: allocator replays give 1.05 - 1.08; context and communicator buffers are "
        "assumed, not measured; spreads: 80 % of the residuals on the public tables of measured runs (360 allocated "
        "peaks, 64 reserved or nvidia-smi); workspaces: cuBLAS 32 MiB for the thread of the forward and for that of "
        "the backward pass (PyTorch's default since Hopper, before it with CUBLAS_WORKSPACE_CONFIG=:4096:8, as "
        f"deterministic runs set it), TransformerEngine {te_mib} MiB",
    )


def write(profiles: Sequence[Profile], out: Path) -> list[Path]:
    """Write each profile to `out`/<name>/profile.json; a file appears whole or not at all.

    Devices that were measured since keep their profiles: those of folders that hold a session.

    Raises:
        InputError: the folder cannot be written.
    """
    return [_write_one(p, out / p.name) for p in profiles if not (out / p.name / SESSION).exists()]


def _write_one(profile: Profile, folder: Path) -> Path:
    made = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("--out", str(folder), f"a folder that can be written ({error.strerror})") from None
    try:
        write_atomically(folder / "profile.json", profile_text(profile))
    except BaseException:
        if made:
            folder.rmdir()
        raise
    return folder / "profile.json"
