"""Reader of profiles: the fitted numbers of one device, their errors and where they come from."""

import json
from dataclasses import asdict, field, fields, replace
from functools import cached_property, lru_cache
from math import exp
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from sim.catalog import folder, names
from sim.costs import kernels
from sim.costs.carry import Move, carried, nearest, ratios, same_chip
from sim.costs.collectives import OPTIONAL, PARAMETERS
from sim.costs.contention import Contention, each_shape_once
from sim.costs.fitted import Z80, Amount, Errors, KernelModel, Name, SizeBin, Text, Word, each_once, require, six_digits
from sim.costs.learned import FILE as LEARNED
from sim.costs.learned import Learned, profile_hash, read_learned
from sim.specs.catalog import device, devices, is_device_file
from sim.specs.cluster import MIXED
from sim.specs.device import Device
from sim.specs.fields import InputError, read, real, spec, whole
from sim.specs.files import is_folder, load_mapping, state
from sim.specs.plan import ProductKernel
from sim.units import si

AT_MOST_50 = Field(max_length=50, description="at most 50 entries")

__all__ = [
    "Z80",
    "Errors",
    "KernelModel",
    "Profile",
    "SizeBin",
    "load_profile",
    "profile_name",
    "profile_text",
    "read_profile",
]


@spec
class Memory:
    """Device memory beside the tensors of a step, in bytes, and the ratio of reserved to allocated memory.

    `workspace_bytes` (of matrix products) are allocated, context and communicators are not. `large_segment_bytes`: what
    the caching allocator takes at least for requests above 1 MiB (20 MiB unless a build or a setting says otherwise).
    """

    context_bytes: Annotated[float, real(0.0, 1e11, "B")]
    communicator_bytes: Annotated[float, real(0.0, 1e11, "B")]
    workspace_bytes: Annotated[float, real(0.0, 1e10, "B")]
    reserved_over_allocated: Annotated[float, real(1.0, 3.0)]
    reserved_sigma_log: Annotated[float, real(0.0, 1.0)]
    allocated_sigma_log: Annotated[float, real(0.0, 1.0)]
    source: Text
    large_segment_bytes: Annotated[int, whole(10 * 2**20, 2**40, "B")] = 20 * 2**20


@spec
class Fingerprint:
    """The device that was measured and what ran on it; 0 or empty: not known.

    `cores` counts cores of a CPU or multiprocessors of a GPU; versions: torch, cuda, cudnn, cublas, triton, python;
    clocks: sm_hz, memory_hz.
    """

    vendor: Word = ""
    name: Word = ""
    cores: Annotated[int, whole(0, 1_000_000)] = 0
    l2_bytes: Annotated[float, real(0.0, 1e12, "B")] = 0.0
    memory_bytes: Annotated[float, real(0.0, 1e15, "B")] = 0.0
    driver: Word = ""
    versions: Annotated[dict[Name, Word], AT_MOST_50] = Field(default_factory=dict)
    clocks: Annotated[dict[Name, Amount], AT_MOST_50] = Field(default_factory=dict)
    power_cap_w: Annotated[float, real(0.0, 1e5, "W")] = 0.0
    threads: Annotated[int, whole(0, 100_000)] = 0


DIRECTIONS = ("forward", "dgrad", "wgrad")
MATRIX = tuple(kernels.parameter(op, d, "rate") for op in ("gemm", "convolution") for d in DIRECTIONS)
ATTENTION = tuple(kernels.parameter("attention", d, "rate") for d in kernels.BOTH)
CLOCKED = (*MATRIX, *ATTENTION)
"""Symbols of rates in proportion to the clock of the compute units."""

OF_MEMORY = "_bandwidth"
"""End of the names of rates in proportion to the memory's."""

PRODUCTS = tuple(key for key in kernels.KERNELS if key[0] == "gemm")
"""The matrix products of a plan, whichever implementation runs them."""

LARGE = 4096
"""Rows, columns and inner size of the product whose rate says how fast an implementation is."""

KERNELS_A_LAYER, POINTWISE_A_LAYER = 31, 11
"""Operations of torch, forward and backward, in a layer of the model by which `issue_s` is measured, and how many of
them are point-wise."""

ADAM_TENSORS = 8
"""Tensors of an optimizer step that is timed as a kernel."""

