from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.importers.slurm import read_sacct
from sim.cluster.jobs import ClusterJob
from sim.specs.fields import InputError

HEAD = "JobID|JobName|Partition|Account|User|Submit|Start|End|ElapsedRaw|State|AllocTRES|ReqTRES"
LINES = (
    "12|bert|train|nlp|ann|2025-03-01T10:00:30|x|x|600|COMPLETED|cpu=8,gres/gpu:v100=4,gres/gpu=4,mem=64G|",
    "12.batch|batch||nlp||2025-03-01T10:00:30|x|x|600|COMPLETED|cpu=8|",
    "11|unet|train||bob|2025-03-01T10:00:00|x|x|90|TIMEOUT||billing=1,gres/gpu:k80=1",
    "13|make|cpu|nlp|ann|2025-03-01T10:01:00|x|x|60|COMPLETED|cpu=8|",
    "14|bert|train|nlp|ann|2025-03-01T10:02:00|x|x|0|CANCELLED by 7|gres/gpu=1|",
    "15|bert|train|nlp|ann|2025-03-01T10:02:00|x|x|50|RUNNING|gres/gpu:v100=1|",
)


def log(tmp_path, *lines, head=HEAD):
    path = tmp_path / "sacct.txt"
    path.write_text("\n".join([head, *lines]) + "\n")
    return path


def test_work_is_time_on_the_type_it_ran_on(tmp_path):
    found = read_sacct(log(tmp_path, *LINES), {"v100": 2.0, "k80": 0.5, "a100": 4.0})
    assert found.jobs == (
        ClusterJob(job_type="unet", steps=45, entity="bob"),
        ClusterJob(job_type="bert", steps=1200, scale_factor=4, arrival_s=30.0, entity="nlp"),
    )
    assert found.throughputs.types == ("a100", "v100", "k80")
    assert found.throughputs.alone["bert", 4].tolist() == [4.0, 2.0, 0.5]  # 1200 steps take 600 s on v100
    assert found.skipped == {"steps of jobs": 1, "without GPUs": 1, "never ran": 1, "not ended": 1}


def test_without_speeds_all_types_are_alike(tmp_path):
    found = read_sacct(log(tmp_path, *LINES))
    assert [job.steps for job in found.jobs] == [90, 600]
    assert found.throughputs.alone["unet", 1].tolist() == [1.0, 1.0]
    head = "submit|jobid|elapsed|alloctres|comment"  # other columns, another order
    short = read_sacct(log(tmp_path, "2025-03-01T10:00:00|7|1-02:00:03|gres/gpu=2|x", head=head))
    assert short.jobs == (ClusterJob(job_type="job", steps=93603, scale_factor=2),)
    assert short.throughputs.types == ("gpu",)


def test_what_is_wrong_is_told_with_its_line(tmp_path):
    bad = (LINES[0].replace("2025-03-01T", "yesterday"), LINES[2].replace("|90|", "|-9|"))
    with pytest.raises(InputError) as caught:
        read_sacct(log(tmp_path, *LINES, *bad))
    places = [error.path.rpartition("/")[2] for error in (caught.value, *caught.value.also)]
    assert places == ["sacct.txt, line 8.submit", "sacct.txt, line 9.elapsed_raw"]
    for lines, head, told in (
        ((), HEAD, "no job that ran"),
        (LINES[1:2], HEAD, "1 steps of jobs"),
        (LINES[:1], HEAD.replace("Submit|", "Began|"), "a column Submit or Eligible"),
        (("1|2",), HEAD, "2 cells"),
        ((), "", "a column JobID"),
    ):
        with pytest.raises(InputError, match=told):
            read_sacct(log(tmp_path, *lines, head=head))
    for speeds in ({"v100": 1.0}, {"v100": 0.0, "k80": 1.0}, {"v100": float("nan"), "k80": 1.0}):
        with pytest.raises(InputError, match="speeds"):
            read_sacct(log(tmp_path, *LINES), speeds)


@given(st.binary(max_size=80) | st.lists(st.sampled_from("|".join([HEAD, *LINES]).split("|")), max_size=30).map(
    lambda cells: (HEAD + "\n" + "|".join(cells)).encode()))  # fmt: skip
def test_any_other_file_is_an_input_error(tmp_path_factory, raw):
    path = tmp_path_factory.mktemp("s") / "sacct.txt"
    path.write_bytes(raw)
    with suppress(InputError):
        assert read_sacct(path).jobs
