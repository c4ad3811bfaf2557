"""Device memory beside tensors: the allocator's constants, the context, workspaces, communicators; its replay checked.

Every call to the device goes through `torch.cuda` as an argument, so that a fake can stand for it.
"""

import gc
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch

from calibration.snapshots import Run, record_profile, record_snapshot, training_steps
from sim.costs.profile import Memory
from sim.engine import allocator as simulated
from sim.engine.memory_trace import Check, MemoryTrace, check, write_trace
from sim.specs.fields import InputError, read, spec, whole
from sim.specs.files import load_mapping

Bytes = Annotated[int, whole(0, 10**15, "B")]


@spec
class Constants:
    """What the allocator's sizes are, in bytes: of blocks, requests and segments (as `sim.engine.allocator`)."""

    least_block: Bytes
    small_segment: Bytes
    small_request: Bytes
    large_segment: Bytes
    large_request: Bytes
    round_large: Bytes


SIMULATED = Constants(
    least_block=simulated.LEAST_BLOCK,
    small_segment=simulated.SMALL_SEGMENT,
    small_request=simulated.SMALL_REQUEST,
    large_segment=simulated.AllocatorSettings().large_segment_bytes,
    large_request=simulated.LARGE_REQUEST,
    round_large=simulated.ROUND_LARGE,
)
"""The constants of the simulator."""


@spec
class DeviceMemory:
    """Measured bytes; None where the device cannot tell (communicators: fewer than two devices)."""

    constants: Constants
    as_simulated: bool
    workspace_bytes: Bytes
    context_bytes: Bytes
    communicator_bytes: Bytes | None = None


def measure(cuda: Any = torch.cuda, product: Run | None = None, device: int = 0) -> DeviceMemory:
    """Return the constants of a device's memory, on a process that has not used it yet.

    The context is measured after matrix products, when kernels are loaded; it counts what other processes hold on
    the device too. `product`: multiplies on the device, in the threads that a training step does, and keeps nothing.

    Raises:
        InputError: memory is in use already.
    """
    found = constants(cuda, device)
    workspace = workspace_bytes(product or _product, cuda, device)
    context = outside(cuda, device)
    return DeviceMemory(
        constants=found,
        as_simulated=found == SIMULATED,
        workspace_bytes=workspace,
        context_bytes=context,
        communicator_bytes=communicator_bytes(cuda, device=device),
    )


