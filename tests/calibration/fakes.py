"""A machine that exists in the tests only: its clock moves when work is launched, by the seconds the work is given."""

from dataclasses import dataclass, field, replace

from calibration.device import Clocks, Fingerprint, Versions
from calibration.instruments import Instruments, Readings
from calibration.kernels.family import Case, Machine, Work
from calibration.store import new_session
from calibration.timing import Method
from sim.costs.algebra import symbol

METHOD = Method(samples=5, statistic="min", total_s=0.0)
MACHINE = Machine("cpu", 1e9)
FINGERPRINT = Fingerprint(
    vendor="Maker",
    name="Model 1",
    cores=4,
    l2_bytes=2**20,
    memory_bytes=2**34,
    versions=Versions(python="3.11.0", torch="2.13.0"),
    clocks=Clocks(sm_hz=3e9),
)


@dataclass
class FakeMachine:
    """`others` and `sentinels` are what the load and the sentinel say in turn; the last one stays."""

    now_s: float = 0.0
    others: list[float] = field(default_factory=lambda: [0.0])
    sentinels: list[float] = field(default_factory=lambda: [0.01])
    launched: list[str] = field(default_factory=list)
    released: int = 0

    def tools(self) -> Instruments:
        return Instruments(
            stopwatch=self,
            load=FakeLoad(self.others),
            sensors=FakeSensors(),
            sentinel=self.sentinel,
            now=lambda: self.now_s,
            sleep=self.work,
        )

    def work(self, seconds):
        self.now_s += seconds

    def captured(self, launch):
        return None

    def seconds(self, launch):
        begin = self.now_s
        launch()
        return self.now_s - begin

    def release(self):
        self.released += 1

    def sentinel(self):
        reading = next_of(self.sentinels)
        self.work(reading)
        return reading


def next_of(values):
    return values.pop(0) if len(values) > 1 else values[0]


@dataclass
class FakeLoad:
    shares: list[float]

    def others(self):
        return next_of(self.shares)


class FakeSensors:
    def read(self):
        return Readings(sm_clock_hz=1.5e9, temperature_c=40.0)


@dataclass
class FakeFamily:
    """`count` cases a direction; a launch of case n takes `second_s` * (n + 1)."""

    machine: FakeMachine
    name: str = "gemm"
    op: str = "gemm"
    directions: tuple[str, ...] = ("forward",)
    count: int = 3
    second_s: float = 0.01
    error: float = 1e-7
    fails: type[Exception] | None = None
    flop = 2 * symbol("m") ** 3
    bytes = 12 * symbol("m") ** 2

    def cases(self, machine, suite):
        for direction in self.directions:
            for n in range(self.count):
                yield Case(self.op, direction, "float32", "fake", {"m": 2.0**n}, group=f"g{n}")

    def prepare(self, case, machine, seed):
        if self.fails is not None:
            raise self.fails("no such kernel")

        def run(spend):
            self.machine.launched.append(case.id)
            self.machine.work(spend)

        spend = self.second_s * (1 + [c.id for c in self.cases(machine, "smoke")].index(case.id) % self.count)
        return Work(run, [(spend,)] * 3, lambda: self.error, tolerance=1e-3)


def families(machine):
    """A product and a memory-bound kernel in two directions."""
    return [
        FakeFamily(machine),
        replace_formula(FakeFamily(machine, name="elementwise", op="elementwise", directions=("any", "backward"))),
    ]


def replace_formula(family):
    family.flop, family.bytes = symbol("m"), 8e6 * symbol("m")
    return family


def session(**given):
    return replace(new_session(fingerprint=FINGERPRINT, method="m", suite="smoke", seed=0, budget_s=1.0), **given)