VERSIONS = (1, 2)
MOST_MODELS = 300


@spec
class Profile:
    """Everything measured or derived about one device, as `profile.json` holds it.

    `kernel_sigma_log` and `scaling_sigma_log` are standard deviations of log time: of a step's summed kernels, and
    of carrying figures over from the base device. How runs differ beyond that is the run level's (`run_level`).
    Version 2 adds: who was measured (`fingerprint`, `session`), the `dtype` whose models are read (where several
    models of one kernel have it, the first), `units` (by quantity, as text), `contention`, `issue_s` (seconds in
    which a layer's kernels, forward and backward, are issued; of a host processor, what that takes beside them; 0: not
    measured), `ends_issue_s` (the same of embedding, head and loss), `pointwise_issue_s` and `product_issue_s` (on a
    host processor, the same of one point-wise operation and of any other, which modules call; left out: not measured),
    `convolution_issue_s` (of a convolution, forward or one gradient; left out: as any other),
    `full_issue_s`, `selective_issue_s` and `tempo_issue_s` (what a layer's kernels take longer to issue with full and
    selective recompute and with Tempo's norms and GELU; left out: a third of `issue_s`, a forward pass, and nothing),
    `issue_of` (the profile whose hosts' issue times these are; left out: its own), `collectives_links` (bytes/s of
    the links that logs of the user's cluster were measured on, of which `collectives` hold shares),
    `beside` (of a host processor's `memory`-bound kernels and matrix `product`s, what every other core that runs the
    same adds to their time, relative to alone), and what `KernelModel` says of intervals.
    `learned` is no part of the file: corrections from executed plans, which lie beside it.
    """

    schema_version: Annotated[int, whole(min(VERSIONS), max(VERSIONS))]
    name: Text
    method: Text
    date: Text
    base: str | None = None
    estimate: bool
    models: Annotated[
        list[KernelModel], Field(max_length=MOST_MODELS, description=f"a list of at most {MOST_MODELS} models")
    ]
    collectives: dict[Name, Amount]
    collectives_source: Text
    memory: Memory
    kernel_sigma_log: Annotated[float, real(0.0, 2.0)]
    scaling_sigma_log: Annotated[float, real(0.0, 2.0)]
    uncertainty_source: Text
    fingerprint: Fingerprint | None = None
    session: Word = ""
    dtype: Word = ""
    units: Annotated[dict[Name, Word], AT_MOST_50] = Field(default_factory=dict)
    issue_s: Annotated[float, real(0.0, 1.0, "s")] = 0.0
    ends_issue_s: Annotated[float, real(0.0, 1.0, "s")] = 0.0
    pointwise_issue_s: Annotated[float, real(0.0, 1.0, "s")] | None = None
    product_issue_s: Annotated[float, real(0.0, 1.0, "s")] | None = None
    convolution_issue_s: Annotated[float, real(0.0, 1.0, "s")] | None = None
    full_issue_s: Annotated[float, real(0.0, 1.0, "s")] | None = None
    selective_issue_s: Annotated[float, real(0.0, 1.0, "s")] | None = None
    tempo_issue_s: Annotated[float, real(0.0, 1.0, "s")] | None = None
    issue_of: Word = ""
    collectives_links: dict[Literal["intra_bytes_per_s", "inter_bytes_per_s_per_node"], Amount] = Field(
        default_factory=dict
    )
    contention: Annotated[list[Contention], AT_MOST_50] = Field(default_factory=list)
    beside: dict[Literal["memory", "product"], Annotated[float, real(0.0, 100.0)]] = Field(default_factory=dict)
    learned: Learned | None = field(default=None, init=False, compare=False)

    def __post_init__(self) -> None:
        each_once(self.models)
        each_shape_once(self.contention)
        held = self.read
        for key, form in kernels.KERNELS.items():
            place = f"models.{'/'.join(key)}"
            if key not in held:
                known = sorted({"/".join(m.key) for m in self.models})
                raise InputError(
                    "models", known, f"must hold {'/'.join(key)}{' in ' + self.dtype if self.dtype else ''}"
                )
            if held[key].form != form:
                raise InputError(f"{place}.form", held[key].form, form)
        for key in kernels.FALLBACK.keys() & held.keys():
            wanted = kernels.form_of(*key).id
            if held[key].form != wanted:
                raise InputError(f"models.{'/'.join(key)}.form", held[key].form, wanted)
        require("collectives", self.collectives, PARAMETERS, tuple(OPTIONAL))

    @property
    def issue(self) -> dict[str, float]:
        """The symbols of what issuing takes; of an operation that nobody measured, what those of a layer take each.

        A step of an optimizer that moves next to nothing is all issue, for each of its `ADAM_TENSORS` tensors as long.
        """
        each = self.issue_s / KERNELS_A_LAYER
        product = each if self.product_issue_s is None else self.product_issue_s
        adam = self.read.get(("adam", "any"))
        return {
            "tensor_issue_s": adam.parameters["t0"] / ADAM_TENSORS if adam else 0.0,
            "issue_s": self.issue_s,
            "ends_issue_s": self.ends_issue_s,
            "pointwise_issue_s": each if self.pointwise_issue_s is None else self.pointwise_issue_s,
            "product_issue_s": product,
            "convolution_issue_s": product if self.convolution_issue_s is None else self.convolution_issue_s,
            "full_issue_s": self.issue_s / 3 if self.full_issue_s is None else self.full_issue_s,
            "selective_issue_s": self.selective_issue_s or 0.0,
            "tempo_issue_s": self.tempo_issue_s or 0.0,
        }

    def with_issue_of(self, other: "Profile | None", times: float = 1.0) -> "Profile":
        """Return the profile with what hosts take to issue kernels from another, which is no matter of a device, or as
        many `times` as long; None: kernels are issued by something faster than PyTorch's Python."""
        whose = "" if other is None else other.name if times == 1 else f"{other.name}, x {times:g}"
        held: dict[str, Any] = {f.name: f.default for f in fields(self) if "issue_s" in f.name}
        if other:
            found = {name: getattr(other, name) for name in held}
            held = {name: six_digits(value * times) if value else value for name, value in found.items()}
        return replace(self, issue_of=whose, **held)

    @property
    def measured(self) -> bool:
        """Whether the numbers come from a calibration of the very device, not from published figures."""
        return bool(self.session) and not self.estimate

    @cached_property
    def read(self) -> dict[tuple[str, str], KernelModel]:
        """The model of each kernel that the simulator reads, by (op, direction)."""
        held: dict[tuple[str, str], KernelModel] = {}
        for model in self._of_dtype:
            held.setdefault(model.key, model)
        return held

    @property
    def _of_dtype(self) -> list[KernelModel]:
        return [model for model in self.models if model.dtype in ("", self.dtype) or not self.dtype]

    @cached_property
    def products(self) -> dict[str, dict[tuple[str, str], KernelModel]]:
        """The models of matrix products by whose they are, as `Plan.product_kernel` names it, and (op, direction)."""
        held: dict[str, dict[tuple[str, str], KernelModel]] = {}
        for model in self._of_dtype:
            if model.key in PRODUCTS:
                held.setdefault(_whose(model), {}).setdefault(model.key, model)
        return held

    @cached_property
    def product_rates(self) -> dict[str, float]:
        """FLOP/s inside a step of a forward product of `LARGE` in all sizes, by whose it is."""
        shape = {"m": LARGE, "n": LARGE, "k": LARGE, "batch": 1}
        element = 4 if self.dtype == "float32" else kernels.BYTES_16BIT
        return {
            whose: kernels.size_of(shape) / self.products[whose][PRODUCTS[0]].seconds({**shape, "element": element})
            for whose in get_args(ProductKernel)
            if PRODUCTS[0] in self.products.get(whose, {})
        }

    @property
    def disturbed_words(self) -> str:
        """Which kernels rest on samples of a disturbed machine; empty where none does."""
        some = [model for model in self.models if model.n_disturbed and model.n_train]
        if not some:
            return ""
        taken, of = sum(model.n_disturbed or 0 for model in some), sum(model.n_train for model in some)
        names = list(dict.fromkeys(model.op for model in some))
        return f"{taken} of {of} samples of {', '.join(names)} were taken while others disturbed the machine"

    @property
    def product_words(self) -> str:
        """Whose products it has timed and how fast they are: "products of 4096 x 4096 x 4096: library 113 GFLOP/s"."""
        rates = (f"{whose} {si(rate, 'FLOP/s')}" for whose, rate in self.product_rates.items())
        return f"products of {' x '.join([str(LARGE)] * 3)}: {', '.join(rates)}"

    def with_products(self, whose: str) -> "Profile":
        """Return the profile as a plan with this `product_kernel` reads it: the models of these products stand first.

        What executed plans have taught it, they have taught it of the library's products: of others it is off.

        Raises:
            InputError: it has not timed these products in all directions.
        """
        models = self.products.get(whose, {})
        if len(models) < len(PRODUCTS):
            able = " or ".join(name for name, held in self.products.items() if len(held) == len(PRODUCTS))
            lacking = ", ".join(direction for op, direction in PRODUCTS if (op, direction) not in models)
            kind = f" in {self.dtype}" if self.dtype else ""
            allowed = f"{able or 'none'}: profile {self.name} has timed no {whose} products ({lacking}){kind}"
            raise InputError("plan.product_kernel", whose, allowed)
        if all(self.read[key] is model for key, model in models.items()):
            return self
        made = replace(self, models=sorted(self.models, key=lambda m: m.key not in PRODUCTS or _whose(m) != whose))
        learned = self.learned
        if learned and whose != "library":
            why = f"they were learned from plans with the library's products, this one has {whose} ones"
            learned = replace(learned, off=learned.off or why)
        object.__setattr__(made, "learned", learned)
        return made

    @cached_property
    def values(self) -> dict[str, float]:
        """Symbol name -> number for every fitted parameter; terms that a model leaves out are switched off."""
        return (
            OPTIONAL
            | self.collectives
            | {
                kernels.parameter(*key, name): value
                for key in (*kernels.KERNELS, *kernels.FALLBACK)
                for name, value in kernels.form_of(*key)
                .complete(kernels.in_a_step(self.model_of(key).parameters))
                .items()
            }
        )

    def faster(self, clock: float, memory_rate: float) -> dict[str, float]:
        """Return `values` with the rates of matrix products and attention times `clock`, what they sum up in turn over
        it, bandwidths times `memory_rate`."""
        values = self.values
        clocked = {name: values[name] * clock for name in CLOCKED if name in values}
        clocked |= {name: value / clock for name, value in values.items() if name.endswith("_serial")}
        return values | clocked | {name: v * memory_rate for name, v in values.items() if name.endswith(OF_MEMORY)}

    def model_of(self, key: tuple[str, str]) -> KernelModel:
        """Return the model that times the kernel `key`: its own, or that of the kernel it falls back on."""
        return self.read[key] if key in self.read else self.read[kernels.FALLBACK[key]]

    @staticmethod
    def interval80(value: float, sigma_log: float) -> tuple[float, float]:
        """Return the central 80 % interval of a log-normal quantity with median `value`; of one below zero, which is
        what a factor saves, that of its size."""
        factor = exp(Z80 * sigma_log)
        low, high = sorted((value / factor, value * factor))
        return low, high


