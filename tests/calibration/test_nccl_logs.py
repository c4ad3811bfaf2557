"""Logs of nccl-tests: what is read of each version, and what is refused with one clear error."""

import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibration.nccl_logs import is_log, read_logs
from sim.specs import InputError
from tests.calibration import nccl

SIZES = 2.0 ** np.arange(3, 31, 3)
SECONDS = 2e-5 + SIZES / 3e11

OLD = """# nThread 1 nGpus 4 minBytes 1048576 maxBytes 1073741824 step: 32(factor) warmup iters: 5 iters: 20
#
# Using devices
#   Rank  0 Pid  12046 on       dgx1 device  0 [0x06] Tesla V100-SXM2-16GB
#   Rank  1 Pid  12046 on       dgx1 device  1 [0x07] Tesla V100-SXM2-16GB
#   Rank  2 Pid  12046 on       dgx1 device  2 [0x0a] Tesla V100-SXM2-16GB
#   Rank  3 Pid  12046 on       dgx1 device  3 [0x0b] Tesla V100-SXM2-16GB
#
#                                                     out-of-place                       in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144   float             45.10   23.25   17.44  0e+00    44.21   23.72   17.79  5e-07
dgx1:12046:12046 [0] NCCL INFO Launch mode Parallel
    33554432       8388608   float            301.2   111.40   83.55  0e+00    300.1   111.81   83.86    N/A
  1073741824     268435456   float           8202.3   130.91   98.18  0e+00   8200.0   130.94   98.21  0e+00
# Out of bounds values : 0 OK
"""


def written(tmp_path, text, name="run.log"):
    path = tmp_path / name
    path.write_text(text)
    return path


def read_log(path):
    (found,) = read_logs(path)
    return found


@pytest.mark.parametrize(
    ("program", "operation"),
    [("all_reduce", "all_reduce"), ("all_gather", "all_gather"), ("alltoall", "all_to_all"), ("sendrecv", "shift")],
)
def test_a_log_tells_ranks_hosts_sizes_and_times(tmp_path, program, operation):
    path = written(tmp_path, nccl.log(program, (8, 8), SIZES, SECONDS))
    found = read_log(path)
    assert (found.operation, found.ranks, found.hosts) == (operation, 16, 2)
    assert found.sizes.tolist() == SIZES.tolist()
    assert found.seconds == pytest.approx(SECONDS, abs=5.1e-9)
    assert is_log(path)


def test_old_versions_leave_columns_out_and_the_files_name_says_which(tmp_path):
    found = read_log(written(tmp_path, OLD, "AllGather-4.txt"))
    assert (found.operation, found.ranks, found.hosts) == ("all_gather", 4, 1)
    assert found.seconds.tolist() == pytest.approx([45.10e-6, 301.2e-6, 8202.3e-6])


def test_bandwidths_tell_an_all_reduce_without_a_name(tmp_path):
    named = nccl.log("all_reduce", (8,), SIZES, SECONDS)
    assert read_log(written(tmp_path, named.partition("\n")[2])).operation == "all_reduce"


def test_a_size_that_was_run_twice_counts_once_the_faster(tmp_path):
    text = nccl.log("all_reduce", (8,), [*SIZES, *SIZES], [*SECONDS, *(2 * SECONDS)])
    assert read_log(written(tmp_path, text)).seconds == pytest.approx(SECONDS, abs=5.1e-9)


def test_a_file_of_several_tests_is_read_one_by_one(tmp_path):
    """Of a shell's loop over programs and of one that runs a program again, after one that was stopped."""
    stopped = nccl.log("all_gather", (4, 4), SIZES, 2 * SECONDS).partition("# Out of bounds")[0]
    text = GOOD + stopped + GOOD
    found = read_logs(written(tmp_path, text))
    assert [(log.operation, log.ranks, log.hosts) for log in found] == [
        ("all_reduce", 8, 1),
        ("all_gather", 8, 2),
        ("all_reduce", 8, 1),
    ]
    assert found[1].seconds == pytest.approx(2 * SECONDS, abs=5.1e-9)


@pytest.mark.parametrize(
    "printed",
    [
        lambda line: f"0: {line}",
        lambda line: f"[1,0]<stdout>: {line}",
        lambda line: f"{line}\r",
        lambda line: f"node1:40:41 [0] NCCL INFO Connected all rings\n{line}",
        lambda line: f"[2025-01-01 12:00:00] 10.0.0.1:40:41 [0] NCCL WARN slow\n{line}",
        lambda line: f"8node:40:41 [0] NCCL INFO Connected all rings\n{line}",
        lambda line: line if line[0] == "#" else f"{line[:52]}node1:40:41 [0] NCCL INFO Connected NVLS\n{line[52:]}",
        lambda line: line if line[0] == "#" else f"{line}  2025-01-01 12:00:00",
    ],
    ids=["srun --label", "mpirun --tag-output", "CRLF", "NCCL", "dated", "digits", "NCCL in lines", "-S 1"],
)
def test_what_others_print_between_is_left_out(tmp_path, printed):
    path = written(tmp_path, "".join(f"{printed(line)}\n" for line in GOOD.splitlines()))
    assert is_log(path)
    found, plain = read_log(path), read_log(written(tmp_path, GOOD, "plain.log"))
    assert (found.ranks, found.hosts, found.operation) == (8, 1, "all_reduce")
    assert found.sizes.tolist() == plain.sizes.tolist() and found.seconds.tolist() == plain.seconds.tolist()


