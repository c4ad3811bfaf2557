import csv
import gzip
from collections import Counter
from itertools import islice

import numpy as np
import pytest

from sim.cluster.generator import PUBLISHED, SLOS, generate
from sim.cluster.throughput_files import read_throughputs
from sim.cluster.throughputs import Throughputs
from sim.cluster.trace import read_trace
from sim.specs.fields import InputError
from tests.oracle import reference

ONE = Throughputs(types=("v100",), alone={(name, s): np.ones(1) for name in ("a", "b") for s in (1, 2, 4, 8)})


@pytest.fixture(scope="module")
def measured():
    return read_throughputs(reference("cluster/inputs/simulation_throughputs.json.gz"))


def test_thirty_jobs_at_once_are_those_of_the_published_generator(measured):
    trace = read_trace(reference("cluster/inputs/F2_static30_single.trace"))
    assert tuple(generate(30, 0.0, 0, measured)) == trace


@pytest.mark.parametrize(
    ("tag", "seed", "mean_s"),
    [
        ("E_single_lam7200_4-4-4_w10-40", 0, 7200.0),
        ("E_single_lam7200_4-4-4_w10-40", 1, 7200.0),
        ("E_single_lam7200_4-4-4_w10-40", 2, 7200.0),
        ("P_paper_single_lam1800_36-36-36_w4000-5000", 0, 1800.0),
        ("P_experiments_md_lam9000_36-36-36_w4000-5000", 15, 9000.0),
        ("P_experiments_md_lam9000_36-36-36_w4000-5000", 42, 9000.0),
    ],
)
def test_arrivals_are_those_of_published_runs(measured, tag, seed, mean_s):
    with gzip.open(reference("cluster/jct_per_job.csv.gz"), "rt") as file:
        rows = [r for r in csv.DictReader(file) if (r["tag"], r["seed"]) == (tag, str(seed))]
    at = {int(row["job_id"]): float(row["arrival_s"]) for row in rows}
    jobs = list(generate(max(at) + 1, mean_s, seed, measured))
    assert len(at) > 50
    assert max(abs(jobs[n].arrival_s - arrival) for n, arrival in at.items()) < 1e-6


def test_published_shares(measured):
    jobs = list(generate(4000, 100.0, 1, measured, multi_gpu=True, priorities=True, slos=True))
    shares = {scale: count / 4000 for scale, count in Counter(job.scale_factor for job in jobs).items()}
    assert shares == pytest.approx({1: 0.7, 2: 0.1, 4: 0.15, 8: 0.05}, abs=0.025)
    assert np.mean([job.weight == 5 for job in jobs]) == pytest.approx(0.2, abs=0.025)
    assert Counter(job.slo for job in jobs).keys() == {slo for _, slo in SLOS}
    assert np.mean(np.diff([job.arrival_s for job in jobs])) == pytest.approx(100, rel=0.05)
    minutes = np.array([job.steps / measured.alone[job.kind][0] / 60 for job in jobs])
    assert (minutes > 10**1.5 * 0.999).all()
    assert (minutes < 10**4).all()
    assert np.mean(minutes < 10**3) == pytest.approx(0.8, abs=0.025)
    assert {name for name, _ in (job.kind for job in jobs)} == set(PUBLISHED)
    many = {job.job_type for job in jobs if job.scale_factor > 1}
    assert not any(name.startswith(("A3C", "CycleGAN", "Recommendation")) for name in many)


def test_slos_leave_the_jobs_as_they_are():
    plain = list(generate(20, 10.0, 3, ONE))
    due = list(generate(20, 10.0, 3, ONE, slos=True))
    assert [(j.kind, j.steps, j.arrival_s) for j in plain] == [(j.kind, j.steps, j.arrival_s) for j in due]


def test_jobs_are_drawn_as_they_are_asked_for():
    endless = generate(None, 5.0, 7, ONE)
    assert list(islice(endless, 10)) == list(generate(10, 5.0, 7, ONE))
    assert next(endless).arrival_s > 0


def test_jobs_that_fill_the_devices_are_there_at_the_start():
    jobs = list(generate(12, 5.0, 7, ONE, fill=(4, 3)))
    assert sum(job.arrival_s == 0 for job in jobs) == 8  # and the first arrival
    assert sum(job.arrival_s == 0 for job in generate(40, 5.0, 7, ONE, multi_gpu=True, fill=(16,))) < 17


def test_arguments_that_are_wrong():
    for change, path in (
        ({"n": 0}, "n"),
        ({"mean_interarrival_s": -1.0}, "mean_interarrival_s"),
        ({"mean_interarrival_s": float("nan")}, "mean_interarrival_s"),
        ({"job_types": ["c"]}, "job_types"),
        ({"reference": "a100"}, "reference"),
        ({"fill": (-1,)}, "fill"),
        ({"seed": 1.5}, "seed"),
        ({"throughputs": Throughputs(types=("x",), alone={("a", 1): np.zeros(1)})}, "throughputs"),
        ({"throughputs": Throughputs(types=("x",), alone={("a", 1): np.ones(1)}), "multi_gpu": True}, "throughputs"),
    ):
        with pytest.raises(InputError) as caught:
            generate(**{"n": 1, "mean_interarrival_s": 1.0, "seed": 0, "throughputs": ONE} | change)
        assert caught.value.path == path
