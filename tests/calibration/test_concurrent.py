"""The contention measurement on machines that are not there: a fluid device, one that drifts, a fake `torch.cuda`."""

from contextlib import contextmanager

import numpy as np
import pytest

from calibration.concurrent import FILE, GATE_CYCLES, SIZES_S, CudaStreams, Design, measure
from calibration.contention import fit, levels
from calibration.published.tables import read_public
from sim.costs.contention import makespan, rows
from sim.specs import InputError

TRUTH = [0.9, 0.0, 0.1, 0.0, 0.0, 0.4, 0.0, 0.2, 1.5, 0.0, 0.3, 0.1]
UNIT_S = np.array([2e-4, 1e-4, 3e-4, 4e-4])


class Device:
    """A device that the model describes, with its own clock; `slows` by call number."""

    name, ranks, what = "toy-gpu", 4, "toy work"

    def __init__(self, slows=lambda call: 1.0):
        self.slows, self.calls, self.clock = slows, 0, 0.0

    def seconds(self, units):
        self.calls += 1
        spent = float(makespan(np.array(units) * UNIT_S, rows(TRUTH))) * self.slows(self.calls)
        self.clock += spent
        return spent


@pytest.mark.slow
def test_the_design_has_all_combinations_and_gives_the_matrix_back(tmp_path):
    device = Device()
    made = measure(tmp_path, "s1", 1e9, streams=device, now=lambda: device.clock)
    streams = (made.amount > 0).sum(axis=1)
    assert [int((streams == k).sum()) for k in (1, 2, 3, 4)] == [16, 96, 256, 256]
    assert len({tuple(row) for row in (made.amount > 0).tolist()}) == 15
    assert made.seconds[streams == 1].min() == pytest.approx(SIZES_S[0], rel=0.1)
    found = fit(made).contention
    assert np.array(found.matrix) == pytest.approx(np.array(rows(TRUTH)), abs=0.01)
    assert (found.n_in, found.n_out, found.session) == (4, 1, "s1")


def test_the_file_reads_back_as_what_was_measured(tmp_path):
    device = Device()
    made = measure(tmp_path, "s1", 1e9, streams=device, now=lambda: device.clock)
    back = read_public([tmp_path / FILE]).together
    assert [(b.device, b.session, b.n_in, b.n_out) for b in back] == [("toy-gpu", "s1", 4, 1)]
    assert back[0].seconds == pytest.approx(made.seconds, rel=1e-8)
    assert (levels(back[0]).which == levels(made).which).all()


def test_a_small_budget_is_kept(tmp_path):
    device = Device()
    made = measure(tmp_path, "s1", 5.0, streams=device, now=lambda: device.clock)
    assert device.clock < 5.5
    assert 16 < len(made) < 624


def test_what_was_measured_while_the_device_drifted_is_left_out():
    device = Device(slows=lambda call: 1.1 if 500 < call < 1000 else 1.0)
    design = Design(device, 1e9, lambda: device.clock)
    design.run()
    worst = max(
        float(np.median(v)) / float(makespan(np.array(case) * UNIT_S, rows(TRUTH))) for case, v in design.found.items()
    )
    assert worst < 1.01
    assert 400 < len(design.found) < 624


def test_an_interrupted_measurement_keeps_what_it_has(tmp_path):
    def interrupt(call):
        if call > 700:
            raise KeyboardInterrupt
        return 1.0

    made = measure(tmp_path, "s1", 1e9, streams=Device(interrupt), now=lambda: 0.0)
    assert len(made) == len((tmp_path / FILE).read_text("utf-8").splitlines()) - 1 > 16


def test_a_cpu_is_refused_with_the_reason(tmp_path):
    with pytest.raises(InputError, match="a CPU has neither copy engines"):
        measure(tmp_path, "s1", device="cpu")
    assert not list(tmp_path.iterdir())


class FakeCuda:
    """What `CudaStreams` uses of `torch.cuda`; every kernel takes a millisecond on its stream."""

    def __init__(self):
        self.log, self.current = [], None

    def get_device_name(self, index):
        return "fake"

    def device_count(self):
        return 1

    def synchronize(self):
        self.log.append("synchronize")

    def _sleep(self, cycles):
        self.log.append(("sleep", cycles))
        self.current.at += 5.0

    @contextmanager
    def stream(self, stream):
        self.current = stream
        yield

    def Stream(self):  # noqa: N802 - torch's name
        return FakeStream()

    def Event(self, enable_timing):  # noqa: N802 - torch's name
        assert enable_timing
        return FakeEvent()

    def kernel(self):
        self.current.at += 1.0


class FakeStream:
    def __init__(self):
        self.at = 0.0

    def wait_event(self, event):
        self.at = max(self.at, event.at)


class FakeEvent:
    def record(self, stream):
        self.at = stream.at

    def elapsed_time(self, other):
        return other.at - self.at


def test_everything_is_queued_behind_a_gate():
    cuda = FakeCuda()
    streams = CudaStreams(cuda, [cuda.kernel] * 4)
    assert streams.seconds((3, 0, 7, 1)) == pytest.approx(7e-3)
    assert cuda.log == ["synchronize", ("sleep", GATE_CYCLES), "synchronize"]
    assert (streams.name, streams.ranks) == ("fake", 1)