def _whose(product: KernelModel) -> str:
    """Return the `Plan.product_kernel` of a product's model: what has no name there is a library's."""
    return product.implementation if product.implementation in get_args(ProductKernel) else "library"


def read_profile(raw: dict[str, Any], path: str) -> Profile:
    """Return the profile in `raw` (plain data of the file `path`).

    Raises:
        InputError: a version from the future (told first, as nothing else need be right then), or a wrong field.
    """
    version = raw.get("schema_version")
    if isinstance(version, int) and version > max(VERSIONS):
        allowed = f"{' or '.join(map(str, VERSIONS))}: a newer version of trainsim wrote this profile"
        raise InputError(f"{path}.schema_version", version, allowed)
    return read(Profile, raw, path)


def profile_text(profile: Profile) -> str:
    """Return a profile as its file states it: JSON without the keys that hold nothing."""
    return json.dumps(_stated(asdict(profile)), indent=1, allow_nan=False) + "\n"


def _stated(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _stated(v) for k, v in value.items() if v is not None and v not in ({}, [], "")}
    return [_stated(v) for v in value] if isinstance(value, list) else value


CARRY_SIGMA_LOG = 0.378933
"""Of carrying a profile by datasheet ratios alone: RMS log error of B200's GEMMs predicted from A100 in that way
(`scaling_sigma_log` of the profiles of V100 and A10G)."""


