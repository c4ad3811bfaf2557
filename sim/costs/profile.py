"""Reader of profiles: the fitted numbers of one device, their errors and where they come from."""

from functools import lru_cache
from math import exp
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from sim.catalog import folder, names
from sim.costs import kernels
from sim.costs.carry import Move, carried, nearest, ratios
from sim.costs.collectives import OPTIONAL, PARAMETERS
from sim.costs.contention import Contention
from sim.specs.catalog import device, devices, is_device_file
from sim.specs.cluster import MIXED
from sim.specs.device import Device
from sim.specs.fields import InputError, read, real, spec, whole
from sim.specs.files import is_folder, load_mapping

Z80 = 1.2815515655446004
"""Half-width of the central 80 % of a normal distribution, in standard deviations."""

Text = Annotated[str, Field(min_length=1, max_length=2_000, description="text")]


@spec
class Errors:
    """Cross-validated errors of a fit, in percent (coverage90 as a fraction)."""

    mape: Annotated[float, real(0.0, 1e6)]
    median: Annotated[float, real(0.0, 1e6)]
    p90: Annotated[float, real(0.0, 1e6)]
    bias: Annotated[float, real(-100.0, 1e6)]
    coverage90: Annotated[float, real(0.0, 1.0)]


@spec
class KernelModel:
    """One fitted kernel family."""

    op: Text
    direction: Text
    form: Text
    parameters: dict[str, float]
    standard_errors: dict[str, float] = Field(default_factory=dict)
    domain: dict[str, list[float]] = Field(default_factory=dict)
    n_train: Annotated[int, whole(0, 10_000_000)]
    n_test: Annotated[int, whole(0, 10_000_000)]
    cross_validation: Errors | None = None
    log_residual_quantiles: dict[str, float] = Field(default_factory=dict)
    status: Literal["fitted", "scaled", "datasheet"]
    source: Text


@spec
class Memory:
    """Device memory beside the tensors of a step, in bytes, and the ratio of reserved to allocated memory.

    `workspace_bytes` (of matrix products) are allocated, context and communicators are not.
    """

    context_bytes: Annotated[float, real(0.0, 1e11, "B")]
    communicator_bytes: Annotated[float, real(0.0, 1e11, "B")]
    workspace_bytes: Annotated[float, real(0.0, 1e10, "B")]
    reserved_over_allocated: Annotated[float, real(1.0, 3.0)]
    reserved_sigma_log: Annotated[float, real(0.0, 1.0)]
    allocated_sigma_log: Annotated[float, real(0.0, 1.0)]
    source: Text


@spec
class Profile:
    """Everything measured or derived about one device, as `profile.json` holds it.

    `kernel_sigma_log` and `scaling_sigma_log` are standard deviations of log time: of a step's summed kernels, and
    of carrying figures over from the base device. How runs differ beyond that is the run level's (`run_level`).
    """

    schema_version: Literal[1]
    name: Text
    method: Text
    date: Text
    base: str | None = None
    estimate: bool
    models: list[KernelModel]
    collectives: dict[str, float]
    collectives_source: Text
    memory: Memory
    kernel_sigma_log: Annotated[float, real(0.0, 2.0)]
    scaling_sigma_log: Annotated[float, real(0.0, 2.0)]
    uncertainty_source: Text
    contention: list[Contention] = Field(default_factory=list)

    def __post_init__(self) -> None:
        held = {(m.op, m.direction): m for m in self.models}
        for key, form in kernels.KERNELS.items():
            if key not in held:
                raise InputError("models", sorted("/".join(k) for k in held), f"must hold {'/'.join(key)}")
            if held[key].form != form:
                raise InputError(f"models.{'/'.join(key)}.form", held[key].form, form)
            _require(f"models.{'/'.join(key)}.parameters", held[key].parameters, kernels.FORMS[form].parameters)
        _require("collectives", {k: v for k, v in self.collectives.items() if k not in OPTIONAL}, PARAMETERS)
        further = OPTIONAL | self.collectives
        _require("collectives", further, tuple(further))

    @property
    def values(self) -> dict[str, float]:
        """Symbol name -> number for every fitted parameter."""
        known = [m for m in self.models if (m.op, m.direction) in kernels.KERNELS]
        return (
            OPTIONAL
            | self.collectives
            | {kernels.parameter(m.op, m.direction, k): v for m in known for k, v in m.parameters.items()}
        )

    @staticmethod
    def interval80(value: float, sigma_log: float) -> tuple[float, float]:
        """Return the central 80 % interval of a log-normal quantity with median `value`."""
        factor = exp(Z80 * sigma_log)
        return value / factor, value * factor


MAY_BE_ZERO = ("t0", "m0", "n0", "k0", "s0", "r0", "c0", "intra_alpha", "intra_alpha_rank", "inter_alpha", *OPTIONAL)


def _require(path: str, held: dict[str, float], wanted: tuple[str, ...]) -> None:
    if sorted(held) != sorted(wanted):
        raise InputError(path, sorted(held), "exactly " + ", ".join(wanted))
    for name, value in held.items():
        if not 0 <= value < 1e18 or (value == 0 and name not in MAY_BE_ZERO):
            raise InputError(f"{path}.{name}", value, "a number from 0 to 1e18, rates and efficiencies above 0")


CARRY_SIGMA_LOG = 0.344816
"""Of carrying a profile by datasheet ratios alone: RMS log error of B200's GEMMs predicted from A100 in that way
(`scaling_sigma_log` of the profiles of V100 and A10G)."""


def derived_profile(target: Device) -> Profile:
    """Return the profile of a device that nobody measured: that of `like`, or of the nearest in the catalog, moved.

    Rates move by the ratio of 16-bit peaks, bandwidths by that of memory bandwidths; collectives are those of the
    nearest device with the same kind of links. An estimate, its error widened by `CARRY_SIGMA_LOG`.
    """
    base = device(target.like) if target.like else nearest(target, devices.values())
    links = base if base.intra_node == target.intra_node else nearest(target, devices.values())
    by = ratios(base, target)
    how = (
        f"carried over from {base.name} ({'stated' if target.like else 'nearest in the catalog'}): compute rate x "
        f"{by.compute:.4g}, bandwidth x {by.bandwidth:.4g}, by the numbers of the device file"
    )
    why = "RMS log error of GEMMs of b200 predicted from a100-pcie-80gb by datasheet ratios"
    move = Move(by, CARRY_SIGMA_LOG, how, why)
    return carried(load_profile(base.name), target.name, move, load_profile(links.name))


@lru_cache
def _shipped_names() -> frozenset[str]:
    return frozenset(names("profiles"))


@lru_cache
def _shipped(name: str) -> Profile:
    """Return a profile of the catalog, which does not change while the program runs."""
    path = folder("profiles") / name / "profile.json"
    return read(Profile, load_mapping(Path(str(path))), f"{name}/profile.json")


def load_profile(name: str) -> Profile:
    """Return the profile of a catalog device, the one in the folder `name`, or that derived for a device file.

    Raises:
        InputError: no such profile, or a field of it is wrong.
    """
    if name in _shipped_names():
        return _shipped(name)
    if is_folder(Path(name)) and (Path(name) / "profile.json").is_file():
        raw = load_mapping(Path(name) / "profile.json")
    elif is_device_file(name):
        return derived_profile(device(name))
    elif MIXED in name:
        raise InputError("cluster.groups", name, "one device: each of the cluster's `members` has its own profile")
    else:
        raise InputError(
            "cluster.profile", name, f"a folder with profile.json or one of {', '.join(names('profiles'))}"
        )
    return read(Profile, raw, f"{name}/profile.json")
