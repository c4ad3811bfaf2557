"""The sampler against a fake machine: order, budget, checks before timing, drift, load, interruption and resuming."""

import signal
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calibration.guards import interruptible
from calibration.measure import LostError, Sampler, order, out_of_memory, usual
from calibration.samples import FAIR, LEAST
from calibration.store import SAMPLES, Store, read_samples
from tests.calibration.fakes import MACHINE, METHOD, FakeFamily, FakeMachine, families


def sampler(machine, store, budget_s=1e6, **given):
    stamp = {"session": "s1", "commit": "c1"}
    return Sampler(MACHINE, METHOD, machine.tools(), store, stamp, budget_s, reference_s=0.01, **given)


def sample(machine, folder, held=None, budget_s=1e6, **given):
    """Return (outcome, store) of measuring the families `held`."""
    store = Store(folder)
    tasks = order(held or families(machine), MACHINE, "smoke", 0)
    return sampler(machine, store, budget_s, **given).run(tasks), store


def test_every_case_becomes_a_row(tmp_path):
    outcome, store = sample(FakeMachine(), tmp_path)
    assert (outcome.left, outcome.skipped) == (0, ())
    rows = read_samples(tmp_path / SAMPLES)
    assert rows == list(store.rows.values())
    assert len(rows) == 9
    row = store.rows["gemm/forward/float32/fake//m=4"]
    assert row["t_s"] == pytest.approx(0.03)
    assert (row["flop"], row["bytes"], row["shape"]) == (128.0, 192.0, '{"m": 4.0}')
    assert (row["op"], row["group"], row["use"], row["n"], row["launches"]) == ("gemm", "g2", "fit", 5, 1)
    assert (row["sentinel_ratio"], row["flagged"], row["error"]) == (1.0, False, 1e-7)
    assert (row["sm_clock_hz"], row["power_w"], row["temperature_c"]) == (1.5e9, None, 40.0)
    assert (row["session"], row["commit"]) == ("s1", "c1")


def test_the_order_depends_on_the_seed_only():
    names = [[t.case.id for t in order(families(FakeMachine()), MACHINE, "smoke", seed)] for seed in (1, 1, 2)]
    assert names[0] == names[1] != names[2]
    assert sorted(names[0]) == sorted(names[2])


def lanes_of(counts, seed):
    """Return the lanes of the ordered cases of families with so many cases."""
    held = [FakeFamily(FakeMachine(), name=f"f{n}", directions=(f"d{n}",), count=c) for n, c in enumerate(counts)]
    return [task.case.direction for task in order(held, MACHINE, "smoke", seed)]


@given(st.lists(st.integers(1, 20), min_size=1, max_size=5), st.integers(0, 2**32 - 1))
def test_every_family_and_direction_has_its_share_first(counts, seed):
    lanes = lanes_of(counts, seed)
    assert Counter(lanes) == {f"d{n}": c for n, c in enumerate(counts)}
    fair = sum(min(c, FAIR) for c in counts)
    for stop in range(fair + 1):
        seen = Counter(lanes[:stop])
        unfinished = [seen[f"d{n}"] for n, c in enumerate(counts) if seen[f"d{n}"] < min(c, FAIR)]
        assert not unfinished or max(unfinished) - min(unfinished) <= 1


@given(st.lists(st.integers(FAIR + 1, 40), min_size=1, max_size=5), st.integers(0, 2**32 - 1), st.floats(0, 1))
def test_after_it_all_lanes_end_together(counts, seed, part):
    lanes = lanes_of(counts, seed)[FAIR * len(counts) :]
    seen = Counter(lanes[: round(part * len(lanes))])
    for n, count in enumerate(counts):
        assert seen[f"d{n}"] == pytest.approx(part * (count - FAIR), abs=1.5)


class Held(FakeFamily):
    """Half of the cases are held out."""

    def cases(self, machine, suite):
        for n, case in enumerate(super().cases(machine, suite)):
            yield replace(case, use="random" if n % 2 else "fit")


@given(st.integers(0, 2**32 - 1))
def test_fitted_cases_come_first_then_hold_outs_evenly(seed):
    uses = [task.case.use for task in order([Held(FakeMachine(), count=30)], MACHINE, "smoke", seed)]
    assert uses[:LEAST] == ["fit"] * LEAST
    rest = uses[LEAST:]
    assert all(abs(Counter(rest[:n])["random"] - n * 15 / 25) <= 1 for n in range(26))


class Two(FakeFamily):
    """Every second case is of another implementation."""

    def cases(self, machine, suite):
        for n, case in enumerate(super().cases(machine, suite)):
            yield replace(case, implementation=("matmul", "task-mapped")[n % 2])


