from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.importers.kueue import read_kueue
from sim.cluster.jobs import ClusterJob
from sim.specs.fields import InputError

HEAD = "namespace,name,clusterQueue,priority,creationTimestamp,admittedAt,finishedAt,gpus,podSets,flavor,node"
LINES = (
    "nlp,bert-7f3a9-12,research,100,2025-03-01T10:00:10Z,2025-03-01T10:05:00Z,2025-03-01T10:15:00Z,8,,h100,x",
    'cv,unet,,,2025-03-01T11:00:00+01:00,2025-03-01T10:00:00Z,2025-03-01T10:00:30Z,,"worker=2x4,launcher=1x0",a100,x',
    "cv,web,,,2025-03-01T10:00:00Z,2025-03-01T10:00:00Z,2025-03-01T10:00:30Z,0,,,x",
    "cv,late,,,2025-03-01T10:00:00Z,,,1,,a100,x",
    "cv,long,,,2025-03-01T10:00:00Z,2025-03-01T10:00:00Z,,1,,a100,x",
)


def log(tmp_path, *lines, head=HEAD):
    path = tmp_path / "workloads.csv"
    path.write_text("\n".join([head, *lines]) + "\n")
    return path


def test_work_is_time_from_admission_to_end(tmp_path):
    found = read_kueue(log(tmp_path, *LINES), {"h100": 3.0, "a100": 1.5}, {100: 5.0})
    assert found.jobs == (
        ClusterJob(job_type="unet", steps=45, scale_factor=8, entity="cv"),
        ClusterJob(job_type="bert", steps=1800, scale_factor=8, arrival_s=10.0, weight=5.0, entity="research"),
    )
    assert found.throughputs.types == ("h100", "a100")
    assert found.throughputs.alone["bert", 8].tolist() == [3.0, 1.5]
    assert found.skipped == {"without GPUs": 1, "never admitted": 1, "not finished": 1}


def test_other_headings(tmp_path):
    head = "Name,JobType,creationtimestamp,admissionTime,completionTime,gpus"
    line = "n-1,bert,2025-03-01T10:00:00Z,2025-03-01T10:00:00Z,2025-03-01T10:00:02.6Z,2"
    found = read_kueue(log(tmp_path, line, head=head))
    assert found.jobs == (ClusterJob(job_type="bert", steps=3, scale_factor=2),)
    assert found.throughputs.types == ("gpu",)


def test_what_is_wrong_is_told_with_its_line(tmp_path):
    bad = (
        LINES[0].replace("T10:15", "T09:15"),
        LINES[0].replace(",8,", ",many,"),
        LINES[0].replace(",100,", ",high,"),
        LINES[1].replace("worker=2x4", "worker"),
    )
    with pytest.raises(InputError) as caught:
        read_kueue(log(tmp_path, *bad))
    places = [error.path.rpartition("line ")[2] for error in (caught.value, *caught.value.also)]
    assert places == ["2.finished", "3.gpus", "4.priority", "5.pod_sets"]
    with pytest.raises(InputError, match="a column admittedAt or"):
        read_kueue(log(tmp_path, *LINES, head=HEAD.replace("admittedAt", "began")))
    with pytest.raises(InputError, match=r"line 2\.weight"):
        read_kueue(log(tmp_path, *LINES), weights={100: -1.0})


@given(st.binary(max_size=80) | st.lists(st.sampled_from(",".join([HEAD, *LINES]).split(",")), max_size=30).map(
    lambda cells: (HEAD + "\n" + ",".join(cells)).encode()))  # fmt: skip
def test_any_other_file_is_an_input_error(tmp_path_factory, raw):
    path = tmp_path_factory.mktemp("k") / "workloads.csv"
    path.write_bytes(raw)
    with suppress(InputError):
        assert read_kueue(path).jobs
