"""The machines: which devices, how many, and how they are wired."""

from collections.abc import Callable
from dataclasses import field, fields, replace
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from sim.catalog import meant
from sim.specs.arguments import checked
from sim.specs.catalog import device
from sim.specs.device import HOST_EFFICIENCY, Device, Rate, check_domain
from sim.specs.fields import DERIVED, InputError, read, real, spec, whole
from sim.units import gigabytes, si

DeviceName = Annotated[
    str,
    AfterValidator(lambda name: meant("devices", name)),
    Field(description="a device of the catalog or the path of a device file"),
]
ProfileName = Annotated[str, Field(description="a catalog profile or a folder with profile.json")]


@spec
class Links:
    """Rates of one direction. A node's `inter` rate is shared by its devices.

    Left out, `intra` and `inter` come from the device's usual server, and `latency_s` from the profile;
    `host_bytes_per_s` is what copies between one device and host memory really reach, by default the device's peak
    times `HOST_EFFICIENCY`; `in_switch_reduction` says whether the switch inside a node reduces (NVLink SHARP, NCCL's
    NVLS: it helps all-reduce only), by default where the profile knows how fast it does. Leaf switches join
    `rail_nodes` nodes at the nodes' full rate (left out: all nodes); above them the fabric carries
    1 / `oversubscription` of it.

    Raises:
        InputError: a number is out of range, or `oversubscription` is given without `rail_nodes`.
    """

    intra_bytes_per_s: Annotated[float, real(1e6, 1e14, "B/s")] = DERIVED
    inter_bytes_per_s_per_node: Annotated[float, real(1e6, 1e14, "B/s")] = DERIVED
    latency_s: Annotated[float, real(0.0, 1.0, "s")] = DERIVED
    host_bytes_per_s: Annotated[float, real(1e6, 1e14, "B/s")] = DERIVED
    in_switch_reduction: bool | None = None
    oversubscription: Annotated[float, real(1.0, 1e3)] = 1.0
    rail_nodes: Annotated[int | None, whole(1, 100_000)] = None

    def __post_init__(self) -> None:
        if self.oversubscription > 1 and self.rail_nodes is None:
            raise InputError("rail_nodes", None, "required with oversubscription above 1: nodes under one leaf switch")


@spec
class Multipliers:
    """What-if factors on rates of every device that is otherwise as measured; 1 changes nothing.

    `clock`: on the rates of matrix products and attention, and on the peak that utilisation is measured against;
    `memory_rate`: on the bandwidth that all other kernels and the optimizer see. Neither changes launching, links or
    power. Memory, price and links have fields of their own in `Cluster`.

    Raises:
        InputError: a factor is out of range.
    """

    clock: Annotated[float, real(0.25, 4.0)] = 1.0
    memory_rate: Annotated[float, real(0.25, 4.0)] = 1.0


@spec
class NodeGroup:
    """`nodes` servers of one device in a cluster of several; what is left out is as for `Cluster`."""

    device: DeviceName
    nodes: Annotated[int, whole(1, 100_000)] = 1
    gpus_per_node: Annotated[int, whole(1, 72)] = DERIVED
    profile: ProfileName = DERIVED
    usd_per_gpu_hour: Annotated[float, real(0.0, 1e4, "USD")] = DERIVED
    memory_bytes: Annotated[float, real(1e6, 1e14, "B")] = DERIVED


ASSUMED: dict[str, Callable[[float], str]] = {
    "gpus_per_node": str,
    "domain_gpus": str,
    "usd_per_gpu_hour": lambda usd: f"{usd:.2f} USD",
    "memory_bytes": gigabytes,
}
MIXED = " + "
"""Between the names of several devices."""


