"""The machines: which device, how many, and how they are wired."""

from collections.abc import Callable
from dataclasses import field, replace
from typing import Annotated

from pydantic import Field

from sim.specs.arguments import checked
from sim.specs.catalog import device
from sim.specs.device import Device
from sim.specs.fields import DERIVED, read, real, spec, whole
from sim.units import gigabytes, si


@spec
class Links:
    """Rates of one direction. A node's `inter` rate is shared by its devices.

    Left out, `intra` and `inter` come from the device's usual server, and `latency_s` from the profile.
    """

    intra_bytes_per_s: Annotated[float, real(1e6, 1e14, "B/s")] = DERIVED
    inter_bytes_per_s_per_node: Annotated[float, real(1e6, 1e14, "B/s")] = DERIVED
    latency_s: Annotated[float, real(0.0, 1.0, "s")] = DERIVED


ASSUMED: dict[str, Callable[[float], str]] = {
    "gpus_per_node": str,
    "usd_per_gpu_hour": lambda usd: f"{usd:.2f} USD",
    "memory_bytes": gigabytes,
}


@spec
class Cluster:
    """`nodes` servers of `gpus_per_node` devices each.

    Raises:
        InputError: the device is not in the catalog, or a number is out of range.
    """

    device: Annotated[str, Field(description="a device of the catalog")]
    nodes: Annotated[int, whole(1, 100_000)] = 1
    gpus_per_node: Annotated[int, whole(1, 72)] = DERIVED
    links: Links = DERIVED
    profile: Annotated[str, Field(description="a catalog profile or a folder with profile.json")] = DERIVED
    usd_per_gpu_hour: Annotated[float, real(0.0, 1e4, "USD")] = DERIVED
    memory_bytes: Annotated[float, real(1e6, 1e14, "B")] = DERIVED
    assumptions: tuple[str, ...] = field(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        found = device(self.device)
        price = found.usd_per_gpu_hour
        given = self.links or Links()
        links = replace(
            given,
            intra_bytes_per_s=given.intra_bytes_per_s or found.intra_bytes_per_s.value,
            inter_bytes_per_s_per_node=given.inter_bytes_per_s_per_node or found.inter_bytes_per_s_per_node.value,
        )
        usual = {
            "gpus_per_node": found.gpus_per_node,
            "profile": self.device,
            "usd_per_gpu_hour": price.value if price else None,
            "memory_bytes": found.memory_bytes.value,
        }
        assumed = [
            f"cluster.{k} = {ASSUMED[k](v)} (the device's usual server)"
            for k, v in usual.items()
            if getattr(self, k) is None and isinstance(v, int | float)
        ]
        assumed += [
            f"cluster.links.{k} = {si(getattr(links, k), 'B/s')} (the device's usual server)"
            for k in ("intra_bytes_per_s", "inter_bytes_per_s_per_node")
            if getattr(given, k) is None
        ]
        for key, value in usual.items():
            if getattr(self, key) is None:
                object.__setattr__(self, key, value)
        object.__setattr__(self, "links", links)
        object.__setattr__(self, "assumptions", tuple(assumed))

    @classmethod
    @checked
    def of(cls, device: str, nodes: int = 1, **given: object) -> "Cluster":
        """Return a cluster of catalog devices: `Cluster.of("h100-sxm-80gb", nodes=16)`."""
        links = given.pop("links", None)
        wired = read(Links, links, "links") if isinstance(links, dict) else links
        return cls(device=device, nodes=nodes, links=wired, **given)  # type: ignore[arg-type]

    @property
    def gpus(self) -> int:
        """All devices."""
        return self.nodes * self.gpus_per_node

    @property
    def hardware(self) -> Device:
        """The catalog entry of the device."""
        return device(self.device)
