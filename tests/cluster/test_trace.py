import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.jobs import ClusterJob
from sim.cluster.trace import read_trace, write_trace
from sim.specs.fields import InputError
from tests.oracle import reference

LINE = "A3C\tpython3 main.py\trl\t--max-steps\t0\t100\t2\t5\t1.2\t7.5"

PLAIN = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20)


@st.composite
def traces(draw):
    arrivals = sorted(draw(st.lists(st.floats(0, 1e9), min_size=1, max_size=8)))
    return tuple(
        ClusterJob(
            job_type=draw(PLAIN),
            steps=draw(st.integers(1, 10**15)),
            scale_factor=draw(st.integers(1, 64)),
            arrival_s=arrival,
            weight=draw(st.floats(1e-6, 1e6)),
            slo=draw(st.none() | st.floats(1e-3, 1e6)),
        )
        for arrival in arrivals
    )


@given(traces())
def test_what_is_written_reads_back(tmp_path_factory, jobs):
    path = tmp_path_factory.mktemp("trace") / "jobs.trace"
    write_trace(jobs, path)
    assert read_trace(path) == jobs


@given(st.binary(max_size=200) | st.lists(st.text(max_size=8), max_size=30).map(lambda c: "\t".join(c).encode()))
def test_any_other_file_is_an_input_error(tmp_path_factory, raw):
    folder = tmp_path_factory.mktemp("trace")
    for name in ("jobs.trace", "jobs.trace.gz"):
        (folder / name).write_bytes(raw)
        with pytest.raises(InputError):
            read_trace(folder / name)


def test_columns_packed_and_shorter_lines(tmp_path):
    job = ClusterJob(job_type="A3C", steps=100, scale_factor=2, weight=5.0, slo=1.2, arrival_s=7.5)
    (tmp_path / "a.trace").write_text(LINE + "\r\n\n")
    (tmp_path / "b.trace.gz").write_bytes(gzip.compress(LINE.encode()))
    (tmp_path / "c.trace").write_text(LINE.replace("\trl", ""))
    assert [read_trace(tmp_path / name) for name in ("a.trace", "b.trace.gz", "c.trace")] == [(job,)] * 3
    (tmp_path / "d.trace").write_text(LINE.replace("1.2", "-1.000000").replace("7.5", "0"))
    assert read_trace(tmp_path / "d.trace")[0].slo is None


def test_every_problem_is_told_with_line_and_column(tmp_path):
    path = tmp_path / "jobs.trace"
    other = LINE.replace("100", "many").replace("\t2\t5", "\t0\t-1").replace("7.5", "nan")
    path.write_text("\n".join([LINE, other, LINE.replace("7.5", "3"), LINE + "\tmore"]))
    with pytest.raises(InputError) as caught:
        read_trace(path)
    told = [(error.path.removeprefix(f"{path}, "), error.value) for error in (caught.value, *caught.value.also)]
    assert told == [
        ("line 2, column 6 (total steps)", "many"),
        ("line 2, column 10 (arrival)", "nan"),
        ("line 2, column 7 (scale factor)", 0),
        ("line 2, column 8 (weight)", -1.0),
        ("line 3, column 10 (arrival)", 3.0),
        ("line 4", "11 columns"),
    ]
    assert "7.5 or later, as line 1" in caught.value.also[3].allowed
    path.write_text(LINE.replace("\trl", "").replace("100", "x"))
    with pytest.raises(InputError, match="column 5 "):
        read_trace(path)


def test_no_more_problems_than_anybody_reads(tmp_path):
    path = tmp_path / "jobs.trace"
    path.write_text("\n".join([LINE.replace("100", "x")] * 500))
    with pytest.raises(InputError) as caught:
        read_trace(path)
    assert len(caught.value.also) == 99


def test_a_file_that_unpacks_to_too_much_is_refused(tmp_path):
    path = tmp_path / "jobs.trace.gz"
    path.write_bytes(gzip.compress(bytes(65 * 2**20), 1))
    with pytest.raises(InputError, match="at most 67108864 bytes"):
        read_trace(path)
    path.write_bytes(gzip.compress(LINE.encode())[:-6])
    with pytest.raises(InputError, match="do not unpack"):
        read_trace(path)


def test_jobs_that_a_trace_cannot_hold(tmp_path):
    first = ClusterJob(job_type="a", steps=1, arrival_s=2.0)
    for job, path in (
        (ClusterJob(job_type="a", steps=1, arrival_s=1.0), "arrival_s"),
        (ClusterJob(job_type="a", steps=1, arrival_s=2.0, entity="team"), "entity"),
        (ClusterJob(job_type="a\tb", steps=1, arrival_s=2.0), "job_type"),
    ):
        with pytest.raises(InputError, match=f"jobs.1.{path}"):
            write_trace([first, job], tmp_path / "jobs.trace")
    assert not (tmp_path / "jobs.trace").exists()


def test_published_traces():
    sizes = {
        "small_test": 20,
        "artifact_evaluation": 15,
        "max_min_fairness": 96,
        "minimize_makespan": 100,
        "F2_static30_single": 30,
    }
    for name, jobs in sizes.items():
        assert len(read_trace(reference(f"cluster/inputs/{name}.trace"))) == jobs
    first = read_trace(reference("cluster/inputs/max_min_fairness.trace"))[0]
    assert first == ClusterJob(job_type="ResNet-18 (batch size 128)", steps=925982, scale_factor=4)