def derived_profile(target: Device) -> Profile:
    """Return the profile of a device that nobody measured: that of `like`, or of the nearest in the catalog, moved.

    Rates move by the ratio of 16-bit peaks, bandwidths by that of memory bandwidths; collectives are those of the
    nearest device with the same kind of links. What slows what down is told of a device that is stated to be alike
    alone. An estimate, its error widened by `CARRY_SIGMA_LOG`; but a device that is stated to be alike and has the same
    chip has the profile of `like`, under that name.
    """
    known = [devices[name] for name in names("profiles") if name in devices]
    base = device(target.like) if target.like else nearest(target, known)
    links = base if base.intra_node == target.intra_node else nearest(target, known)
    held, of_links = load_profile(base.name), load_profile(links.name)
    if target.like and same_chip(base, target):
        source = f"as on {links.name}: {of_links.collectives_source}"
        return held if links is base else replace(held, collectives=of_links.collectives, collectives_source=source)
    by = ratios(base, target)
    how = (
        f"carried over from {base.name} ({'stated' if target.like else 'nearest in the catalog'}): compute rate x "
        f"{by.compute:.4g}, bandwidth x {by.bandwidth:.4g}, by the numbers of the device file"
    )
    why = "RMS log error of GEMMs of b200 predicted from a100-pcie-80gb by datasheet ratios"
    move = Move(by, CARRY_SIGMA_LOG, how, why)
    made = carried(held, target.name, move, of_links)
    return replace(made, contention=held.contention) if target.like else made


