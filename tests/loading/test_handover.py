"""What training's own process needs a core for, to be handed samples, on cores that workers use too."""

import pytest

from sim.loading import predict
from sim.specs import InputError
from sim.specs.dataset import Dataset
from sim.specs.loading import Loading
from sim.specs.storage import Storage

FAST = {
    "dataset": Dataset(samples=1000, sample_bytes=1.0),
    "storage": Storage(read_bytes_per_s=1e12, write_bytes_per_s=1e12),
    "memory_bytes_per_s": 1e12,
}


def rate(compute, **given):
    return predict(Loading(**FAST, **given), compute).samples_per_s


def test_being_handed_a_sample_is_part_of_trainings_time():
    assert rate(100.0, cores=8, workers=4, prep_s=1e-3, handover_s=0.01) == pytest.approx(50, rel=0.01)


@pytest.mark.parametrize("cores", [1, 2])
def test_workers_and_handover_share_the_cores(cores):
    found = rate(1e6, cores=cores, workers=8, prep_s=0.004, handover_s=0.001)
    assert found == pytest.approx(cores / 0.005, rel=0.03)


@pytest.mark.parametrize("jobs", [2, 4])
def test_every_job_is_handed_its_samples_by_a_process_of_its_own(jobs):
    """A sample takes 3 ms of a core, and each job has one."""
    found = rate(5_000.0, cores=jobs, jobs=jobs, workers=4, topology="staged", prep_s=0.002, handover_s=0.001)
    assert found == pytest.approx(1 / 0.003, rel=0.04)


def test_a_trainer_that_computes_here_is_handed_samples_on_its_core():
    assert rate(100.0, cores=1, trainer_cores=1, workers=4, prep_s=0.005, handover_s=0.005) == pytest.approx(
        1 / (0.005 + 0.005 + 0.01), rel=0.02
    )


def test_it_is_a_stall_of_preparation_and_counts_for_cores():
    found = predict(Loading(**FAST, cores=2, workers=2, prep_s=0.001, handover_s=0.01), 100.0)
    assert found.prep_stall_fraction == pytest.approx(0.5, abs=0.01)
    assert found.prep_samples_per_s == pytest.approx(2 / 0.011)
    assert found.recommended_cores == 2
    assert predict(Loading(**FAST, cores=2, workers=2, prep_s=0.001), 100.0).recommended_cores == 1


def test_none_changes_nothing():
    given = {"cores": 2, "workers": 2, "prep_s": 0.001}
    assert rate(100.0, **given) == rate(100.0, **given, handover_s=0.0) == 100.0


def test_its_range():
    with pytest.raises(InputError, match="handover_s"):
        Loading(**FAST, handover_s=-1.0)


def test_taking_turns_on_cores_costs_a_share_of_them():
    given = {"cores": 2, "prep_s": 0.001, "sharing_loss": 0.2}
    assert rate(1e6, **given, workers=2) == pytest.approx(2000, rel=1e-3)
    assert rate(1e6, **given, workers=4) == pytest.approx(1600, rel=1e-3)
    assert predict(Loading(**FAST, **given, workers=4), 1e6).prep_samples_per_s == pytest.approx(1600)


def test_a_trainer_that_takes_turns_with_workers_loses_too():
    """A sample takes 10 ms of training and 10 ms of preparation: 50 a second on one core, 40 with a fifth lost."""
    given = {"cores": 1, "trainer_cores": 1, "workers": 1, "prep_s": 0.01}
    assert rate(100.0, **given) == pytest.approx(50, rel=0.01)
    assert rate(100.0, **given, sharing_loss=0.2) == pytest.approx(40, rel=0.01)


def test_cores_that_leave_training_waiting_to_be_handed_samples_would_not_do():
    """A sample takes 1 ms of training and 0.1 ms of handover: 909 a second however many cores prepare."""
    found = predict(Loading(**FAST, workers=8, topology="staged", prep_s=0.01, handover_s=1e-4), 1000.0)
    assert found.why.endswith("11 cores with as many workers would bring 909 samples/s.")
