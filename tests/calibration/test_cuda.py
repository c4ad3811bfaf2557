"""The arithmetic around CUDA, with a fake of what is used of `torch.cuda` and NVML."""

from types import SimpleNamespace

import pytest

from calibration.cuda import PAUSE_S, TRIES, Cuda, Settled
from calibration.device import cuda_fingerprint, machine
from calibration.instruments import Readings
from calibration.kernels.family import Work
from calibration.timing import METHODS, timed


class FakeCuda:
    """A device whose stream is a number of milliseconds; work is queued before it runs."""

    def __init__(self):
        self.queued_ms = 0.0
        self.waits = 0
        self.emptied = 0

    def Event(self, enable_timing):  # noqa: N802 - torch's name
        assert enable_timing
        return FakeEvent(self)

    def get_device_properties(self, index):
        assert index == 0
        return SimpleNamespace(
            name="NVIDIA H200", multi_processor_count=132, total_memory=150e9, L2_cache_size=62914560, uuid="ab-12"
        )

    def empty_cache(self):
        self.emptied += 1


class FakeEvent:
    def __init__(self, device):
        self.device = device
        self.at_ms = None

    def record(self):
        self.at_ms = self.device.queued_ms

    def synchronize(self):
        self.device.waits += 1

    def elapsed_time(self, end):
        return end.at_ms - self.at_ms


class NVMLError(Exception):
    pass


class FakeNvml:
    """NVML of one card; asking for what it lacks raises, as the driver does."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self, lacks=()):
        self.lacks = lacks
        self.asked = []

    def nvmlInit(self):  # noqa: N802
        if "nvmlInit" in self.lacks:
            raise NVMLError

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        assert uuid == "GPU-ab-12"
        return 7

    def nvmlSystemGetDriverVersion(self):  # noqa: N802
        return b"580.1"

    def __getattr__(self, name):
        held = {
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=40),
            "nvmlDeviceGetPowerUsage": 350_000,
            "nvmlDeviceGetTemperature": 55,
            "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=150754820096),
        }
        clocks = {"nvmlDeviceGetClockInfo": {1: 1755, 2: 3201}, "nvmlDeviceGetMaxClockInfo": {1: 1980, 2: 3201}}

        def ask(handle, *kind):
            assert handle == 7
            self.asked.append(name)
            if name in self.lacks:
                raise NVMLError
            return clocks[name][kind[0]] if name in clocks else held[name]

        return ask


def test_seconds_are_between_the_events():
    device = FakeCuda()
    device.queued_ms = 100.0
    assert Cuda(device, FakeNvml()).seconds(lambda: setattr(device, "queued_ms", 102.5)) == pytest.approx(2.5e-3)
    assert device.waits == 1


def test_a_kernel_of_five_microseconds_is_timed_over_a_millisecond():
    device = FakeCuda()

    def run(number):
        device.queued_ms += 0.005

    work = Work(run, [(0,), (1,), (2,)], lambda: 0.0, 1.0)
    found = timed(work, METHODS["cuda"], Cuda(device, FakeNvml()))
    assert found.t_s == pytest.approx(5e-6)
    assert found.launches * found.t_s >= 1e-3
    assert found.n >= 20


class Graph:
    """A CUDA graph whose capture may fail."""

    def __init__(self, device, fails):
        self.device, self.fails, self.replays = device, fails, 0

    def capture_begin(self):
        self.device.capturing = True

    def capture_end(self):
        self.device.capturing = False
        if self.fails:
            raise RuntimeError("operation not permitted when stream is capturing")

    def replay(self):
        self.replays += 1


@pytest.mark.parametrize("fails", [False, True])
def test_what_can_be_captured_is_replayed(fails):
    device, launched = FakeCuda(), []
    graph = Graph(device, fails)
    graphs = iter([graph, Graph(device, fails=False)])
    device.CUDAGraph, device.synchronize = lambda: next(graphs), lambda: None
    replay = Cuda(device, FakeNvml()).captured(lambda: launched.append(device.capturing))
    assert launched == [True] and not device.capturing
    assert (replay is None) == fails
    assert graph.replays == (0 if fails else 1)  # once to see that it runs


def test_a_device_on_which_nothing_can_be_captured_any_more_is_no_stopwatch_of_short_calls():
    device = FakeCuda()
    device.CUDAGraph, device.synchronize = lambda: Graph(device, fails=True), lambda: None
    with pytest.raises(RuntimeError, match="no CUDA graph can be captured"):
        Cuda(device, FakeNvml()).captured(lambda: None)


def test_a_sentinel_waits_for_the_clock_to_come_back():
    readings, slept = [1.0, 1.2, 1.1, 1.01, 2.0, *[2.0] * TRIES], []
    settled = Settled(lambda: readings.pop(0), slept.append)
    assert [settled(), settled()] == [1.0, 1.01]
    assert slept == [PAUSE_S] * 2
    assert settled() == 2.0  # another state, not one that passes
    assert len(slept) == 2 + TRIES - 1


def test_readings():
    read = Cuda(FakeCuda(), FakeNvml()).read()
    assert read == Readings(sm_clock_hz=1.755e9, memory_clock_hz=3.201e9, power_w=350.0, temperature_c=55.0)


def test_what_the_driver_does_not_say_is_blank():
    assert Cuda(FakeCuda(), FakeNvml(lacks=["nvmlDeviceGetPowerUsage"])).read().power_w is None
    silent = Cuda(FakeCuda(), FakeNvml(lacks=["nvmlInit"]))
    assert silent.read() == Readings()
    assert (silent.driver, silent.power_cap_w, silent.others(), silent.memory_bytes) == (None, None, 0.0, 150e9)


def test_load_is_read_after_an_idle_second_only():
    times = iter([0.0, 10.0, 10.9, 11.1])
    device = FakeCuda()
    cuda = Cuda(device, FakeNvml(), lambda: next(times))
    assert cuda.others() == 0.4
    cuda.seconds(lambda: None)
    assert cuda.others() == 0.0
    assert cuda.others() == 0.4


def test_nothing_is_ever_set():
    nvml = FakeNvml()
    cuda = Cuda(FakeCuda(), nvml)
    cuda.read()
    cuda.others()
    cuda_fingerprint(cuda)
    assert nvml.asked
    assert all(name.startswith("nvmlDeviceGet") for name in nvml.asked)


def test_fingerprint(monkeypatch):
    monkeypatch.setattr("torch.version.cuda", "13.0")
    held = cuda_fingerprint(Cuda(FakeCuda(), FakeNvml()))
    assert (held.kind, held.vendor, held.name, held.cores) == ("cuda", "NVIDIA", "NVIDIA H200", 132)
    assert (held.l2_bytes, held.memory_bytes, held.driver) == (62914560, 150754820096, "580.1")
    assert (held.clocks.sm_hz, held.clocks.memory_hz, held.power_cap_w) == (1.98e9, 3.201e9, 700.0)
    assert machine(held).kind == "cuda"
    assert machine(held).memory_bytes == pytest.approx(0.8 * 150754820096)


def test_memory_goes_back():
    device = FakeCuda()
    Cuda(device, FakeNvml()).release()
    assert device.emptied == 1
