"""What tells one device under measurement from another, and the device as a file that jobs can name."""

import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from math import isfinite
from typing import Annotated, Any, Literal

import psutil
import torch
from pydantic import Field

from calibration.cuda import Cuda
from calibration.host import cache_bytes, cpu_name, loopback_bytes_per_s, most_clock_hz, present_clock_hz
from calibration.kernels.family import Machine
from sim.specs.catalog import device
from sim.specs.fields import InputError, real, spec, whole

Kind = Literal["cpu", "cuda"]
Text = Annotated[str, Field(min_length=1, max_length=400, description="text of 1 to 400 characters")]
Bytes = Annotated[int, whole(0, 10**16, "bytes")]


@spec
class Versions:
    """Versions of the software that runs the kernels; None where it is absent."""

    python: Text
    torch: Text
    cuda: Text | None = None
    cudnn: Text | None = None
    cublas: Text | None = None
    triton: Text | None = None


@spec
class Clocks:
    """Highest clocks in Hz of the cores or multiprocessors and of the memory; None where the OS does not say."""

    sm_hz: Annotated[float, real(0.0, 1e12, "Hz")] | None = None
    memory_hz: Annotated[float, real(0.0, 1e12, "Hz")] | None = None


@spec
class Fingerprint:
    """One device with its software: measurements are only put together where these agree.

    `cores` are a CPU's physical cores or a GPU's multiprocessors; `l2_bytes` is the last-level cache (0: the OS does
    not say); `threads` is how many threads of a CPU a kernel may use. Without `versions.cuda` it is a CPU.
    """

    vendor: Text
    name: Text
    cores: Annotated[int, whole(1, 100_000, "cores or multiprocessors")]
    l2_bytes: Bytes
    memory_bytes: Bytes
    driver: Text | None = None
    versions: Versions
    clocks: Clocks
    power_cap_w: Annotated[float, real(0.0, 1e6, "W")] | None = None
    threads: Annotated[int, whole(1, 100_000, "threads")] = 1

    @property
    def kind(self) -> Kind:
        """`cpu` or `cuda`."""
        return "cuda" if self.versions.cuda else "cpu"

    def plain(self) -> dict[str, Any]:
        """Return the fingerprint as JSON holds it: what is not known is left out."""
        return _known(asdict(self))

    def differences(self, other: "Fingerprint") -> list[str]:
        """Return the names of the fields in which two fingerprints differ."""
        return [f.name for f in fields(self) if getattr(self, f.name) != getattr(other, f.name)]


def _known(held: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _known(v) if isinstance(v, dict) else v for k, v in held.items() if v is not None}


def cpu_fingerprint(threads: int = 1) -> Fingerprint:
    """Return the fingerprint of this machine's CPU with kernels of `threads` threads."""
    vendor, name = cpu_name()
    return Fingerprint(
        vendor=vendor,
        name=name,
        cores=cores(),
        l2_bytes=max(cache_bytes().values(), default=0),
        memory_bytes=psutil.virtual_memory().total,
        driver=f"{platform.system()} {platform.release()}",
        versions=Versions(python=platform.python_version(), torch=str(torch.__version__)),
        clocks=Clocks(sm_hz=most_clock_hz()),
        threads=threads,
    )


def cuda_fingerprint(cuda: Cuda) -> Fingerprint:
    """Return the fingerprint of CUDA device 0."""
    sm_hz, memory_hz = cuda.most_clocks_hz
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return Fingerprint(
        vendor="AMD" if torch.version.hip else "NVIDIA",
        name=cuda.properties.name,
        cores=cuda.properties.multi_processor_count,
        l2_bytes=int(getattr(cuda.properties, "L2_cache_size", 0)),
        memory_bytes=cuda.memory_bytes,
        driver=cuda.driver,
        versions=Versions(
            python=platform.python_version(),
            torch=str(torch.__version__),
            cuda=torch.version.cuda or torch.version.hip,
            cudnn=str(cudnn) if cudnn else None,
            cublas=_installed("nvidia-cublas", "nvidia-cublas-cu12"),
            triton=_installed("triton"),
        ),
        clocks=Clocks(sm_hz=sm_hz, memory_hz=memory_hz),
        power_cap_w=cuda.power_cap_w,
    )


def _installed(*packages: str) -> str | None:
    """Return the version of the first of `packages` that is installed."""
    for package in packages:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return None


def cores() -> int:
    """Return the physical cores, logical ones where the OS does not tell them apart."""
    return psutil.cpu_count(logical=False) or psutil.cpu_count() or 1


SHARE = {"cpu": 0.25, "cuda": 0.8}
"""Part of all memory that one case may take: a CPU's is shared with everything else."""


def machine(held: Fingerprint) -> Machine:
    """Return the machine as kernel families see it."""
    return Machine(held.kind, SHARE[held.kind] * held.memory_bytes, held.threads)


@dataclass(frozen=True)
class Measured:
    """What samples say of a device: its highest rates in FLOP/s and bytes/s, each with the case that reached it."""

    flop_per_s: float
    flop_from: str
    bytes_per_s: float
    bytes_from: str