@given(st.integers(0, 2**32 - 1))
def test_what_a_profile_must_hold_comes_first(seed):
    machine = FakeMachine()
    others = [FakeFamily(machine, name=name, op=name, count=30) for name in ("gelu", "embedding", "launch")]
    held = [*others, FakeFamily(machine, name="attention", op="attention", count=30), Two(machine, count=30)]
    held += [FakeFamily(machine, name="elementwise", op="elementwise", directions=("any",), count=30)]
    cases = [task.case for task in order(held, MACHINE, "smoke", seed)]
    assert [case.op for case in cases[: 3 * LEAST]] == ["gemm", "elementwise"] * LEAST + ["attention"] * LEAST
    assert {case.implementation for case in cases[: 2 * LEAST : 2]} == {"matmul"}
    assert len({case.id for case in cases}) == len(cases) == 30 * len(held)
    assert {case.op for case in cases[3 * LEAST :][:6]} >= {"gelu", "embedding", "launch"}


def test_cases_that_a_family_yields_twice_are_measured_once():
    held = [FakeFamily(FakeMachine()), FakeFamily(FakeMachine())]
    assert len(order(held, MACHINE, "smoke", 0)) == 3


@pytest.mark.parametrize("budget_s", [0.3, 0.7, 1.2])
def test_the_budget_is_kept(tmp_path, budget_s):
    machine = FakeMachine()
    outcome, store = sample(machine, tmp_path, budget_s=budget_s)
    warm_s = 4 * 0.03  # warm-ups and the first sample are what tells how long a case takes
    assert machine.now_s <= budget_s + warm_s + 0.02
    assert outcome.left == 9 - len(store.rows) > 0


def test_a_short_case_is_measured_where_a_long_one_would_not_fit(tmp_path):
    machine = FakeMachine()
    outcome, store = sample(machine, tmp_path, [FakeFamily(machine, count=2, second_s=1.0)], budget_s=13.0)
    assert len(store.rows) == outcome.left == 1


def test_a_wrong_kernel_is_reported_and_never_timed(tmp_path):
    machine = FakeMachine()
    outcome, store = sample(machine, tmp_path, [FakeFamily(machine, error=0.5)])
    assert not store.rows
    assert not machine.launched
    assert {s.reason for s in outcome.skipped} == {"wrong: relative error 0.5 above 0.001, not timed"}
    assert outcome.left == 0


def test_what_cannot_be_compared_is_timed(tmp_path):
    machine = FakeMachine()
    _, store = sample(machine, tmp_path, [FakeFamily(machine, error=float("nan"))])
    assert [row["error"] for row in store.rows.values()] == [None] * 3


def test_a_batch_between_different_sentinels_is_flagged(tmp_path):
    machine = FakeMachine(sentinels=[0.01, 0.0104])
    _, store = sample(machine, tmp_path, [FakeFamily(machine, count=1, second_s=0.1)], budget_s=0.92)
    assert [row["flagged"] for row in store.rows.values()] == [True]


def test_it_is_measured_again_where_there_is_time(tmp_path):
    machine = FakeMachine(sentinels=[0.01, 0.0104])
    _, store = sample(machine, tmp_path)
    assert store.flagged == 0
    assert set(Counter(machine.launched).values()) == {3 + 1 + 5, 2 * (3 + 1 + 5)}  # those of the disturbed batch twice


def test_small_moves_are_kept_and_not_flagged(tmp_path):
    machine = FakeMachine(sentinels=[0.01, 0.0101, 0.01, 0.0099, 0.01])
    _, store = sample(machine, tmp_path, [FakeFamily(machine, count=9, second_s=0.2)])
    assert store.flagged == 0
    assert {round(row["sentinel_ratio"], 3) for row in store.rows.values()} == {0.99, 1.0, 1.01}


def test_the_state_of_most_samples_is_the_reference(tmp_path):
    machine = FakeMachine(sentinels=[0.008, 0.008, 0.008, 0.01])  # a processor that slows down when it is warm
    store = Store(tmp_path)
    made = sampler(machine, store, budget_s=82.0)
    made.reference_s = 0.008
    made.run(order([FakeFamily(machine, count=9, second_s=0.2)], MACHINE, "smoke", 0))
    assert made.reference_s == pytest.approx(0.01)
    early = [row for row in store.rows.values() if row["flagged"]]
    assert len(store.rows) == 9
    assert 0 < len(early) < 4


def test_the_usual_state_is_the_one_that_most_agree_on():
    assert usual([1.0, 1.01, 1.0, 1.3, 1.2, 1.5, 1.1, 1.4]) == 1.0  # disturbed more often than not, never alike
    assert usual([1.0, 1.25, 1.25, 1.25]) == 1.25


def test_links_have_no_say_in_what_is_usual(tmp_path, monkeypatch):
    """The sentinel was not asked beside them."""
    store, heard, machine = Store(tmp_path), [], FakeMachine(sentinels=[0.0106])
    monkeypatch.setattr(store, "write", lambda: None)
    store.rows = {f"{n}": {"op": "collective", "flagged": False, "sentinel_ratio": 1.0} for n in range(99)}
    tasks = order([FakeFamily(machine)], MACHINE, "smoke", 0)
    sampler(machine, store, settled=heard.append).run(tasks)
    assert store.flagged == 0 and heard == [pytest.approx(0.0106)]
    assert len(store.rows) == 99 + len(tasks)