@lru_cache
def _shipped_names() -> frozenset[str]:
    return frozenset(names("profiles"))


@lru_cache
def _shipped(name: str) -> Profile:
    """Return a profile of the catalog, which does not change while the program runs."""
    path = folder("profiles") / name / "profile.json"
    return read_profile(load_mapping(Path(str(path))), f"{name}/profile.json")


@lru_cache
def _shipped_with(name: str, products: str) -> Profile:
    return _shipped(name).with_products(products)


def profile_name(folder: Path) -> str:
    """Return what `load_profile` knows a folder as: `./cpu` for one beside which the catalog has its own `cpu`."""
    return f"./{folder}" if str(folder) in _shipped_names() else str(folder)


def load_profile(name: str, products: str | None = None) -> Profile:
    """Return the profile of a catalog device, the one in the folder `name`, or that derived for a device file.

    products: the `product_kernel` of the plan that it is to time (`Profile.with_products`); None where no plan is
    timed.

    Raises:
        InputError: no such profile, a field of it is wrong, or it has not timed these products.
    """
    if name in _shipped_names():
        return _shipped(name) if products is None else _shipped_with(name, products)
    if is_folder(Path(name)) and (Path(name) / "profile.json").is_file():
        return _in_folder(name, products, state(Path(name) / "profile.json"), state(Path(name) / LEARNED))
    if is_device_file(name):
        return _derived(device(name), products)
    if MIXED in name:
        raise InputError("cluster.groups", name, "one device: each of the cluster's `members` has its own profile")
    if name in devices:
        allowed = f"a folder with profile.json: none is shipped for {name}, `trainsim calibrate` measures your own"
        raise InputError("cluster.profile", name, allowed)
    raise InputError("cluster.profile", name, f"a folder with profile.json or one of {', '.join(names('profiles'))}")


@lru_cache(maxsize=64)
def _in_folder(folder: str, products: str | None, profile: tuple[int, ...], learned: tuple[int, ...]) -> Profile:
    """Return the profile of a folder and what it has learned; files that have changed since are read again."""
    if products is not None:
        return _in_folder(folder, None, profile, learned).with_products(products)
    file = Path(folder) / "profile.json"
    try:
        raw = load_mapping(file)
    except InputError as error:  # a job names the folder, and has fields of the same names
        place = error.path if error.path == str(file) else f"{file}.{error.path}"
        raise InputError(place, error.value, error.allowed) from None
    found = read_profile(raw, f"{folder}/profile.json")
    object.__setattr__(found, "learned", read_learned(Path(folder), profile_hash(raw)))
    return found


@lru_cache(maxsize=64)
def _derived(target: Device, products: str | None) -> Profile:
    return derived_profile(target) if products is None else _derived(target, None).with_products(products)