def with_more_columns(half, end=""):
    """Return a log with further columns after each four, and after the line; the heading as nccl-tests prints it."""
    heading, row = re.compile("#wrong"), re.compile(r"^(\d? .*)(( +[\d.]+){4})(( +[\d.]+){4})$")
    told = "#wrong    i_min    i_max    i_p99    i_cv%" if half else "#wrong"
    lines = (heading.sub(told, row.sub(rf"\1\2{half}\4{half}{end}", line)) for line in GOOD.splitlines())
    return "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize(
    ("half", "end"),
    [
        ("    31.20    48.90    48.90     9.31", ""),
        ("    31.20    48.90    48.90     9.31", "  2026-01-01 12:00:00"),
        ("", "    RING   SIMPLE          16"),
        ("", "     N/A      N/A         N/A"),
    ],
    ids=["-I 1", "-I 1 -S 1", "-A 1 of rccl-tests", "-A 1 without a choice"],
)
def test_columns_beside_times_are_left_out(tmp_path, half, end):
    text = with_more_columns(half, end)
    found, plain = read_log(written(tmp_path, text)), read_log(written(tmp_path, GOOD, "plain.log"))
    assert found.sizes.tolist() == plain.sizes.tolist() and found.seconds.tolist() == plain.seconds.tolist()
    stopped = text.partition("# Out of bounds")[0][:-60]
    assert read_log(written(tmp_path, stopped)).sizes.tolist() == SIZES[:-1].tolist()


def test_a_program_may_have_a_suffix(tmp_path):
    """`make NAME_SUFFIX=_mpi` builds all_reduce_perf_mpi."""
    text = GOOD.replace("all_reduce_perf", "all_reduce_perf_mpi")
    assert read_log(written(tmp_path, text)).operation == "all_reduce"


@pytest.mark.parametrize("at", range(1, 130))
def test_a_test_that_was_stopped_is_read_to_its_last_whole_size(tmp_path, at):
    whole = GOOD.partition("# Out of bounds")[0]
    last = whole.splitlines(keepends=True)[-1]
    found = read_log(written(tmp_path, whole[: -len(last)] + last[:at]))
    assert found.sizes.tolist() in (SIZES.tolist(), SIZES[:-1].tolist())
    assert found.seconds == pytest.approx(SECONDS[: len(found.sizes)], abs=5.1e-9)


GOOD = nccl.log("all_reduce", (8,), SIZES, SECONDS)
LAST = GOOD.splitlines()[-4]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (GOOD.replace("#  Rank", "#  rank"), "got '0 ranks'; allowed: the lines '#  Rank"),
        (nccl.log("all_reduce", (1,), SIZES, SECONDS), "got '1 rank'"),
        (GOOD.replace("Rank  1", "Rank  0"), "rank 0 twice in one test'; allowed: the lines"),
        (GOOD.replace(" time ", " cputime "), "got 'cputime'; allowed: time: a test without -C 1"),
        (nccl.log("all_reduce", (8, 7), SIZES, SECONDS), "7 + 8 ranks'; allowed: as many ranks on every host"),
        (nccl.log("all_reduce", (8,), [], []), "no size"),
        (GOOD.replace(LAST, LAST.replace("      0 ", "     12 ", 1)), "12 wrong values"),
        (GOOD.replace(LAST, " ".join(LAST.split()[:7])), "as nccl-tests prints them"),
        (GOOD.replace(LAST.split()[5], "-1.0", 1), "a time above 0"),
        (GOOD.replace(LAST.split()[5], "nan", 1), "a time above 0"),
        (GOOD.replace(LAST.split()[5], "1e-300", 1), "a time above 0 (us), from 0.001 to 1e+12"),
        (GOOD.replace(LAST.split()[0], f"-{LAST.split()[0]}"), f"-{LAST.split()[0]} bytes'; allowed: a size from 0"),
        (GOOD.replace(LAST.split()[0], "9" * 400), "allowed: a size from 0 to 1125899906842624 bytes"),
        (nccl.log("all_reduce", (8,), [0.0], [2e-5]), "'a size of 0 bytes alone'; allowed: a whole log"),
        (GOOD.replace("all_reduce_perf", "hypercube_perf"), "'hypercube'; allowed: one of all_reduce"),
        (GOOD.replace("all_reduce_perf", "all_gather_perf"), "all_gather of 8 ranks with busbw 1.75 times algbw"),
        (OLD, "neither its text nor its name says"),
    ],
)
def test_other_logs_are_refused_by_file_and_reason(tmp_path, text, told):
    with pytest.raises(InputError) as caught:
        read_log(written(tmp_path, text))
    assert told in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "run.log"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.integers(0, len(GOOD)), st.text(max_size=40))