def highest_rates(rows: Iterable[Mapping[str, Any]], l2_bytes: float) -> Measured:
    """Return the highest rates among rows of `samples.parquet`.

    Bandwidth is taken from kernels that only stream (`STREAMING`; host copies use another bus and do not count) over at
    least four times the last-level cache, or the largest there is.

    Raises:
        InputError: no matrix product or no streaming kernel is among them.
    """
    held = [row for row in rows if isfinite(row["t_s"]) and row["t_s"] > 0]
    products = [row for row in held if row["op"] == "gemm"]
    moves = [row for row in held if row["op"] in STREAMING and row["bytes"] and row["direction"] not in ("h2d", "d2h")]
    if not products or not moves:
        missing = "gemm" if not products else "elementwise"
        raise InputError(
            "samples", sorted({row["op"] for row in held}), f"at least one sample of {missing}: give it more time"
        )
    enough = min(4 * l2_bytes, max(row["bytes"] for row in moves))
    fast = max(products, key=lambda row: row["flop"] / row["t_s"])
    wide = max((row for row in moves if row["bytes"] >= enough), key=lambda row: row["bytes"] / row["t_s"])
    return Measured(fast["flop"] / fast["t_s"], fast["id"], wide["bytes"] / wide["t_s"], wide["id"])


STREAMING = ("elementwise", "copy", "gelu", "swiglu", "residual", "dropout")


DRIVER_NAMES = {
    "NVIDIA A100-SXM4-40GB": "a100-sxm-40gb",
    "NVIDIA A100-SXM4-80GB": "a100-sxm-80gb",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
    "NVIDIA A10G": "a10g",
    "NVIDIA B200": "b200",
    "NVIDIA H100 80GB HBM3": "h100-sxm-80gb",
    "NVIDIA H100 NVL": "h100-nvl",
    "NVIDIA H100 PCIe": "h100-pcie-80gb",
    "NVIDIA H200": "h200-sxm-141gb",
    "NVIDIA H200 NVL": "h200-nvl",
    "NVIDIA L4": "l4",
    "Tesla T4": "t4",
    "Tesla V100-SXM2-16GB": "v100-sxm-16gb",
    "Tesla V100-SXM2-32GB": "v100-sxm-32gb",
}
"""What drivers call the devices of the catalog."""


def device_file(held: Fingerprint, measured: Measured, date: str) -> dict[str, Any]:
    """Return the own machine as the mapping of a device file (`sim.specs.Device`), a source beside every number.

    Of a device that the catalog knows, rates and links are the catalog's (so that MFU means what it does elsewhere);
    of any other they are the highest measured. What nothing measured or asked tells is an assumption, and says so.
    """
    asked = f"read from this machine, {date}"
    found = {"name": slug(held), "title": held.name, "vendor": held.vendor}
    known = DRIVER_NAMES.get(held.name)
    if known:
        return _known(asdict(device(known))) | found | _asked(held, asked)
    made = {
        **found,
        "peak_bf16_flop_per_s": _number(measured.flop_per_s, f"highest measured rate, {date}: {measured.flop_from}"),
        "memory_bytes_per_s": _number(measured.bytes_per_s, f"highest measured rate, {date}: {measured.bytes_from}"),
        "inter_bytes_per_s_per_node": _number(1.25e9, "assumption: one 10 Gb/s network card"),
        **{name: _number(0.0, UNKNOWN) for name in ("l2_bytes", "boost_hz", "power_w", "idle_power_w")},
    }
    return made | _asked(held, asked) | (_cpu(held, measured, asked) if held.kind == "cpu" else _gpu())


UNKNOWN = "not known: this machine does not tell"


def _asked(held: Fingerprint, asked: str) -> dict[str, Any]:
    """Return the numbers that the machine itself told."""
    told = {
        "sms": held.cores,
        "memory_bytes": held.memory_bytes,
        "l2_bytes": held.l2_bytes,
        "boost_hz": held.clocks.sm_hz,
        "power_w": held.power_cap_w,
    }
    return {name: _number(value, asked) for name, value in told.items() if value}


def slug(held: Fingerprint) -> str:
    """Return the device's name as files may hold it."""
    return re.sub(r"[^a-z0-9]+", "-", f"{held.kind} {held.name}".lower()).strip("-")[:64]


def _cpu(held: Fingerprint, measured: Measured, asked: str) -> dict[str, Any]:
    """Return what a CPU's file says otherwise: its devices are groups of `threads` cores with one process each."""
    devices = max(1, min(72, held.cores // held.threads))
    clock = held.clocks.sm_hz
    product = f"highest measured rate in fp32: {measured.flop_from}"
    return {
        "sms": _number(held.threads, "by definition: a device is as many cores as a kernel has threads"),
        "peak_fp32_flop_per_s": _number(measured.flop_per_s, product),
        "peak_bf16_flop_per_s": _number(measured.flop_per_s, f"assumption: no faster in 16 bit; {product}"),
        "memory_bytes": _number(held.memory_bytes // devices, f"{asked}: all memory over {devices} processes"),
        "boost_hz": _number(clock or present_clock_hz() or 0.0, asked if clock else f"{asked}: clock at that moment"),
        "power_w": _number(5.0 * held.threads, "assumption: 5 W a core"),
        "idle_power_w": _number(1.0 * held.threads, "assumption: 1 W a core"),
        "intra_node": "host",
        "intra_bytes_per_s": _number(loopback_bytes_per_s(), "measured on this machine: one TCP connection, 127.0.0.1"),
        "gpus_per_node": devices,
    }


def _gpu() -> dict[str, Any]:
    return {
        "intra_node": "pcie",
        "intra_bytes_per_s": _number(31.5e9, "assumption: PCIe 4.0 x16, one direction"),
        "gpus_per_node": max(1, min(72, torch.cuda.device_count())),
    }


def _number(value: float, source: str) -> dict[str, Any]:
    return {"value": float(value), "source": source[:400]}