@spec
class Cluster:
    """`nodes` servers of `gpus_per_node` devices each, or `groups` of servers with devices of their own.

    `domain_gpus` devices reach each other over the fast links: those of a node, of several nodes (more than
    `gpus_per_node`: NVL72) or of a part of one (fewer), never of two groups. With groups, `device` and `profile` list
    the groups' names, `memory_bytes` is the smallest device's and the price the mean over devices; what is true of one
    group only is asked of `members`.

    Raises:
        InputError: the device is neither in the catalog nor a file, a number is out of range, groups have nodes of
            different sizes, or something is given that the groups contradict.
    """

    device: DeviceName = DERIVED
    nodes: Annotated[int, whole(1, 100_000)] = DERIVED
    gpus_per_node: Annotated[int, whole(1, 72)] = DERIVED
    domain_gpus: Annotated[int, whole(1, 1_152)] = DERIVED
    links: Links = DERIVED
    profile: ProfileName = DERIVED
    usd_per_gpu_hour: Annotated[float, real(0.0, 1e4, "USD")] = DERIVED
    memory_bytes: Annotated[float, real(1e6, 1e14, "B")] = DERIVED
    groups: tuple[NodeGroup, ...] = ()
    multipliers: Multipliers = Multipliers()
    assumptions: tuple[str, ...] = field(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        if self.groups:
            self._from_groups()
        else:
            self._from_device()
        check_domain(self.domain_gpus, self.gpus_per_node)

    def _from_device(self) -> None:
        if getattr(self, "device") is None:  # noqa: B009 - declared text, None when left out
            raise InputError("device", None, "required: a device of the catalog or the path of a device file")
        found = device(self.device)
        price = found.usd_per_gpu_hour
        given = self.links or Links()
        links = replace(
            given,
            intra_bytes_per_s=given.intra_bytes_per_s or found.intra_bytes_per_s.value,
            inter_bytes_per_s_per_node=given.inter_bytes_per_s_per_node or found.inter_bytes_per_s_per_node.value,
        )
        node = self.gpus_per_node or found.gpus_per_node
        usual = {
            "gpus_per_node": node,
            "domain_gpus": found.domain_of(node),
            "profile": self.device,
            "usd_per_gpu_hour": price.value if price else None,
            "memory_bytes": found.memory_bytes.value,
        }
        assumed = [
            f"cluster.{k} = {ASSUMED[k](v)} (the device's usual server)"
            for k, v in usual.items()
            if getattr(self, k) is None and isinstance(v, int | float) and (k, v) != ("domain_gpus", node)
        ]
        assumed += [
            f"cluster.links.{k} = {si(getattr(links, k), 'B/s')} (the device's usual server)"
            for k in ("intra_bytes_per_s", "inter_bytes_per_s_per_node")
            if getattr(given, k) is None
        ]
        assumed += [
            f"cluster.multipliers.{f.name} = {getattr(self.multipliers, f.name):g} (what-if, not measured)"
            for f in fields(self.multipliers)
            if getattr(self.multipliers, f.name) != 1
        ]
        self._fill({"nodes": 1, "links": links} | usual)
        object.__setattr__(self, "links", links)
        object.__setattr__(self, "assumptions", tuple(assumed))

    def _from_groups(self) -> None:
        members = self.members
        sizes = sorted({m.gpus_per_node for m in members})
        if len(sizes) > 1:
            raise InputError("groups", sizes, "one gpus_per_node in all groups")
        prices = [m.usd_per_hour for m in members]
        gpus = sum(m.gpus for m in members)
        said = {
            "device": MIXED.join(dict.fromkeys(m.device for m in members)),
            "nodes": sum(m.nodes for m in members),
            "gpus_per_node": sizes[0],
            "domain_gpus": min(m.domain_gpus for m in members),
            "profile": MIXED.join(dict.fromkeys(m.profile for m in members)),
            "usd_per_gpu_hour": None if None in prices else sum(p for p in prices if p is not None) / gpus,
            "memory_bytes": min(m.memory_bytes for m in members),
        }
        for key, value in said.items():
            if getattr(self, key) not in (None, value):
                allowed = "left out: each group has its own" if value is None else f"left out: the groups say {value}"
                raise InputError(key, getattr(self, key), allowed)
        self._fill(said | {"links": Links()})
        notes = (f"{m.device}: {text}" for m in members for text in m.assumptions)
        object.__setattr__(self, "assumptions", tuple(dict.fromkeys(notes)))

    def _fill(self, values: dict[str, Any]) -> None:
        for key, value in values.items():
            if getattr(self, key) is None:
                object.__setattr__(self, key, value)

    @classmethod
    @checked
    def of(cls, device: str | None = None, nodes: int | None = None, **given: object) -> "Cluster":
        """Return a cluster of catalog devices, or of the device in a file of the user's.

        `Cluster.of("h100-sxm-80gb", nodes=16)`;
        `Cluster.of(groups=[{"device": "h100-sxm-80gb", "nodes": 4}, {"device": "a100-sxm-80gb", "nodes": 8}])`.
        """
        groups = given.pop("groups", ())
        if not isinstance(groups, list | tuple):
            raise InputError("groups", groups, "a list of groups, each with device and nodes")
        grouped = tuple(
            g if isinstance(g, NodeGroup) else read(NodeGroup, g, f"groups.{i}") for i, g in enumerate(groups)
        )
        return cls(device=device, nodes=nodes, groups=grouped, **given)  # type: ignore[arg-type]

    @property
    def members(self) -> tuple["Cluster", ...]:
        """The clusters of one device each, in the order of ranks; a cluster without groups is its only member."""
        if not self.groups:
            return (self,)
        made = []
        for index, group in enumerate(self.groups):
            stated = {f.name: getattr(group, f.name) for f in fields(group)}
            try:
                made.append(Cluster(links=self.links, multipliers=self.multipliers, **stated))
            except InputError as error:
                raise error.under(f"groups.{index}") from None
        return tuple(made)

    @property
    def gpus(self) -> int:
        """All devices."""
        return self.nodes * self.gpus_per_node

    def peak_flop_per_s(self, rate: Rate) -> float:
        """Return the peak of all devices that utilisation is measured against (`Device.peak_flop_per_s`)."""
        return sum(m.hardware.peak_flop_per_s(rate) * m.multipliers.clock * m.gpus for m in self.members)

    @property
    def usd_per_hour(self) -> float | None:
        """Price of all devices in USD an hour; None where a device's price is not known."""
        price: float | None = self.usd_per_gpu_hour
        return None if price is None else price * self.gpus

    @property
    def host_bytes_per_s(self) -> float | None:
        """What copies between one device and host memory reach, one direction; None where it is not known."""
        stated: float | None = self.links.host_bytes_per_s
        peak = self.hardware.host_bytes_per_s
        return stated or (peak.value * HOST_EFFICIENCY.value if peak else None)

    @property
    def hardware(self) -> Device:
        """The device as the catalog or the user's file describes it; raises InputError for several devices."""
        kinds = {group.device for group in self.groups} or {self.device}
        if len(kinds) > 1:
            raise InputError("cluster.groups", self.device, "groups of one device here: ask each of `members`")
        return device(self.device)