def constants(cuda: Any = torch.cuda, device: int = 0) -> Constants:
    """Return the allocator's constants by how much allocated and reserved memory grow with a request's size.

    Raises:
        InputError: memory is in use already, whose free parts would serve requests.
    """
    cuda.empty_cache()
    if cuda.memory_reserved(device):
        raise InputError("memory", cuda.memory_reserved(device), "nothing reserved before the measurement begins")

    def reserved(size: int) -> int:
        return _grown(cuda, device, size)[1]

    block, small = _grown(cuda, device, 1)
    small_request = last(lambda size: reserved(size) == small, 1, 8 * small)
    large = reserved(small_request + 1)
    # A segment of its own is as large as a shared one for requests just below it: look below those.
    most = large - large // 4
    large_request = last(lambda size: reserved(size) == large, small_request + 1, most) + 1
    # Requests are rounded to blocks before they are compared.
    large_request = -(-large_request // block) * block
    return Constants(
        least_block=block,
        small_segment=small,
        small_request=small_request,
        large_segment=large,
        large_request=large_request,
        round_large=reserved(large_request + 1) - reserved(large_request),
    )


def _grown(cuda: Any, device: int, size: int) -> tuple[int, int]:
    """Return by how many bytes (allocated, reserved) a request of `size` bytes grows; it is given back."""
    before = cuda.memory_allocated(device), cuda.memory_reserved(device)
    address = cuda.caching_allocator_alloc(size, device)
    after = cuda.memory_allocated(device), cuda.memory_reserved(device)
    cuda.caching_allocator_delete(address)
    cuda.empty_cache()
    return after[0] - before[0], after[1] - before[1]


def last(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the largest whole number from `low` to `high` for which `holds`, true at first and false from there on.

    Raises:
        InputError: it is false for `low`.
    """
    if not holds(low):
        raise InputError("size", low, "a size at which the boundary is not crossed yet")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def workspace_bytes(product: Run, cuda: Any = torch.cuda, device: int = 0) -> int:
    """Return what matrix products leave allocated: cuBLAS's workspaces of their threads and streams."""
    before = cuda.memory_allocated(device)
    product()
    cuda.synchronize(device)
    gc.collect()
    return int(cuda.memory_allocated(device) - before)


def outside(cuda: Any = torch.cuda, device: int = 0) -> int:
    """Return the bytes in use on a device that its allocator has not reserved: context and loaded kernels."""
    free, total = cuda.mem_get_info(device)
    return int(total - free - cuda.memory_reserved(device))


def communicator_bytes(cuda: Any = torch.cuda, reduce: Run | None = None, device: int = 0) -> int | None:
    """Return what a first all-reduce over all devices takes outside the allocator; None with fewer than two."""
    if cuda.device_count() < 2:
        return None
    before = outside(cuda, device)
    (reduce or _all_reduce)()
    for i in range(cuda.device_count()):
        cuda.synchronize(i)
    return outside(cuda, device) - before


def _product() -> None:
    """Multiply forward and backward: autograd's thread has a workspace of its own."""
    a = torch.ones((1024, 1024), device="cuda", dtype=torch.bfloat16, requires_grad=True)
    torch.matmul(a, a).sum().backward()  # type: ignore[no-untyped-call]


def _all_reduce() -> None:
    torch.cuda.nccl.all_reduce([torch.ones(2**20, device=f"cuda:{i}") for i in range(torch.cuda.device_count())])  # type: ignore[no-untyped-call]


def profile_memory(found: DeviceMemory, otherwise: Memory) -> Memory:
    """Return a profile's memory constants with what was measured; what was not stays as in `otherwise`."""
    measured = "context, workspaces" + ("" if found.communicator_bytes is None else ", communicators")
    same = replace(found.constants, large_segment=SIMULATED.large_segment) == SIMULATED
    others = "as in the replay" if same else f"unlike the replay's, which does not know them: {found.constants}"
    return replace(
        otherwise,
        context_bytes=float(found.context_bytes),
        workspace_bytes=float(found.workspace_bytes),
        communicator_bytes=float(found.communicator_bytes or otherwise.communicator_bytes),
        large_segment_bytes=found.constants.large_segment,
        source=f"measured: {measured}, allocator (its other constants {others}); the rest: {otherwise.source}"[:2_000],
    )


FILE = "memory.json"
"""What a session measured of its device's memory, beside the samples."""


def load_memory(path: Path) -> DeviceMemory | None:
    """Return what `session` found and its caller wrote to `path`, None where no file is or a CPU was asked.

    Raises:
        InputError: the file holds something else.
    """
    if not path.exists():
        return None
    held = load_mapping(path).get("memory")
    return None if held is None else read(DeviceMemory, held, f"{path.name}.memory")


def check_replay(source: MemoryTrace | Literal["cpu", "cuda"], keep: Path | None = None) -> Check:
    """Return the peaks that a recorded trace states beside those of its replay.

    "cuda" records some training steps of a small transformer by the allocator's own history, "cpu" by torch's
    profiler, whose peak of live bytes the replay must meet. keep: where the recording is written.

    Raises:
        InputError: as `record_snapshot` and `check`.
    """
    if source == "cuda":
        source = record_snapshot(training_steps("cuda"))
    elif source == "cpu":
        source = record_profile(training_steps("cpu"))
    if not isinstance(source, MemoryTrace):
        raise InputError("source", source, "a MemoryTrace, or cpu or cuda")
    if keep:
        write_trace(source, keep)
    return check(source)


def session(device: Literal["cpu", "cuda"], keep: Path | None = None) -> dict[str, Any]:
    """Return everything that a device tells of its memory as plain data: the replay's check, on CUDA the constants.

    keep: where the recording that is replayed is written.

    Raises:
        InputError: as `measure` and `check_replay`.
    """
    # The history must begin with nothing reserved: the recording comes before workspaces stay behind.
    found = check_replay(device, keep)
    plain: dict[str, Any] = {"replay": asdict(found) | {"equal": found.equal}}
    if device == "cuda":
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        plain["memory"] = asdict(measure())
    return plain
