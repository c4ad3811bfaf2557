"""`trainsim cluster simulate`: what it prints, and what it refuses."""

import json
from importlib import import_module

import pytest

from tests.oracle import ROOT, reference

TABLE = ROOT / "notebooks" / "data" / "gavel-throughputs.yaml"


def test_the_contract_on_a_published_trace(trainsim):
    inputs = reference("cluster") / "inputs"
    files = ("--trace", inputs / "small_test.trace", "--throughputs", inputs / "simulation_throughputs.json.gz")
    more = ("--policy", "gandiva", "--cluster", "2:2:2", "--gavel-parity", "--json")
    code, out, _ = trainsim("cluster", "simulate", *files, *more)
    data = json.loads(out)
    assert code == 0
    assert data["makespan_s"] == pytest.approx(810.4105432227392)
    assert data["average_jct_s"] == pytest.approx(368.4014, abs=1e-3)
    assert set(data) >= {"jobs", "fairness_rho", "utilisation", "cost_usd", "rounds", "assumptions"}
    assert [job["job"] for job in data["jobs"]] == list(range(20))
    assert data["jobs"][0]["jct_s"] > 0 and data["jobs"][0]["fairness_rho"] > 0


def drawn(trainsim, *more, table=TABLE, cluster="2:2:2"):
    return trainsim("cluster", "simulate", "--throughputs", table, "--cluster", cluster, "--jobs", 12, *more)


def test_words(trainsim):
    code, out, _ = drawn(trainsim, "--price", "v100=2.5,p100=1.5,k80=0.5", "--gpus-per-server", "2")
    text = " ".join(out.split())
    assert code == 0
    assert "max_min_fairness_perf: 12 jobs end within" in text and "USD" in text and "rounds" in text
    assert "loses 10 s" in text


def test_devices_beyond_the_most_are_not_told_a_range_that_holds_them(trainsim):
    """1e9 was refused by `a number from 0 to 1e9`."""
    assert (
        "--cluster.v100: got 1000000000; allowed: a whole number from 0 to 1000000"
        in drawn(trainsim, cluster="1e9:1:1")[2]
    )


def test_the_same_seed_is_the_same_cluster(trainsim):
    first, again, other = (json.loads(drawn(trainsim, "--seed", seed, "--json")[1]) for seed in (3, 3, 4))
    assert first["jobs"] == again["jobs"] != other["jobs"]


def test_a_window_of_jobs_that_never_end(trainsim):
    more = ("--cluster", "v100=2,k80=2", "--every", 90_000, "--window", "3:9")
    code, out, _ = trainsim("cluster", "simulate", "--throughputs", TABLE, *more)
    assert code == 0 and ": 6 jobs (3:9) end within" in out  # of whom the mean is told
    code, out, _ = trainsim("cluster", "simulate", "--throughputs", TABLE, *more, "--json")
    data = json.loads(out)
    assert code == 0 and len(data["jobs"]) >= 9
    assert all(job["jct_s"] for job in data["jobs"][3:9])


def test_parts_and_what_they_lose(trainsim):
    data = json.loads(drawn(trainsim, "--parts", "2", "--json")[1])
    assert data["policy"] == "max_min_fairness_perf in 2 parts"
    assert all(0 <= loss < 1 for loss in data["split_losses"]) and max(data["split_losses"]) > 0
    assert "is" in drawn(trainsim, "--parts", "2")[1].split("objective")[1]


@pytest.mark.slow
def test_predicted_throughputs_have_intervals_prices_and_moves(trainsim, tmp_path):
    work = tmp_path / "work.yaml"
    plan = "plan: {global_batch: 32, micro_batch: 4}"
    work.write_text(
        f"devices: [v100-sxm-16gb, a100-sxm-80gb]\njobs: {{bert: {{model: bert-large, gpus: 1, {plan}}}}}\n"
    )
    more = ("--draws", "3", "--json", "--policy", "max_sum_throughput_normalized_by_cost_perf")
    code, out, _ = drawn(trainsim, *more, table=work, cluster="v100-sxm-16gb=2,a100-sxm-80gb=2")
    data = json.loads(out)
    low, high = data["sensitivity"]["makespan_s"]
    assert code == 0 and low < high
    assert data["cost_usd"] > 0


