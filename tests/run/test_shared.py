"""A run beside other jobs: alone as by itself, behind others by hand, and what is refused."""

import pytest

from sim.cluster.jobs import ClusterJob
from sim.cluster.trace import write_trace
from sim.run import run_of, whole_run
from sim.run.shared import RUN
from sim.specs import Around, Checkpointing, InputError, Prices, Sharing, Training
from sim.units import DAY_S, HOUR_S

H100, A100 = "h100-sxm-80gb", "a100-sxm-80gb"
WORKLOAD = f"""
devices: [{H100}, {A100}]
jobs:
  small: {{model: gpt2, gpus: [1, 2, 4, 8], plan: {{global_batch: 64}}}}
"""
LONG = Training(steps=3_000)


@pytest.fixture
def shared(tmp_path):
    """Return a section with other jobs, (steps, arrival in seconds) each, of the one type in the workload."""

    def make(*others, **more):
        (tmp_path / "workload.yaml").write_text(WORKLOAD)
        trace = tmp_path / "jobs.trace"
        write_trace([ClusterJob(job_type="small", steps=n, scale_factor=8, arrival_s=at) for n, at in others], trace)
        stated = {"workload": str(tmp_path / "workload.yaml"), "devices": {H100: 16}, "policy": "fifo"} | more
        return Sharing(**stated if "every_hours" in stated else {"trace": str(trace)} | stated)

    return make


def test_who_never_has_to_make_room_takes_what_it_takes_alone(step, shared):
    run = whole_run(step, LONG, sharing=shared((1, 1e6)))
    beside, wall_s = run.shared, LONG.steps * step.step_time_s
    assert beside.days * DAY_S == pytest.approx(wall_s)
    assert (beside.held_fraction, beside.others_ended, beside.others_jct_h) == (pytest.approx(1), 0, None)
    for name in ("days", "gpu_hours", "cost_usd", "energy_kwh"):
        assert getattr(beside, name) == pytest.approx(getattr(run, name))
        assert getattr(beside, f"{name}_interval") == pytest.approx(getattr(run, f"{name}_interval"))


def test_it_takes_turns_and_pays_for_its_own(step, shared):
    """An equal share with jobs that want the same devices: it ends later, and pays what it holds."""
    alone = whole_run(step, LONG)
    beside = whole_run(
        step, LONG, sharing=shared(*[(10**6, 60.0)] * 2, policy="max_min_fairness", usd_per_gpu_hour=2.0)
    ).shared
    assert beside.days > 1.2 * alone.days and beside.held_fraction < 0.9
    assert beside.gpu_hours == pytest.approx(beside.held_fraction * beside.days * 24 * step.placed.gpus)
    assert beside.gpu_hours > alone.gpu_hours  # every turn begins with reading what was saved
    assert beside.cost_usd == pytest.approx(2 * beside.gpu_hours)
    assert beside.energy_kwh == pytest.approx(alone.energy_kwh * beside.gpu_hours / alone.gpu_hours)
    assert beside.days_interval[0] < beside.days < beside.days_interval[1]
    assert {job.job_type for job in beside.simulated.jobs} == {RUN, "small"}


def test_weight_brings_it_forward(step, shared):
    def days(weight):
        sharing = shared(*[(10**6, 0.0)] * 2, policy="max_min_fairness", weight=weight)
        return whole_run(step, LONG, sharing=sharing).shared.days

    assert days(5.0) < days(1.0)


def test_failures_and_data_come_with_it_and_renting_does_not(step, shared):
    kept = Checkpointing(storage="nvme")
    run = run_of(step, Around(LONG, None, kept, Prices(usd_per_gpu_hour=1.0), shared((1, 1e6))))
    assert run.shared.days == pytest.approx(run.days) and run.days > LONG.steps * step.step_time_s / DAY_S
    assert run.shared.cost_usd == pytest.approx(run.shared.gpu_hours)  # no price of its own: the run's


def test_jobs_by_chance_come_as_long_as_the_run_takes(step, shared):
    run = whole_run(step, LONG, sharing=shared(every_hours=1.0, devices={H100: 32}, seed=3))
    assert run.shared.others_ended >= 1 and run.shared.others_jct_h > 0
    last = run.shared.simulated.jobs[-1].arrival_s
    assert 0 < last <= run.shared.days * DAY_S + HOUR_S


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"devices": {H100: 8}}, "sharing.devices.h100-sxm-80gb: got 8; allowed: 16 or more"),
        ({"devices": {A100: 64}}, "sharing.devices.h100-sxm-80gb: got None; allowed: 16 or more"),
        ({"devices": {H100: 16, "b200": 8}}, "sharing.devices.b200: got 'b200'; allowed: one of h100"),
        ({"workload": "/nowhere.yaml"}, "sharing.workload./nowhere.yaml"),
        ({"trace": "/nowhere.trace"}, "sharing./nowhere.trace"),
    ],
)
def test_what_cannot_be_is_refused(step, shared, more, words):
    with pytest.raises(InputError) as error:
        whole_run(step, LONG, sharing=shared((1, 0.0), **more))
    assert str(error.value).startswith(words)
