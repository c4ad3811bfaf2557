"""Tables of jobs and step times: what a case is, and what is refused by its line."""

import pytest

from sim.specs import InputError
from sim.specs.job import Job
from sim.validation.jobs import SOURCE, distinct, is_table_of_jobs, read_cases, read_jobs
from sim.validation.predict import elsewhere
from tests.validation.runs import write

JOB = """model: llama3-8b
cluster: {{device: h100-sxm-80gb, nodes: {nodes}}}
plan: {{tp: {tp}, global_batch: 64, zero: 1}}
"""


def table(folder, *lines, header="job,step_time_s"):
    path = folder / "own.csv"
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "jobs").mkdir()
    for tp in (2, 4):
        (tmp_path / "jobs" / f"{tp}.yaml").write_text(JOB.format(nodes=1, tp=tp))
    return tmp_path


def test_a_line_is_a_run_of_the_jobs_own_plan(folder):
    path = table(folder, "jobs/2.yaml,9.5,monday", "jobs/4.yaml,11,", "jobs/2.yaml,9.6,", header="job,step_time_s,note")
    assert is_table_of_jobs(path)
    cases = read_jobs(path)
    job = Job.load(folder / "jobs" / "2.yaml")
    assert (cases[0].model, cases[0].cluster, cases[0].plan) == (job.model, job.cluster, job.plan.suited(job.cluster))
    assert [case.row.step_time_s for case in cases] == [9.5, 11.0, 9.6]
    assert [case.row.id for case in cases] == [f"{path}:{line}"[-200:] for line in (2, 3, 4)]
    assert cases[0].row.group == cases[2].row.group != cases[1].row.group
    assert {case.row.source for case in cases} == {SOURCE}
    assert all(p.step_time_s.low < p.step_time_s.value < p.step_time_s.high for p in elsewhere(cases))


def test_a_peak_is_compared_where_it_is_known(folder):
    lines = "jobs/2.yaml,9.5,4e10", "jobs/4.yaml,11,"
    first, second = read_jobs(table(folder, *lines, header="job,step_time_s,peak_memory_bytes"))
    assert (first.row.peak_memory_bytes, first.row.uses) == (4e10, {"time", "memory"})
    assert (second.row.peak_memory_bytes, second.row.uses) == (None, {"time"})
    with pytest.raises(InputError, match=r"own.csv:2.peak_memory_bytes: got 'x'"):
        read_jobs(table(folder, "jobs/2.yaml,9.5,x", header="job,step_time_s,peak_memory_bytes"))


def test_a_table_is_told_by_its_header_whatever_stands_below(folder):
    path = table(folder, "jobs/2.yaml,9.5,monday")
    assert is_table_of_jobs(path)
    with pytest.raises(InputError, match=r"own.csv:2: got '3 cells'; allowed: 2, as the header has"):
        read_jobs(path)


def test_a_profile_takes_the_place_of_the_jobs(folder):
    (case,) = read_jobs(table(folder, "jobs/2.yaml,9.5"), "h200-sxm-141gb")
    assert (case.cluster.profile, case.cluster.device) == ("h200-sxm-141gb", "h100-sxm-80gb")


def test_both_kinds_of_tables_stand_beside_each_other(folder):
    cases, skipped = read_cases([table(folder, "jobs/2.yaml,9.5"), write(folder / "runs.csv", {"tp": "2"})])
    assert len(cases) == 2 and not skipped
    assert not is_table_of_jobs(folder / "runs.csv") and not is_table_of_jobs(folder / "absent.csv")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("jobs/8.yaml,3", "own.csv:2: {folder}/jobs/8.yaml: got 'no such file'"),
        ("jobs/2.yaml,slow", "own.csv:2.step_time_s: got 'slow'; allowed: a number"),
        ("jobs/2.yaml,-1", "own.csv:2.step_time_s: got -1.0"),
        ("jobs/2.yaml,", "own.csv:2.step_time_s"),
        ("jobs/2.yaml,nan", "own.csv:2.step_time_s: got nan"),
        ("tune.yaml,3", "tune.yaml: plan: missing; required"),
        ("mixed.yaml,3", "mixed.yaml: cluster.groups: got 2"),
        ("much.yaml,3", "much.yaml: plan.pp: got 1"),
    ],
)
def test_a_line_that_is_no_run_is_refused(folder, line, told):
    (folder / "tune.yaml").write_text("model: llama3-8b\ncluster: {device: h100-sxm-80gb}\ntune: {global_batch: 8}\n")
    (folder / "much.yaml").write_text(JOB.format(nodes=1, tp=16))
    groups = "[{device: h100-sxm-80gb, nodes: 1}, {device: a100-sxm-80gb, nodes: 1}]"
    (folder / "mixed.yaml").write_text(
        f"model: llama3-8b\ncluster: {{groups: {groups}}}\nplan: {{pp: 2, global_batch: 64}}\n"
    )
    with pytest.raises(InputError) as caught:
        read_jobs(table(folder, line))
    assert told.format(folder=folder) in str(caught.value)
    assert str(caught.value).startswith(f"{folder}/own.csv:2")


def test_a_run_counts_once(folder):
    rows = [case.row for case in read_jobs(table(folder, "jobs/2.yaml,9.5"))]
    with pytest.raises(InputError, match=r"RUNS: got '.*own.csv:2'"):
        distinct("RUNS", rows + rows)
