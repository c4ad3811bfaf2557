"""Runs with failures by chance: as the laws say within their errors, jumped over or stepped through."""

from dataclasses import replace

import pytest

from sim.checkpointing import Fleet, Times, availability, plan, simulate
from sim.specs import Checkpointing, Failures, InputError

TIMES = Times(iteration_s=1.0, update_s=0.1, host_snapshot_s=1.5, persist_s=6.0, reload_s=10.0, contention=0.1)
DAY = 86_400.0


def saving(every=20, **given):
    held = {"device_mtbf_s": 1.0, "restart_s": 30.0, "repair_s": 0.0} | given
    return Checkpointing(every=every, contention=0.0, failures=Failures(**held))


@pytest.mark.parametrize(
    "given, more",
    [
        ({}, {"steps": 500, "mtbf_s": 120.0}),
        ({}, {"seconds": 900.0, "mtbf_s": 100.0}),
        ({"spares": 1, "repair_s": 300.0}, {"seconds": 2_000.0, "mtbf_s": 150.0}),
        ({"elastic": True, "repair_s": 300.0}, {"seconds": 2_000.0, "mtbf_s": 150.0, "fleet": Fleet(4, 4)}),
        ({}, {"steps": 400, "mtbf_s": 100.0, "adapt": True}),
        ({}, {"steps": 77}),
    ],
)
def test_a_jump_changes_nothing(given, more):
    jumped, stepped = (
        simulate(TIMES, saving(every=7, **given), seed=3, seeds=2, jump=j, **more) for j in (True, False)
    )
    assert jumped == stepped
    assert all(sample.failures > 0 for sample in jumped.samples) or "mtbf_s" not in more


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["host", "none"])
@pytest.mark.parametrize("every, mtbf_s", [(20, 600.0), (20, 20_000.0), (200, 3_000.0), (3, 3_000.0)])
def test_goodput_is_the_laws_within_three_standard_errors(every, mtbf_s, kind):
    times = replace(TIMES, snapshot=kind)
    law = plan(times, saving(every), mtbf_s)
    found = simulate(times, saving(every), seconds=1_000 * mtbf_s, mtbf_s=mtbf_s, seed=1, seeds=12)
    assert found.goodput_standard_error < 0.01
    assert abs(found.goodput - law.goodput) < 3 * found.goodput_standard_error
    assert found.failures == pytest.approx(1_000, rel=0.05)


@pytest.mark.parametrize("every", [3, 8, 20, 200])
def test_overhead_is_the_laws(every):
    law = plan(TIMES, saving(every))
    found = simulate(TIMES, saving(every), steps=2_000 * every)
    assert found.overhead_percent == pytest.approx(law.overhead_percent, abs=0.2)
    assert (found.checkpoints, found.failures) == (pytest.approx(2_000, abs=2), 0)
    assert found.goodput == pytest.approx(1 / (1 + law.overhead_fraction), rel=1e-3)


def test_lost_work_is_the_laws():
    law = plan(TIMES, saving(20), 20_000.0)
    found = simulate(TIMES, saving(20), seconds=4e7, mtbf_s=20_000.0, seed=5)
    assert found.lost_work_s == pytest.approx(law.lost_work_s, rel=0.03)
    assert found.recovery_s == found.lost_work_s + 10.0
    assert found.down_s == pytest.approx(40.0, rel=0.01)


@pytest.mark.parametrize("every", [1, 5, 20])
def test_no_failure_loses_more_than_two_intervals(every):
    found = simulate(TIMES, saving(every), seconds=1e6, mtbf_s=500.0, seed=2)
    assert every < found.max_lost_steps <= 2 * every


