"""Figures and words of a shared cluster."""

import numpy as np
import pytest

from sim.cluster.policies import policy
from sim.cluster.sensitivity import drawn, sensitivity
from sim.cluster.simulate import Rounds, simulate
from sim.report import figures
from sim.report.cluster import answer_cluster, answer_sensitivity, answer_split
from sim.specs.fields import InputError
from tests.cluster.toys import Fixed, job, speeds

EVERY = Rounds(round_s=100, reset_s=0, switch_s=0)


@pytest.fixture(scope="module")
def run():
    jobs = [job(400), job(400, arrival_s=50), job(1_000, arrival_s=100, slo=1.1)]
    prices = {"fast": 2.0, "slow": 1.0}
    return simulate(
        jobs, speeds(), {"fast": 1, "slow": 1}, Fixed([0.5, 0.5]), EVERY, record=True, usd_per_hour=prices
    )  # fmt: skip


def test_devices_are_rows_in_the_colours_of_their_jobs(run):
    (picture,) = figures.cluster_devices(run).data
    assert list(picture.y) == ["fast 0", "slow 0"]
    first = run.entries[0].held[:, 0].tolist()
    assert [row[0] for row in picture.text] == [f"job {n}: net" if n >= 0 else "" for n in first]
    assert (np.array(picture.z)[:, 0] > 0).tolist() == [n >= 0 for n in first]
    last = {n for n, end in enumerate(run.end_s) if end == run.end_s.max()}
    assert {text for row in picture.text for text in row[-1:] if text} <= {f"job {n}: net" for n in last}


def test_a_device_is_idle_when_its_job_has_ended():
    for arrival_s in (0.0, 1e6):
        alone = simulate([job(100, arrival_s)], speeds(), {"fast": 1}, Fixed([1, 0]), EVERY, record=True)
        (picture,) = figures.cluster_devices(alone, 100 / 3_600).data  # 50 of 100 s
        assert np.mean(np.array(picture.z) > 0) == pytest.approx(0.5, abs=0.01)


def test_many_devices_with_the_same_jobs_are_one_row():
    found = simulate(
        [job(100, scale=50), job(100)],
        speeds(scales=(1, 50)),
        {"fast": 60},
        Fixed([1, 0]),
        EVERY,
        record=True,
    )
    (picture,) = figures.cluster_devices(found).data
    assert list(picture.y) == ["fast 0–49", "fast 50", "fast 51–59"]
    assert [row[0] for row in picture.text] == ["job 0: net", "job 1: net", ""]


def test_names_from_files_are_text():
    evil = speeds(**{"<b>x": [1.0, 1.0]})
    found = simulate([job(10, name="<b>x")], evil, {"fast": 1}, Fixed([1, 0]), EVERY, record=True)
    (picture,) = figures.cluster_devices(found, 0.01).data
    assert {text for row in picture.text for text in row} == {"job 0: &lt;b&gt;x", ""}


def test_completion_counts_jobs(run):
    (curve,) = figures.cluster_completion({"fixed": run}).data
    assert sorted(curve.x) == pytest.approx(sorted(run.jct_s / 3_600))
    assert curve.y[-1] == 100


def test_policies_best_first(run):
    worse = simulate([job(40_000)], speeds(), {"fast": 1}, Fixed([1, 0]), EVERY)
    (bars,) = figures.cluster_policies({"worse": worse, "fixed": run}).data
    assert list(bars.y) == ["fixed", "worse"]
    with pytest.raises(InputError, match="usd_per_hour"):
        figures.cluster_policies({"worse": worse}, "cost_usd")
    with pytest.raises(InputError, match="measure: got 'speed'; allowed: one of"):
        figures.cluster_policies({"worse": worse}, "speed")


def test_load_has_lines_and_published_points():
    figure = figures.cluster_load({"a": {1.0: 5.0, 2.0: 6.0}, "b": {1.0: 4.0}}, {"a": {1.0: 5.5}})
    assert [(t.name, t.mode) for t in figure.data if t.name] == [
        ("a", "lines+markers"), ("b", "lines+markers"), ("published", "markers"),
    ]  # fmt: skip
    assert [tuple(t.y) for t in figure.data if t.mode == "markers" and t.y[0]] == [(5.5,)]


