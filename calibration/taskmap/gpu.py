"""What the space of block schedules and their costs rest on: a GPU's multiprocessors, memories and rates."""

from dataclasses import dataclass, replace
from typing import Any

from calibration.device import DRIVER_NAMES
from sim.specs.catalog import device
from sim.specs.fields import InputError

KIB = 1024


@dataclass(frozen=True)
class Generation:
    """What GPUs of one compute capability share, a multiprocessor (SM) each.

    shared_bytes, shared_sm_bytes: shared memory of a block that asks for the most, and of an SM. threads, blocks: that
    an SM holds at most. fp32_flop: of its fp32 units in a cycle.
    """

    capability: tuple[int, int]
    shared_bytes: int
    shared_sm_bytes: int
    threads: int
    blocks: int
    fp32_flop: int


GENERATIONS = {
    "v100": Generation((7, 0), 96 * KIB, 96 * KIB, 2048, 32, 128),
    "t4": Generation((7, 5), 64 * KIB, 64 * KIB, 1024, 16, 128),
    "rtx-2080-ti": Generation((7, 5), 64 * KIB, 64 * KIB, 1024, 16, 128),
    "a100": Generation((8, 0), 163 * KIB, 164 * KIB, 2048, 32, 128),
    "a10g": Generation((8, 6), 99 * KIB, 100 * KIB, 1536, 16, 256),
    "l4": Generation((8, 9), 99 * KIB, 100 * KIB, 1536, 24, 256),
    "rtx-4090": Generation((8, 9), 99 * KIB, 100 * KIB, 1536, 24, 256),
    "h100": Generation((9, 0), 227 * KIB, 228 * KIB, 2048, 32, 256),
    "h200": Generation((9, 0), 227 * KIB, 228 * KIB, 2048, 32, 256),
    "b200": Generation((10, 0), 227 * KIB, 228 * KIB, 2048, 32, 256),
    "gb200": Generation((10, 0), 227 * KIB, 228 * KIB, 2048, 32, 256),
    "b300": Generation((10, 3), 227 * KIB, 228 * KIB, 2048, 32, 256),
    "gb300": Generation((10, 3), 227 * KIB, 228 * KIB, 2048, 32, 256),
}
"""By the beginning of the catalog's names (NVIDIA, CUDA C++ Programming Guide: "Technical Specifications per Compute
Capability", and for fp32 "Throughput of Native Arithmetic Instructions", 2 FLOP a multiply-add)."""
REGISTERS = 65536
"""32-bit registers of an SM from compute capability 7.0 to 10.3 (the same table)."""


@dataclass(frozen=True)
class Gpu:
    """One GPU; rates are dense peaks in FLOP/s and bytes/s, sizes bytes.

    shared_bytes: of one block at most; shared_sm_bytes, registers, threads, blocks: of a multiprocessor. fp16, tf32,
    fp32: FLOP/s of 16-bit elements, of fp32 rounded to tf32 (where there are such units) and of fp32.
    """

    capability: tuple[int, int]
    sms: int
    shared_bytes: int
    shared_sm_bytes: int
    registers: int
    threads: int
    blocks: int
    l2_bytes: int
    fp16_flop_per_s: float
    tf32_flop_per_s: float
    fp32_flop_per_s: float
    memory_bytes_per_s: float

    @property
    def copies_ahead(self) -> bool:
        """Whether tiles are copied to shared memory while others are multiplied (from compute capability 8.0)."""
        return self.capability >= (8, 0)

    @property
    def copies_in_bulk(self) -> bool:
        """Whether a copy engine fills whole tiles (the Tensor Memory Accelerator, from compute capability 9.0)."""
        return self.capability >= (9, 0)

    def flop_per_s(self, item: int, precision: str = "ieee") -> float:
        """Return the peak for elements of `item` bytes; precision: how fp32 is multiplied."""
        if item < 4:
            return self.fp16_flop_per_s
        return self.tf32_flop_per_s if precision == "tf32" else self.fp32_flop_per_s


def of_catalog(name: str) -> Gpu:
    """Return a device of the catalog.

    tf32 runs at half of the 16-bit rate (NVIDIA's whitepapers and datasheets from A100 on), before at that of fp32.

    Raises:
        InputError: there is no such device, or it is none of `GENERATIONS`.
    """
    found = device(name)
    made = next((held for prefix, held in GENERATIONS.items() if found.name.startswith(prefix)), None)
    if made is None:
        raise InputError("device", name, "a GPU of the catalog: " + ", ".join(GENERATIONS))
    sms, fp16 = int(found.sms.value), found.peak_bf16_flop_per_s.value
    fp32 = sms * found.boost_hz.value * made.fp32_flop
    return Gpu(
        capability=made.capability,
        sms=sms,
        shared_bytes=made.shared_bytes,
        shared_sm_bytes=made.shared_sm_bytes,
        registers=REGISTERS,
        threads=made.threads,
        blocks=made.blocks,
        l2_bytes=int(found.l2_bytes.value),
        fp16_flop_per_s=fp16,
        tf32_flop_per_s=fp16 / 2 if made.capability >= (8, 0) else fp32,
        fp32_flop_per_s=fp32,
        memory_bytes_per_s=found.memory_bytes_per_s.value,
    )


def of_properties(properties: Any) -> Gpu:
    """Return the GPU that `torch.cuda.get_device_properties` describes.

    Rates are the catalog's. A GPU that it does not know has those of one of its compute capability, a multiprocessor
    each: where fits of costs begin.

    Raises:
        InputError: nothing of the catalog has its compute capability.
    """
    capability = (int(properties.major), int(properties.minor))
    known = DRIVER_NAMES.get(properties.name)
    named = known or next((name for name in CATALOG if of_catalog(name).capability == capability), None)
    if named is None:
        raise InputError("device", properties.name, "a GPU of compute capability 7.0, 7.5, 8.0, 8.6, 8.9, 9.0 or 10")
    like, sms = of_catalog(named), int(properties.multi_processor_count)
    scale = 1.0 if known else sms / like.sms
    return replace(
        like,
        capability=capability,
        sms=sms,
        shared_bytes=int(properties.shared_memory_per_block_optin),
        shared_sm_bytes=int(properties.shared_memory_per_multiprocessor),
        registers=int(properties.regs_per_multiprocessor),
        threads=int(properties.max_threads_per_multi_processor),
        l2_bytes=int(properties.L2_cache_size),
        **{name: scale * getattr(like, name) for name in RATES},
    )


RATES = ("fp16_flop_per_s", "tf32_flop_per_s", "fp32_flop_per_s", "memory_bytes_per_s")
CATALOG = ("v100-sxm-32gb", "t4", "a100-sxm-80gb", "a10g", "l4", "h100-sxm-80gb", "b200", "b300")
"""A device of each compute capability."""