@pytest.mark.slow
@pytest.mark.parametrize(
    "given, fleet",
    [
        ({"spares": 0}, Fleet(16, 4)),
        ({"spares": 2}, Fleet(16, 4)),
        ({"spares": 1, "elastic": True}, Fleet(8, 8)),
        ({"spares": 0, "elastic": True}, Fleet(16, 4)),
    ],
)
def test_availability_is_the_chains(given, fleet):
    held = saving(100, repair_s=DAY, **given)
    law = availability(held.failures, 0.4 * DAY, fleet, restart_s=40.0)
    found = simulate(TIMES, held, seconds=600 * DAY, mtbf_s=0.4 * DAY, fleet=fleet, seed=7, seeds=8)
    shares = [sample.available_fraction for sample in found.samples]
    spread = (max(shares) - min(shares)) / 2
    assert found.available_fraction == pytest.approx(law.fraction, abs=max(0.003, spread))
    advice = plan(TIMES, held, 0.4 * DAY, fleet)
    assert advice.available_fraction == law.fraction
    assert found.goodput == pytest.approx(advice.goodput, abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("fleet", [Fleet(8, 8), Fleet(2, 2)])
@pytest.mark.parametrize("mtbf_s, most_off", [(4_000.0, 0.01), (1_000.0, 0.02), (300.0, 0.05)])
def test_an_elastic_run_keeps_what_the_law_says_also_where_it_fails_as_often_as_it_restarts(fleet, mtbf_s, most_off):
    """Down to one failure in the time of one restart: fewer replicas fail less often."""
    given = saving(20, restart_s=290.0, repair_s=3 * mtbf_s, elastic=True)
    law = plan(TIMES, given, mtbf_s, fleet)
    found = simulate(TIMES, given, seconds=8_000 * mtbf_s, mtbf_s=mtbf_s, fleet=fleet, seed=7, seeds=4)
    assert found.goodput == pytest.approx(law.goodput, rel=most_off + 3 * found.goodput_standard_error / found.goodput)
    assert found.available_fraction == pytest.approx(law.available_fraction, abs=0.03)


def test_adaptation_starts_with_the_rule_and_ends_within_the_budget():
    given = replace(saving("checkfreq"), overhead_budget=0.02)
    found = simulate(TIMES, given, steps=20_000, adapt=True)
    ks = [k for _, k in found.samples[0].steps_between_over_time]
    rule, least = (plan(TIMES, given).choice(p).steps_between for p in ("checkfreq-rule", "checkfreq"))
    assert ks == list(range(rule, found.steps_between + 1, 2))
    assert least <= found.steps_between <= least + 1


def test_a_month_of_16384_gpus_is_a_few_intervals():
    """Two and a half million steps and 233 failures a seed, of which a stretch runs two intervals."""
    times = Times(iteration_s=1.0, update_s=0.05, host_snapshot_s=0.3, persist_s=3.0, reload_s=5.0)
    given = saving("checkfreq", restart_s=300.0, spares=16, repair_s=DAY)
    found = simulate(times, given, seconds=30 * DAY, mtbf_s=11_135.0, seeds=20)
    assert found.failures == pytest.approx(233, rel=0.15)
    assert found.goodput_interval[0] < found.goodput < found.goodput_interval[1]


def test_the_interval_is_that_of_the_runs_however_rare_failures_are():
    """Of 40 runs one or two have a failure, from which they do not come back."""
    given = saving("checkfreq", repair_s=DAY)
    found = simulate(TIMES, given, seconds=3600.0, mtbf_s=1e5, seeds=40)
    goodputs = sorted(sample.goodput for sample in found.samples)
    assert 0 < sum(sample.failures for sample in found.samples) <= 3
    assert goodputs[4] == goodputs[-1] == found.goodput_interval[1]
    assert found.goodput_interval[0] == pytest.approx(goodputs[4])
    down = [s for sample in found.samples for s in sample.down_s]
    assert found.down_s == pytest.approx(sum(down) / len(down))
    assert found.down_s > 60  # to the end of the run
    assert len(down) == sum(sample.failures for sample in found.samples)


def test_a_seed_is_a_run():
    one, again, other = (simulate(TIMES, saving(), seconds=1e5, mtbf_s=900.0, seed=s) for s in (1, 1, 2))
    assert one == again != other
    two = simulate(TIMES, saving(), seconds=1e5, mtbf_s=900.0, seed=1, seeds=2)
    assert two.samples == (*one.samples, *other.samples)


@pytest.mark.parametrize(
    "given, words",
    [
        ({}, "steps: got None; allowed: exactly one of steps and seconds"),
        ({"steps": 1, "seconds": 1.0}, "steps: got 1; allowed: exactly one"),
        ({"steps": 0}, "steps: got 0; allowed: 1 to 1e+12"),
        ({"seconds": 1e10}, "seconds: got 10000000000.0; allowed: 1e-09 to 1e+09"),
        ({"seconds": 1e-10}, "seconds: got 1e-10; allowed: 1e-09 to 1e+09"),
        ({"steps": 5, "seeds": 0}, "seeds: got 0"),
        ({"steps": 5, "mtbf_s": -1.0}, "mtbf_s: got -1.0"),
        ({"steps": 5_000, "mtbf_s": 0.1}, "mtbf_s: got 0.1; allowed: a run with at most 1000000 failures"),
        ({"seconds": 1e9, "mtbf_s": 500.0}, "mtbf_s: got 500.0; allowed: a run with at most"),
    ],
)
def test_bad_input_is_refused(given, words):
    with pytest.raises(InputError) as caught:
        simulate(TIMES, **given)
    assert words in str(caught.value)
