"""The CPU as a device under measurement: its clock, who else uses it, and its sentinel."""

import ctypes
import os
import platform
import socket
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import psutil
import torch

from calibration.guards import WINDOW_S
from calibration.instruments import Instruments, Readings
from calibration.kernels.family import Work
from calibration.timing import Method, timed

SENTINEL = 512
"""Rows of the sentinel's square matrices: a few milliseconds, inside the caches of any CPU."""


M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Options of glibc's mallopt(3)."""


def keep_freed_memory() -> bool:
    """Let this process keep the memory that tensors free, for the next ones, and return whether that worked.

    By default glibc gives large blocks back, and every step pays a page fault for each 4 KiB that it takes anew: with
    PyTorch's tuning guide ("Performance Tuning Guide", CPU, memory allocators) it is usual to keep them, as the
    allocator of a GPU does. Without glibc nothing changes.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return False
    return bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, 2**31 - 1))


class HostStopwatch:
    """`time.perf_counter` around work that is done when it returns."""

    def seconds(self, launch: Callable[[], object]) -> float:
        """Return the seconds that `launch()` takes."""
        begin = time.perf_counter()
        launch()
        return time.perf_counter() - begin

    def captured(self, launch: Callable[[], object]) -> None:
        """Return None: what a processor does is what it issues."""

    def release(self) -> None:
        """Do nothing: freed host memory goes back by itself."""


class HostLoad:
    """CPU time of everything but this process (time stolen from a virtual machine counts), from the OS's counters."""

    def __init__(self) -> None:
        self._last = self._read()
        self._share = 0.0

    def others(self) -> float:
        """Return the share of all cores that others used since the call before (ticks are 10 ms: over >= 0.1 s)."""
        read = self._read()
        all_s, busy_s, own_s = (now - then for now, then in zip(read, self._last, strict=True))
        if all_s < WINDOW_S / 10:
            return self._share
        self._last = read
        self._share = min(max((busy_s - own_s) / all_s, 0.0), 1.0)
        return self._share

    @staticmethod
    def _read() -> tuple[float, float, float]:
        times, own = psutil.cpu_times()._asdict(), psutil.Process().cpu_times()
        everything = sum(times.values()) - times.get("guest", 0.0) - times.get("guest_nice", 0.0)  # held in user, nice
        return everything, everything - times["idle"] - times.get("iowait", 0.0), own.user + own.system


class TeamLoad(HostLoad):
    """The machine's use by others than this process and those that it starts, also those that have ended."""

    @staticmethod
    def _read() -> tuple[float, float, float]:
        all_s, busy_s, _ = HostLoad._read()
        held = psutil.Process()
        own_s = sum(sum(each.cpu_times()[:4]) for each in (held, *held.children()))  # user, system, ended children's
        return all_s, busy_s, own_s


class NoSensors:
    """A CPU's clock and power are not read."""

    def read(self) -> Readings:
        """Return no readings."""
        return Readings()


def host_instruments(threads: int) -> Instruments:
    """Return the instruments of the CPU; from now on torch has `threads` threads, and freed memory is kept."""
    torch.set_num_threads(threads)
    keep_freed_memory()
    stopwatch = HostStopwatch()
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, SENTINEL, SENTINEL, generator=generator)
    work = Work(run=torch.matmul, inputs=[(a, b)], error=lambda: 0.0, tolerance=0.0)
    method = Method(samples=9, statistic="min", sample_s=0.0, total_s=0.0, warmups=1)
    return Instruments(stopwatch, HostLoad(), NoSensors(), lambda: timed(work, method, stopwatch).t_s)


def cpu_name() -> tuple[str, str]:
    """Return the CPU's (vendor, name) as the OS gives them."""
    told = first_processor()
    name = told.get("model name") or platform.processor() or platform.machine() or "unknown"
    return told.get("vendor_id", "unknown"), " ".join(name.split())


def cores_and_cpu() -> str:
    """Return what a measurement says of the machine that it was made on."""
    return f"{os.cpu_count()} cores of an {cpu_name()[1]}"


def made(command: str, threads: str = "one thread", *packages: str) -> dict[str, str]:
    """Return how, when, where and with what a file of measurements was made, in float32: its first four fields."""
    told = ", ".join(f"{name} {version(name)}" for name in ("torch", *packages))
    return {
        "command": command,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": cores_and_cpu(),
        "software": f"float32, {threads}, {told}",
    }


def first_processor(path: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """Return what Linux tells of the first core, by its names; nothing elsewhere."""
    try:
        text = path.read_text("utf-8")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def cache_bytes(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> dict[str, int]:
    """Return the sizes of the first core's caches as Linux numbers them ("index2": of the second level)."""
    sizes = {path.parent.name: path.read_text("utf-8").strip() for path in folder.glob("index*/size")}
    return {name: int(size.rstrip("KMG")) * SCALE.get(size[-1], 1) for name, size in sizes.items() if size}


SCALE = {"K": 2**10, "M": 2**20, "G": 2**30}


def most_clock_hz() -> float | None:
    """Return the highest clock of the cores, None where the OS does not say (virtual machines)."""
    return _clock_hz("max")


def present_clock_hz() -> float | None:
    """Return the clock of the cores at this moment, None where the OS does not say."""
    return _clock_hz("current")


def _clock_hz(which: str) -> float | None:
    try:
        found = psutil.cpu_freq()
    except (OSError, NotImplementedError):  # what psutil raises on systems without the figure
        return None
    megahertz = getattr(found, which, None)
    return megahertz * 1e6 if megahertz else None


TRANSFER_BYTES, TRANSFERS = 2**26, 3


def loopback_bytes_per_s() -> float:
    """Return what one TCP connection over 127.0.0.1 carries, as processes of one machine talk: the best of three."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return max(_transfer(server) for _ in range(TRANSFERS))


def _transfer(server: socket.socket) -> float:
    payload, received = bytearray(2**20), bytearray(2**20)
    with socket.create_connection(server.getsockname()) as sender, _accepted(server, sender.getsockname()) as receiver:

        def send() -> None:
            for _ in range(TRANSFER_BYTES // len(payload)):
                sender.sendall(payload)
            sender.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=send)
        thread.start()
        begin, held = time.perf_counter(), 0
        while count := receiver.recv_into(received):
            held += count
        spent = time.perf_counter() - begin
        thread.join()
    return held / spent


def _accepted(server: socket.socket, peer: tuple[str, int]) -> socket.socket:
    """Return the connection from `peer`: others, who look for a server that had this port, are hung up on."""
    while True:
        receiver, found = server.accept()
        if found == peer:
            return receiver
        receiver.close()