def test_a_fixed_reference_stays(tmp_path):
    machine = FakeMachine(sentinels=[0.02])
    _, store = sample(machine, tmp_path, fixed=True)
    assert store.flagged == len(store.rows) == 9
    assert {row["sentinel_ratio"] for row in store.rows.values()} == {2.0}


def test_a_disturbed_batch_is_measured_once_more_at_the_end(tmp_path):
    machine = FakeMachine(others=[0.0, 0.7, 0.0])
    _, store = sample(machine, tmp_path, [FakeFamily(machine)])
    assert store.flagged == 0
    assert Counter(machine.launched) == dict.fromkeys(store.rows, 2 * (3 + 1 + 5))


def test_a_machine_that_stays_disturbed_gives_flagged_samples(tmp_path):
    machine = FakeMachine(others=[0.7])
    _, store = sample(machine, tmp_path, [FakeFamily(machine)])
    assert store.flagged == len(store.rows) == 3
    assert Counter(machine.launched) == dict.fromkeys(store.rows, 2 * (3 + 1 + 5))


def test_despite_load_flags_everything_and_repeats_nothing(tmp_path):
    machine = FakeMachine()
    _, store = sample(machine, tmp_path, flag_all=True)
    assert store.flagged == len(store.rows) == 9
    assert set(Counter(machine.launched).values()) == {3 + 1 + 5}


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_out_of_memory_is_noted_and_passed_over(tmp_path, error):
    machine = FakeMachine()
    lacking = FakeFamily(machine, name="huge", op="huge", fails=error)
    outcome, store = sample(machine, tmp_path, [lacking, *families(machine)])
    assert {s.reason for s in outcome.skipped} == {"out of memory"}
    assert (len(outcome.skipped), len(store.rows), machine.released) == (3, 9, 3)


def test_how_torch_says_that_memory_ran_out():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert out_of_memory(caught.value)
    assert not out_of_memory(RuntimeError("no such kernel"))


def test_a_kernel_that_a_device_lacks_is_noted(tmp_path):
    machine = FakeMachine()
    lacking = FakeFamily(machine, name="x", op="x", fails=RuntimeError)
    outcome, store = sample(machine, tmp_path, [lacking, *families(machine)])
    assert {s.reason for s in outcome.skipped} == {"failed: RuntimeError: no such kernel"}
    assert len(store.rows) == 9


def test_a_device_that_fails_every_time_ends_the_session(tmp_path):
    machine = Lost()
    with pytest.raises(LostError, match="10 cases failed in a row, the last with no such kernel; then no device"):
        sample(machine, tmp_path, [FakeFamily(machine, count=30, fails=RuntimeError)])


class Lost(FakeMachine):
    """Nothing runs on it after the first sentinel."""

    asked = 0

    def sentinel(self):
        self.asked += 1
        if self.asked > 1:
            raise RuntimeError("no device")
        return super().sentinel()


def test_what_a_machine_lacks_for_many_cases_does_not_end_the_session(tmp_path):
    machine = FakeMachine()
    outcome, store = sample(machine, tmp_path, [FakeFamily(machine, count=30, fails=RuntimeError)])
    assert len(outcome.skipped) == 30 and not store.rows


class Stopping(FakeFamily):
    """Stops the measurement at its sixth case, some seconds in."""

    def prepare(self, case, machine, seed):
        if len(set(self.machine.launched)) == 5:
            self.stop()
        return super().prepare(case, machine, seed)

    def stop(self):
        raise KeyboardInterrupt


class Terminated(Stopping):
    def stop(self):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("family", [Stopping, Terminated])
def test_an_interruption_leaves_a_whole_file_and_resuming_skips_what_it_holds(tmp_path, family):
    machine = FakeMachine()
    with pytest.raises(KeyboardInterrupt), interruptible():
        sample(machine, tmp_path, [family(machine, count=9, second_s=0.1)])
    held = {row["id"] for row in read_samples(tmp_path / SAMPLES)}
    assert 0 < len(held) <= 5

    later = FakeMachine()
    outcome, store = sample(later, tmp_path, [FakeFamily(later, count=9, second_s=0.1)])
    assert (len(store.rows), outcome.left) == (9, 0)
    assert not held & set(later.launched)
    assert len(read_samples(tmp_path / SAMPLES)) == 9


def test_progress_is_told(tmp_path):
    told = []
    machine = FakeMachine()
    sample(machine, tmp_path, [FakeFamily(machine)], progress=lambda *seen: told.append(seen))
    assert told == [(0, 3, "gemm forward"), (1, 3, "gemm forward"), (2, 3, "gemm forward")]
