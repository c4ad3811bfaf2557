"""The exam: halves that share no group, both columns, and nothing of a half in what predicts it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.costs.profile import Z80
from sim.costs.run_level import run_level
from sim.validation import exam
from sim.validation.exam import GOALS, examine, two_fold
from sim.validation.fit import halved, spread, spread_of_unseen
from sim.validation.predict import fit_site, log_errors
from sim.validation.table import read_runs
from sim.validation.validate import translated
from tests.oracle import reference
from tests.validation.runs import write


def table(tmp_path, *changes):
    plans = [{"tp": str(t), "dp": str(8 // t), "micro_batch": str(m)} for t in (1, 2, 4, 8) for m in (1, 2)]
    return read_runs(write(tmp_path / "runs.csv", *(p | c for p in plans for c in changes)))


@given(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=40))
def test_halves_share_no_group_and_are_about_equal(groups):
    first = halved(groups)
    assert not {g for g, mine in zip(groups, first, strict=True) if mine} & {
        g for g, mine in zip(groups, first, strict=True) if not mine
    }
    assert abs(2 * int(first.sum()) - len(groups)) <= max(groups.count(g) for g in groups)


@pytest.mark.slow
def test_a_half_is_predicted_by_the_other_alone(tmp_path):
    """A half measured twice as slow changes what the other half is predicted, and nothing of its own."""
    rows = table(tmp_path, {"group": "a", "global_batch": "64"}, {"group": "b", "global_batch": "128"})
    slow = [replace(r, step_time_s=r.step_time_s * (2 if r.group == "a" else 1)) for r in rows]
    before, after = ({o.row.id: o.prediction.step_time_s.value for o in two_fold(t).outcomes} for t in (rows, slow))
    assert all((after[r.id] == before[r.id]) == (r.group == "a") for r in rows)


def test_one_group_has_no_halves(tmp_path):
    assert two_fold(table(tmp_path, {"group": "a"})) is None
    assert two_fold([]) is None


def test_a_half_that_cannot_be_predicted_says_nothing_of_the_other(tmp_path):
    assert two_fold(read_runs(write(tmp_path / "runs.csv", {"group": "a"}, {"group": "b", "device": "abacus"}))) is None


def test_tables_of_one_site_are_joined(tmp_path, monkeypatch):
    monkeypatch.setattr(exam, "two_fold", lambda rows: None)
    rows = {name: table(tmp_path, {"group": name}) for name in ("ptdp_2104_04473", "korthikanti_2205_05198", "mine")}
    entries = list(examine(rows))
    assert [(e.name, e.elsewhere["time"]["n"]) for e in entries] == [("korthikanti + ptdp", 16), ("mine", 8)]
    assert [e.goal and e.goal.raw for e in entries] == [7, None]


def test_a_spread_holds_four_fifths():
    random = np.random.default_rng(3)
    assert abs(spread([random.normal(0, 0.1, 4000)]) - 0.1) < 0.006
    # A source counts as a whole: ten thousand good runs do not outvote one bad source.
    assert spread([random.normal(0, 0.01, 10_000), np.array([0.5])]) > 0.3


def test_sources_that_differ_leave_more_to_one_that_is_not_among_them():
    random = np.random.default_rng(4)
    alike = [random.normal(0, 0.1, 4000) for _ in range(8)]
    assert abs(spread_of_unseen(alike) / spread(alike) - 1) < 0.02
    drawn = [[offset + random.normal(0, 0.02, 20) for offset in random.normal(0, 0.1, 9)] for _ in range(1500)]
    plain, wider = (
        np.mean([np.abs(new) <= Z80 * of(known) for new, *known in drawn]) for of in (spread, spread_of_unseen)
    )
    assert plain < 0.775 and abs(wider - 0.8) < 0.025
    assert spread_of_unseen(alike[:2]) == spread(alike[:2])


@pytest.mark.slow
def test_the_sites_reach_what_they_reach():
    """Two-fold errors of the small tables: no constant comes near, and at most what has been reached."""
    reached = {"korthikanti + ptdp": 3.5, "simumax_b200": 4.5, "torchtitan": 7.8}
    names = [name for site in reached for name in GOALS[site].tables]
    inside, runs = 0.0, 0
    for entry in examine({name: read_runs(reference(f"runs/{name}.csv")) for name in names}):
        time = entry.site["time"]
        assert time["mape"] < reached[entry.name]
        assert time["mape"] < min(b["mape"] for b in time["baselines"].values())
        inside, runs = inside + time["n"] * time["coverage80"], runs + time["n"]
    # Of tables of 12 to 24 runs one alone says little.
    assert 0.75 <= inside / runs <= 0.85


@pytest.mark.slow
@pytest.mark.parametrize(("name", "reached"), [("bigscience_a100", 6.0), ("zero_bubble_2401_10241", 3.9)])
def test_three_runs_of_a_site_tell_the_others(name, reached):
    """Four draws of three: better than what other sources tell, and the interval holds."""
    cases = translated([row for row in read_runs(reference(f"runs/{name}.csv")) if "time" in row.uses])
    elsewhere = log_errors(cases, run_level(cases[0].row.source).parameters)
    random, errors, inside = np.random.default_rng(0), [], []
    for _ in range(4):
        known = {*random.choice(len(cases), 3, replace=False).tolist()}
        site = fit_site([case for n, case in enumerate(cases) if n in known])
        left = log_errors([case for n, case in enumerate(cases) if n not in known], site.parameters)
        errors.append(100 * np.mean(np.abs(np.exp(left) - 1)))
        inside.append(np.mean(np.abs(left) <= Z80 * site.sigma_log))
    assert np.mean(errors) < min(reached, 100 * np.mean(np.abs(np.exp(elsewhere) - 1)))
    assert np.mean(inside) > 0.5