def test_a_log_of_slurm(trainsim, tmp_path):
    log = tmp_path / "sacct.txt"
    log.write_text(
        "JobID|JobName|Submit|ElapsedRaw|AllocTRES|State\n"
        "1|net|2026-01-01T00:00:00|3600|gres/gpu:v100=2|COMPLETED\n"
        "2|net|2026-01-01T00:10:00|7200|gres/gpu:v100=1|COMPLETED\n"
        "3|net|2026-01-01T00:20:00|7200|gres/gpu:v100=1|RUNNING\n"
    )
    more = ("--cluster", "v100=3", "--switch-s", 0, "--json")
    data = json.loads(trainsim("cluster", "simulate", "--trace", log, *more)[1])
    assert [job["jct_s"] for job in data["jobs"]] == pytest.approx([3600, 7320], abs=400)
    assert data["assumptions"][-1] == f"{log}: lines are left out: 1 not ended"


def test_entities_of_a_log_by_their_weights(trainsim, tmp_path):
    log = tmp_path / "sacct.txt"
    rows = "".join(
        f"{n}|net|{account}|2026-01-01T00:00:00|36000|gres/gpu:v100=1|COMPLETED\n" for n, account in enumerate("aab")
    )
    log.write_text("JobID|JobName|Account|Submit|ElapsedRaw|AllocTRES|State\n" + rows)

    def jcts(*more):
        options = ("--trace", log, "--cluster", "v100=1", "--policy", "hierarchical", "--switch-s", 0, "--json", *more)
        code, out, err = trainsim("cluster", "simulate", *options)
        return (code, " ".join(err.split())) if code else [job["jct_s"] for job in json.loads(out)["jobs"]]

    equal, heavy, fifo = jcts(), jcts("--entity-weights", "b=9"), jcts("--inside", "fifo")
    assert equal[2] == pytest.approx(2 * 36_000, rel=0.02) and heavy[2] == pytest.approx(10 / 9 * 36_000, rel=0.02)
    assert fifo[0] < 0.8 * equal[0]
    told = "--entity-weights.c: got '2'; allowed: left out, or one of a, b"
    assert told in jcts("--entity-weights", "c=2")[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--cluster", "2:2"), "--cluster: got '2:2'; allowed: V100s:P100s:K80s, or type=count"),
        (("--cluster", "v100=x"), "--cluster: got 'v100=x'"),
        (("--cluster", "v100=1.5"), "--cluster.v100: got 1.5; allowed: a whole number"),
        (("--cluster", "v100=4,v100=8"), "--cluster: got 'v100=4,v100=8'; allowed: each type once"),
        (("--cluster", "h100=1"), "--cluster.h100: got 'h100'; allowed: one of v100, p100, k80"),
        (("--cluster", "1:1:1", "--policy", "best"), "policy: got 'best'; allowed: one of allox"),
        (("--cluster", "1:1:1", "--window", "0:5"), "--every-s: got 0.0; allowed: above 0 s"),
        (("--cluster", "1:1:1", "--window", "0:5", "--jobs", "3", "--every", "9"), "window: got '0:5'; allowed"),
        (("--cluster", "1:1:1", "--window", "5"), "--window: got '5'; allowed: FIRST:LAST"),
        (("--cluster", "1:1:1", "--window", "0:3", "--draws", "2"), "--draws: got 2; allowed: left out beside"),
        (("--cluster", "1:1:1", "--draws", "2"), "--draws: got 2; allowed: left out with measured"),
        (("--cluster", "1:1:1", "--price", "v100=1"), "--usd-per-gpu-hour.p100: missing; required"),
        (("--cluster", "1:1:1", "--gavel-parity", "--switch-s", "1"), "--switch-s: got 1.0; allowed: left out beside"),
        (("--cluster", "1:1:1", "--gavel-parity", "--gpus-per-server", "4"), "--gpus-per-server: got 4; allowed: left"),
        (("--cluster", "1:1:1", "--round-s", "0"), "--round-s: got 0"),
        (("--cluster", "1:1:1", "--parts", "2", "--policy", "fifo"), "--policy: got 'fifo'"),
        (("--cluster", "1:1:1", "--policy", "max_sum_throughput_normalized_by_cost_perf"), "--usd-per-gpu-hour"),
        (("--cluster", "1:1:1", "--inside", "fifo"), "--inside: got 'fifo'; allowed: left out beside max_min_fairness"),
        (("--cluster", "1:1:1", "--policy", "hierarchical", "--inside", "no"), "inside: got 'no'; allowed: one of"),
        (("--cluster", "1:1:1", "--policy", "hierarchical", "--entity-weights", "a=2"), "left out: no job is of an"),
    ],
)
def test_bad_input_is_refused(trainsim, arguments, words):
    jobs = () if "--window" in arguments else ("--jobs", 4)
    code, out, err = trainsim("cluster", "simulate", "--throughputs", TABLE, *jobs, *arguments)
    assert (code, out) == (2, "")
    assert words in " ".join(err.split())