def test_a_damaged_log_is_read_or_refused(tmp_path, at, put):
    path = written(tmp_path, GOOD[:at] + put + GOOD[at + len(put) :])
    try:
        found = read_log(path)
    except InputError:
        return
    assert found.ranks >= 2 and np.all(found.seconds > 0) and np.all(np.isfinite(found.seconds))


REPORT = nccl.report("all_reduce", ["a", "a", "b", "b"], 4, SIZES, SECONDS)
FIRST = f'"time": {round(SECONDS[0] * 1e6, 6)}'


@pytest.mark.parametrize(
    ("processes", "gpus", "hosts"), [(["a"], 8, 1), (["a"] * 4 + ["b"] * 4, 1, 2), (["a", "b"], 4, 2)]
)
@pytest.mark.parametrize(("program", "operation"), [("all_reduce", "all_reduce"), ("alltoall", "all_to_all")])
def test_what_is_written_as_json_is_read_as_the_log(tmp_path, processes, gpus, hosts, program, operation):
    """It names the first rank of every process alone."""
    path = written(tmp_path, nccl.report(program, processes, gpus, SIZES, SECONDS), "x.json.0")
    found = read_log(path)
    assert is_log(path)
    assert (found.operation, found.ranks, found.hosts) == (operation, 8, hosts)
    assert found.sizes.tolist() == SIZES.tolist() and found.seconds == pytest.approx(SECONDS, abs=1e-12)


def test_json_of_another_programs_name_follows_from_the_bandwidths(tmp_path):
    text = REPORT.replace("./build/all_reduce_perf", "run")
    assert read_log(written(tmp_path, text)).operation == "all_reduce"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (REPORT[:-300], "allowed: well-formed"),
        (REPORT.replace("HOME", "\\u0007"), ".env.0: got "),
        (REPORT.replace('"time"', '"cpu_time"'), "'cpu_time'; allowed: time: a test without -C 1"),
        (REPORT.replace(FIRST, '"time": "nan"', 1), "results.0.out_of_place: got 'nan'; allowed: a time above 0"),
        (REPORT.replace(FIRST, '"time": [1]', 1), "results.0.out_of_place.time: got '[1]'; allowed: a number"),
        (REPORT.replace('"nwrong": 0.0', '"nwrong": 12.0', 1), "12.0 wrong values"),
        (REPORT.replace('"size": 8,', '"size": -8,', 1), "results.0.out_of_place: got '-8 bytes'; allowed: a size"),
        (REPORT.replace('"size"', '"bytes"', 1), "results.0.size: missing"),
        (REPORT.replace('"ngpus": 4', '"ngpus": 0'), "config.ngpus: got 0; allowed: a whole number from 1"),
        (REPORT.replace('"ngpus": 4', '"ngpus": 100000'), "config.devices: got 400000; allowed: at most 100000 ranks"),
        (REPORT.replace('"ngpus": 4', '"ngpus": 5'), "rank 4 twice in one test"),
        (REPORT.replace('"hostname": "b"', '"hostname": 3'), "config.devices.2.hostname: got 3; allowed: text"),
        (REPORT.replace("all_reduce_perf", "all_gather_perf"), "all_gather of 16 ranks with busbw 1.88 times algbw"),
    ],
)  # fmt: skip
def test_other_json_is_refused_by_file_and_reason(tmp_path, text, told):
    path = written(tmp_path, text)
    assert is_log(path)
    with pytest.raises(InputError) as caught:
        read_log(path)
    assert told in str(caught.value)
    assert str(caught.value).startswith(str(path))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.integers(0, len(REPORT)), st.text(max_size=40))
def test_damaged_json_is_read_or_refused(tmp_path, at, put):
    path = written(tmp_path, REPORT[:at] + put + REPORT[at + len(put) :])
    try:
        found = read_log(path)
    except InputError:
        return
    assert found.ranks >= 2 and np.all(found.seconds > 0) and np.all(np.isfinite(found.seconds))


def test_other_files_are_no_logs(tmp_path):
    assert not is_log(written(tmp_path, "size,count,type\n8,2,float\n"))
    assert not is_log(tmp_path / "absent.log")
