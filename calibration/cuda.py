"""CUDA device 0 under measurement: every call to `torch.cuda` and to the driver's management library (NVML) is here.

Only ever read: neither clocks nor power settings are changed. Without nvidia-ml-py the readings are blank.
"""

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from calibration.guards import MOST_DRIFT, WINDOW_S
from calibration.instruments import Instruments, Readings
from calibration.kernels.family import Work
from calibration.timing import Method, timed

TRIES, PAUSE_S = 6, 0.05
"""Of a sentinel that is slow."""

SENTINEL = 4_096
"""Rows of the sentinel's square bf16 matrices: large enough to fill the device, well below a millisecond."""


class Cuda:
    """Device 0 as stopwatch (CUDA events), load and sensors.

    `cuda` is `torch.cuda` and `nvml` the module `pynvml`, or fakes of what is used of them here.
    """

    def __init__(self, cuda: Any = torch.cuda, nvml: Any = None, now: Callable[[], float] = time.monotonic) -> None:
        self._cuda = cuda
        self._now = now
        self._launched_s = float("-inf")
        self._nvml = nvml if nvml is not None else _nvml()
        self.properties = cuda.get_device_properties(0)
        self._handle = self._open()

    def seconds(self, launch: Callable[[], object]) -> float:
        """Return the seconds between two events around `launch()` (an event's resolution is about 0.5 us)."""
        start, end = self._cuda.Event(enable_timing=True), self._cuda.Event(enable_timing=True)
        start.record()
        launch()
        end.record()
        end.synchronize()
        self._launched_s = self._now()
        return float(start.elapsed_time(end)) / 1e3

    def captured(self, launch: Callable[[], object]) -> Callable[[], object] | None:
        """Return the replay of a CUDA graph of `launch()`, which has run before, on a stream of its own; None where
        something in it cannot be captured.

        Raises:
            RuntimeError: nothing can be captured any more, as after a failure in the middle of a capture: short calls
                would take what issuing them does.
        """
        replay = self._captured(launch)
        if replay is None and self._captured(lambda: None) is None:
            raise RuntimeError("no CUDA graph can be captured any more")
        return replay

    def _captured(self, launch: Callable[[], object]) -> Callable[[], object] | None:
        graph = self._cuda.CUDAGraph()
        try:
            self._cuda.synchronize()
            graph.capture_begin()
            try:
                launch()
            finally:
                graph.capture_end()
            graph.replay()
            self._cuda.synchronize()
        except RuntimeError:
            return None
        replay: Callable[[], object] = graph.replay
        return replay

    def release(self) -> None:
        """Give cached blocks of device memory back."""
        self._cuda.empty_cache()

    def others(self) -> float:
        """Return the driver's utilisation after a second without launches of ours, else 0, and where it is not known.

        NVML averages over up to a second: between the batches of a measurement it tells of the measurement, and the
        sentinel is what notices others there.
        """
        if self._now() - self._launched_s < WINDOW_S:
            return 0.0
        used = self._ask("nvmlDeviceGetUtilizationRates")
        return float(used.gpu) / 100 if used is not None else 0.0

    def read(self) -> Readings:
        """Return clocks, power and temperature."""
        power = self._ask("nvmlDeviceGetPowerUsage")
        temperature = self._ask("nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU")
        return Readings(
            sm_clock_hz=self._clock("nvmlDeviceGetClockInfo", "NVML_CLOCK_SM"),
            memory_clock_hz=self._clock("nvmlDeviceGetClockInfo", "NVML_CLOCK_MEM"),
            power_w=power / 1e3 if power is not None else None,
            temperature_c=float(temperature) if temperature is not None else None,
        )

    @property
    def most_clocks_hz(self) -> tuple[float | None, float | None]:
        """Highest clocks of the multiprocessors and of the memory."""
        ask = "nvmlDeviceGetMaxClockInfo"
        return self._clock(ask, "NVML_CLOCK_SM"), self._clock(ask, "NVML_CLOCK_MEM")

    @property
    def power_cap_w(self) -> float | None:
        """The power limit that is in force."""
        cap = self._ask("nvmlDeviceGetEnforcedPowerLimit")
        return cap / 1e3 if cap is not None else None

    @property
    def memory_bytes(self) -> int:
        """All device memory, as nvidia-smi shows it (torch shows what the driver leaves of it)."""
        held = self._ask("nvmlDeviceGetMemoryInfo")
        return int(held.total if held is not None else self.properties.total_memory)

    @property
    def driver(self) -> str | None:
        """The driver's version."""
        if self._handle is None:
            return None
        told = self._nvml.nvmlSystemGetDriverVersion()
        return told.decode() if isinstance(told, bytes) else str(told)

    def instruments(self) -> Instruments:
        """Return the instruments of this device."""
        method = Method(samples=9, statistic="median", total_s=0.0, warmups=3)
        return Instruments(self, self, self, Settled(lambda: timed(self._sentinel, method, self).t_s))

    @cached_property
    def _sentinel(self) -> Work:
        """The sentinel's work; where it is not asked for its arrays lie in nobody's way."""
        generator = torch.Generator(device="cuda").manual_seed(0)
        made = torch.randn(6, SENTINEL, SENTINEL, generator=generator, device="cuda", dtype=torch.bfloat16)
        return Work(torch.matmul, list(zip(made[::2], made[1::2], strict=True)), lambda: 0.0, 0.0)

    def _open(self) -> Any:
        """Return NVML's handle of the device that torch calls 0 (NVML numbers devices its own way)."""
        if self._nvml is None:
            return None
        try:
            self._nvml.nvmlInit()
            return self._nvml.nvmlDeviceGetHandleByUUID(f"GPU-{self.properties.uuid}")
        except self._nvml.NVMLError:
            return None

    def _ask(self, name: str, kind: str | None = None) -> Any:
        """Return what NVML's function `name` says of the device, None where it cannot say."""
        if self._handle is None:
            return None
        try:
            return getattr(self._nvml, name)(self._handle, *([getattr(self._nvml, kind)] if kind else []))
        except self._nvml.NVMLError:
            return None

    def _clock(self, name: str, kind: str) -> float | None:
        mhz = self._ask(name, kind)
        return mhz * 1e6 if mhz is not None else None


@dataclass
class Settled:
    """A sentinel's seconds once the clocks have come back: kernels that draw all power a device may have lower them,
    for some ten milliseconds beyond their end.

    What stays slower than `MOST_DRIFT` after `TRIES` readings is another state of the device, and told.
    """

    reading: Callable[[], float]
    sleep: Callable[[float], None] = time.sleep
    best_s: float = float("inf")

    def __call__(self) -> float:
        """Return the least of the readings that were needed."""
        found = self.reading()
        for _ in range(TRIES - 1):
            if found <= self.best_s * (1 + MOST_DRIFT / 2):
                break
            self.sleep(PAUSE_S)
            found = min(found, self.reading())
        self.best_s = min(self.best_s, found)
        return found


def _nvml() -> Any:
    """Return NVML's Python module (nvidia-ml-py), None where it is not installed."""
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None