@pytest.mark.parametrize(("option", "said"), [(("--every-s", "9"), "got 9.0"), (("--multi-gpu",), "got True")])
def test_options_of_drawn_jobs_are_refused_beside_a_trace(trainsim, tmp_path, option, said):
    trace = tmp_path / "one.trace"
    trace.write_text("ResNet-18 (batch size 16)\t\t\t\t0\t10\t1\t1\t-1\t0\n")
    code, _, err = trainsim(
        "cluster", "simulate", "--throughputs", TABLE, "--cluster", "1:1:1", "--trace", trace, *option
    )
    assert code == 2 and f"{option[0]}: {said}; allowed: left out beside --trace" in " ".join(err.split())


def test_a_table_need_not_have_types_that_there_are_none_of(trainsim, tmp_path):
    table = tmp_path / "one.csv"
    table.write_text("job_type,scale_factor,device,steps_per_s\nnet,1,v100,2\n")
    code, out, _ = drawn(trainsim, "--json", table=table, cluster="8:0:0")
    assert (code, list(json.loads(out)["utilisation_by_type"])) == (0, ["v100"])


def test_the_mean_of_no_job_is_null(trainsim, tmp_path):
    """The published simulator gives up jobs that do not do a step per device in a round."""
    table = tmp_path / "slow.csv"
    table.write_text("job_type,scale_factor,device,steps_per_s\nnet,1,v100,0.002\n")
    code, out, _ = drawn(trainsim, "--gavel-parity", "--json", table=table, cluster="1:0:0")
    data = json.loads(out)
    assert (code, data["average_jct_s"], data["fairness_rho"]) == (0, None, None)
    assert len(data["not_ended"]) == 12


def test_what_is_missing_is_named(trainsim):
    assert "--throughputs: missing; required" in trainsim("cluster", "simulate", "--cluster", "1:1:1", "--jobs", 2)[2]
    _, _, err = trainsim("cluster", "simulate", "--cluster", "1:1:1", "--throughputs", TABLE)
    assert "--trace" in err and "exactly one of --trace and --jobs" in err


def test_a_job_that_has_no_room_is_told_by_the_option_that_brought_it(trainsim, tmp_path):
    """A drawn job's number and its scale_factor are nothing that was stated."""
    more = "at least 8 devices of one type for job 0, or --multi-gpu left out"
    code, _, err = drawn(trainsim, "--multi-gpu")
    assert (code, err.strip()) == (2, f"error: --cluster: got '2:2:2'; allowed: {more}")
    table, trace = tmp_path / "two.csv", tmp_path / "one.trace"
    table.write_text("job_type,scale_factor,device,steps_per_s\nnet,1,v100,2\nnet,1,k80,0\n")
    more = "a type with room and a throughput for every drawn job, also for net (job 0)"
    assert f"--cluster: got 'k80=1'; allowed: {more}" in drawn(trainsim, table=table, cluster="k80=1")[2]
    trace.write_text("ResNet-18 (batch size 16)\t\t\t\t0\t10\t4\t1\t-1\t0\n")
    given = ("--throughputs", TABLE, "--cluster", "2:2:2", "--trace", trace)
    code, _, err = trainsim("cluster", "simulate", *given)
    assert code == 2 and f"error: {trace}, job 0, scale_factor: got 4; allowed: at most 2 devices" in err


def test_a_job_of_a_trace_without_room_is_refused_before_any_runs(trainsim, tmp_path, monkeypatch):
    simulation = import_module("sim.cluster.simulate").Simulation
    monkeypatch.setattr(simulation, "go", lambda _: pytest.fail("a round ran"))
    line = "ResNet-18 (batch size 16)\t\t\t\t0\t10\t{}\t1\t-1\t{}\n"
    trace = tmp_path / "two.trace"
    trace.write_text(line.format(1, 0) + line.format(4, 9_000_000))
    given = ("--throughputs", TABLE, "--cluster", "2:2:2", "--trace", trace)
    code, _, err = trainsim("cluster", "simulate", *given)
    assert code == 2 and f"error: {trace}, job 1, scale_factor: got 4; allowed: at most 2 devices" in err


def test_a_table_without_jobs_of_as_many_devices_as_are_drawn_is_told_by_its_option(trainsim, tmp_path):
    table = tmp_path / "one.csv"
    table.write_text("job_type,scale_factor,device,steps_per_s\nnet,1,v100,2\n")
    code, _, err = drawn(trainsim, "--multi-gpu", table=table, cluster="8:0:0")
    assert code == 2 and err.startswith("error: --throughputs: got '")
    assert err.endswith("a table with a type of job that runs on 8 of v100, or --multi-gpu left out\n")