def test_fairness_is_stacked():
    figure = figures.cluster_fairness({"a": [1.0, 2.0], "b": [0.0, 1.0]})
    assert {t.stackgroup for t in figure.data} == {"all"}
    assert figure.layout.xaxis.title.text == "time (steps)"


DRAWN = (figures.cluster_load, figures.cluster_completion, figures.cluster_policies, figures.cluster_fairness)


@pytest.mark.parametrize("draw", DRAWN)
def test_nothing_to_draw_is_refused(draw):
    with pytest.raises(InputError, match="or more"):
        draw({})


def test_rounds_have_to_be_recorded():
    found = simulate([job(1)], speeds(), {"fast": 1}, Fixed([1, 0]), EVERY)
    with pytest.raises(InputError, match="record=True"):
        figures.cluster_devices(found)


def test_a_part_of_the_time(run):
    (picture,) = figures.cluster_devices(run, until_h=50 / 3_600).data
    assert picture.dx * len(picture.text[0]) == pytest.approx(50 / 3_600)
    assert {text for row in picture.text for text in row} <= {"job 0: net", ""}
    with pytest.raises(InputError, match="until_h: got 0"):
        figures.cluster_devices(run, until_h=0)


def test_words(run):
    text = " ".join(answer_cluster(run))
    assert "fixed: 3 jobs end within" in text and "USD" in text and "1 job ends after its deadline" in text
    assert "no job" in next(answer_cluster(simulate([], speeds(), {"fast": 1}, Fixed([1, 0])))).lower()
    assert "2 of its computations, solved both ways" in " ".join(answer_split([0.01, 0.02]))
    assert list(answer_split([])) == []


def test_drawn_speeds_move_the_result():
    known = speeds()
    wide = {kind: np.stack([rate / 1.3, rate * 1.3]) for kind, rate in known.alone.items()}
    uncertain = type(known)(known.types, known.alone, {}, wide)
    jobs = [job(4_000 + 100 * n, arrival_s=50.0 * n) for n in range(8)]
    found = sensitivity(jobs, uncertain, {"fast": 1, "slow": 1}, lambda: Fixed([0.5, 0.5]), EVERY, draws=12)
    low, high = found.makespan_interval_s
    assert low < found.makespan_s < high
    again = sensitivity(jobs, uncertain, {"fast": 1, "slow": 1}, lambda: Fixed([0.5, 0.5]), EVERY, draws=12)
    assert again == found
    assert "12 draws" in next(answer_sensitivity(found))
    rates = [drawn(uncertain, np.random.default_rng(n)).alone["net", 1][0] / 2 for n in range(400)]
    assert np.quantile(rates, [0.1, 0.9]) == pytest.approx([1 / 1.3, 1.3], rel=0.08)
    with pytest.raises(InputError, match="interval"):
        sensitivity(jobs, known, {"fast": 1}, lambda: Fixed([1, 0]), EVERY)


def test_drawn_speeds_are_simulated_as_the_predicted_ones():
    """With what moves take by type of job and prices for a policy by cost: speeds without doubt give the same again."""
    known = speeds()
    narrow = {kind: np.stack([rate, rate]) for kind, rate in known.alone.items()}
    sure = type(known)(known.types, known.alone, {}, narrow)
    jobs = [job(4_000, arrival_s=50.0 * n) for n in range(8)]
    more = {"switch_s": {"net": 40.0}, "usd_per_hour": {"fast": 2.0, "slow": 1.0}}

    def by_cost():
        return policy("max_sum_throughput_normalized_by_cost_perf")

    expected = simulate(jobs, sure, {"fast": 1, "slow": 1}, by_cost(), EVERY, **more).makespan_s
    found = sensitivity(jobs, sure, {"fast": 1, "slow": 1}, by_cost, EVERY, draws=2, **more)
    assert (found.makespan_s, found.makespan_interval_s) == (expected, (expected, expected))
