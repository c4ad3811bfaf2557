"""`trainsim market`: what it prints, and what it refuses."""

import json

import pytest

from tests.oracle import reference

PRICES = """cloud,region,zone,instance,device,devices,billing,time_utc,usd_per_hour
aws,us-east-1,us-east-1a,p3.2xlarge,v100,1,spot,2020-03-01,1.0
aws,us-east-1,us-east-1a,p3.2xlarge,v100,1,spot,2020-03-01T02:00:00,5.0
aws,us-west-2,us-west-2a,p3.2xlarge,v100,1,on-demand,2020-03-01,3.0
azure,us_east,,NC6,k80,1,spot,2020-03-01,0.6
"""
RATES = "gpu,model,steps_per_s\nv100,net,4\nk80,net,1\n"
TRACE = "net\tx\tx\tx\t0\t{steps}\t1\t1.0\t-1.0\t{at}\n"


@pytest.fixture
def market(trainsim, tmp_path):
    (tmp_path / "prices.csv").write_text(PRICES)
    (tmp_path / "rates.csv").write_text(RATES)
    (tmp_path / "jobs.trace").write_text("".join(TRACE.format(steps=14_400, at=at) for at in (0, 1_800)))

    def run(command="simulate", *more, job=("--model", "net", "--steps", "57600")):
        files = ("--prices", tmp_path / "prices.csv", "--throughputs", tmp_path / "rates.csv")
        return trainsim("market", command, *files, *(job if command == "simulate" else ()), *more)

    return run


def told(result):
    code, out, error = result
    assert code == 0, error
    return json.loads(out)


FREE = ("--moves", "free", "--every-hours", "1", "--json")


def test_the_contract(market):
    data = told(market("simulate", "--device", "v100", *FREE))
    assert data["cost_usd"] == pytest.approx(1 + 1 + 3 + 3)
    assert (data["hours"], data["migrations"], data["finished"]) == (4.0, 1, True)
    assert [(stay["zone"], stay["usd"], stay["begin"]) for stay in data["path"]] == [
        ("us-east-1a", 2.0, "2020-03-01T00:00:00+00:00"),
        ("us-west-2a", 6.0, "2020-03-01T02:00:00+00:00"),
    ]
    assert data["optimum_usd"] <= data["cost_usd"]
    assert data["optimum"]["hindsight_usd"] >= data["optimum_usd"]
    assert data["notes"]


def test_a_cloud_of_a_catalogue_without_a_known_tariff_needs_one(trainsim, market, tmp_path):
    table = tmp_path / "lambda.csv"
    rows = "".join(f"one,V100,1,,,,{usd},,{region},\n" for region, usd in (("us-east", 2.0), ("us-west", 1.0)))
    table.write_text(
        "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone\n"
        + rows
    )
    job = ("--throughputs", tmp_path / "rates.csv", "--model", "net", "--steps", "57600", "--home", "lambda us-east")

    def run(moves):
        return trainsim("market", "simulate", "--prices", table, *job, "--json", "--moves", f"data_bytes=1e10,{moves}")

    data = told(run("egress_usd_per_gb=0.1"))
    assert (data["path"][0]["region"], data["transfer_usd"]) == ("us-west", pytest.approx(1.0))
    needed = "--moves.egress_usd_per_gb: missing; required beside bytes that move: USD of a GB that leaves lambda"
    assert needed in " ".join(run("boot_s=1")[2].split())
    assert "egress_usd_per_gb: got 1000.0; allowed: 0 to 100 USD/GB" in run("egress_usd_per_gb=1000")[2]


def test_prices_that_nobody_knows_are_told(market):
    words = "prices are known until 2020-03-01T02:00:00+00:00; in the last {} hours they stay as they were"
    for begin, hours in (("2020-03-01", "2.00"), ("2021-03-01", "4.00")):
        assert words.format(hours) in told(market("simulate", "--device", "v100", "--begin", begin, *FREE))["notes"]
    years = market("simulate", "--device", "v100", *FREE, job=("--model", "net", "--days", "2000"))
    assert words.format("47\u2009998") in told(years)["notes"]  # not 4.8e+04
    ended = told(market("simulate", "--device", "v100", *FREE, job=("--model", "net", "--steps", "14400")))
    assert not [note for note in ended["notes"] if "known until" in note]


def test_days_are_those_of_the_reference(market):
    one = told(market("simulate", *FREE, job=("--model", "net", "--days", "1")))
    other = told(market("simulate", *FREE, job=("--model", "net", "--steps", str(4 * 86_400))))
    assert one["path"] == other["path"]


def test_dearer_hours_ask_for_faster_devices(market):
    slow, fast = told(market("simulate", *FREE)), told(market("simulate", "--usd-per-hour", "9", *FREE))
    assert {stay["device"] for stay in slow["path"]} != {"v100"} == {stay["device"] for stay in fast["path"]}
    assert fast["hours"] < slow["hours"]


@pytest.mark.parametrize(("along", "first"), [("every", "every 1 h"), ("worth", "0 USD an hour"), ("strategies", None)])
def test_the_same_job_along(market, along, first):
    data = told(market("simulate", "--along", along, *FREE))
    names = [row["name"] for row in data["along"]]
    assert len(names) > 2
    assert first is None or names[0] == first
    assert first is not None or {"baseline", "dynamic"} <= set(names)


def test_uniform_progress_needs_a_deadline(market):
    given = ("simulate", "--strategy", "uniform_progress")
    code, out, err = market(*given)
    assert (code, out) == (2, "")
    assert err.strip() == "error: --deadline-hours: missing; required with --strategy uniform_progress"
    assert told(market(*given, "--deadline-hours", "9", *FREE))["strategy"] == "uniform_progress"
    along = ("simulate", "--along", "strategies", *FREE)
    rows = [{row["name"] for row in told(market(*along, *more))["along"]} for more in ((), ("--deadline-hours", "9"))]
    assert rows[1] - rows[0] == {"uniform_progress"}


def test_begins_on_other_days(market):
    data = told(market("simulate", "--starts", "3", *FREE))
    assert data["starts"]["count"] == 3
    assert data["starts"]["min_usd"] <= data["starts"]["mean_usd"] <= data["starts"]["max_usd"]


def test_deadlines_and_offers_that_come_and_go(market):
    more = ("--taken-away", "2:1", "--deadline-hours", "6", "--device", "v100")
    one, again = (told(market("simulate", *more, "--seed", "1", *FREE)) for _ in range(2))
    assert one == again
    assert (one["strategy"], one["deadline_met"]) == ("uniform_progress", True)
    assert one["hours"] <= 6


def test_words_and_page(market, tmp_path):
    page = tmp_path / "page.html"
    code, out, _ = market("simulate", "--html", page, "--along", "strategies", "--starts", "2")
    assert code == 0
    assert "dynamic: net ends after" in out
    assert "never taken away" in out
    assert "gpu_type" in out and "written: " in out
    assert "net, rented by dynamic" in page.read_text("utf-8")


def test_the_prices_are_not_written_over(market, tmp_path):
    code, out, err = market("simulate", "--html", tmp_path / "prices.csv")
    assert (code, out) == (2, "") and "which is read" in err
    assert (tmp_path / "prices.csv").read_text() == PRICES


def test_a_run_may_begin_before_prices_change_where_something_is_always_offered(market, tmp_path):
    more = tmp_path / "always.csv"
    more.write_text(PRICES.splitlines()[0] + "\naws,us-east-1,us-east-1b,p3.2xlarge,v100,1,spot,,2.0\n")
    data = told(market("simulate", "--prices", more, "--begin", "2019-01-01", *FREE))
    assert [stay["zone"] for stay in data["path"]] == ["us-east-1b"]


def test_a_trace_is_of_the_one_spot_offer_there_is(market, tmp_path):
    trace = tmp_path / "trace.json"
    trace.write_text('{"metadata": {"gap_seconds": 1800}, "data": [1, 0, 0, 0]}')
    data = told(market("simulate", "--device", "v100", "--availability", trace, *FREE))
    assert (data["path"][0]["ended"], data["path"][0]["usd"]) == ("preempted", 0.5)
    code, _, error = market("simulate", "--availability", trace)
    assert code == 2 and "--availability: got" in error and "a JSON trace is of one spot offer, and 2 fit" in error


def test_offers_that_are_never_there_are_told_as_such(market, tmp_path):
    trace = tmp_path / "trace.json"
    trace.write_text('{"metadata": {"gap_seconds": 1800}, "data": [0, 0]}')
    code, _, error = market("simulate", "--device", "v100", "--billing", "spot", "--availability", trace, *FREE)
    assert code == 2 and "--availability: got 'nothing'; allowed: an offer that can be held" in error


def test_jobs_that_rent_together(market, tmp_path):
    data = told(market("together", "--trace", tmp_path / "jobs.trace", "--json"))
    assert len(data["jobs"]) == 2
    assert data["cost_usd"] > 0
    code, out, _ = market("together", "--trace", tmp_path / "jobs.trace", "--policy", "fifo_perf")
    assert code == 0
    assert "fifo_perf: 2 jobs end" in " ".join(out.split())
    wide = TRACE.format(steps=1, at=0).replace("\t1\t1.0", "\t2\t1.0")
    (tmp_path / "wide.trace").write_text(wide)
    code, out, error = market("together", "--trace", tmp_path / "wide.trace")
    assert code == 2 and "--trace: got 'net on 2 devices'; allowed: a number of devices with throughputs" in error
    code, out, error = market("together", "--trace", tmp_path / "jobs.trace", "--step-hours", "nan")
    assert (code, out) == (2, "")
    assert "--step-hours: got nan; allowed: a number of hours above 0" in " ".join(error.split())


@pytest.mark.parametrize(
    ("more", "told_of"),
    [
        (("--strategy", "best"), "strategy: got 'best'"),
        (("--region", "moon"), "--region: got 'moon'"),
        (("--billing", "barter"), "--billing"),
        (("--begin", "yesterday"), "--begin"),
        (("--begin", "2019-01-01"), "--begin"),
        (("--begin", "9999-12-31T23:00"), "--begin: got '9999-12-31T23:00'; allowed: a date"),
        (("--moves", "boots=1"), "--moves"),
        (("--moves", "boot_s=1,boot_s=2"), "each name once"),
        (("--moves", "boot_s=-1"), "--moves.boot_s"),
        (
            ("--moves", "egress_usd_per_gb=1"),
            "egress_usd_per_gb: got 1.0; allowed: left out: the tariffs of aws",
        ),
        (("--taken-away", "often"), "--taken-away"),
        (("--seed", "4"), "--seed: got 4; allowed: left out without --taken-away"),
        (("--along", "time"), "--what-if"),
        (("--days", "1"), "exactly one of --steps and --days"),
        (("--gpus", "3"), "gpus"),
        (("--every-hours", "1.5"), "--every-hours: got 1.5; allowed: a multiple of --step-hours = 1"),
        (("--step-hours", "0"), "step"),
        (("--home", "moon"), "home"),
    ],
)
def test_what_is_refused(market, more, told_of):
    code, out, error = market("simulate", *more)
    assert (code, out) == (2, "")
    assert told_of in " ".join(error.split())


def test_days_are_refused_before_whom_they_count_for(market):
    code, _, error = market("simulate", "--device", "k80", *FREE, job=("--model", "net", "--days", "nan"))
    assert code == 2 and "--days: got nan; allowed: a number above 0, below 1e6" in error


def test_predicted_speeds_have_intervals(trainsim, tmp_path):
    (tmp_path / "work.yaml").write_text(
        "devices: [h100-sxm-80gb, v100-sxm-16gb]\n"
        "jobs:\n  bert: {model: bert-base, gpus: 1, plan: {global_batch: 8, micro_batch: 8}}\n"
    )
    (tmp_path / "vms.csv").write_text(
        "cloud,instance_type,gpu,n_gpus,vcpus,mem_gib,price_usd_per_hour,spot_price,region\n"
        "lambda,a,H100,1,8,80,3.0,,us\nlambda,b,V100,1,8,80,1.0,,us\n"
    )
    files = ("--prices", tmp_path / "vms.csv", "--throughputs", tmp_path / "work.yaml", "--model", "bert")
    more = ("--steps", "1e6", "--reference", "h100-sxm-80gb")
    data = told(trainsim("market", "simulate", *files, *more, "--json"))
    low, high = data["cost_usd_interval"]
    assert low < data["cost_usd"] < high
    assert data["hours_interval"][0] < data["hours"] < data["hours_interval"][1]
    assert data["begin"] is None
    assert data["path"][0]["begin_hours"] == 0
    code, out, _ = trainsim("market", "simulate", *files, *more)
    assert code == 0
    assert "Speeds are predicted" in out and "after 0.0 h" in out


def test_the_references_prices(trainsim):
    folder = reference("market")
    files = [
        ("--prices", folder / name)
        for name in ("aws_gpu_spot_2019-12_2020-03.csv.gz", "azure_gpu_spot_2020-02_2020-03.csv")
    ]
    more = ("--throughputs", folder / "oracle_isolated_throughputs.csv", "--model", "A3C", "--days", "4", "--shares")
    data = told(trainsim("market", "simulate", *files[0], *files[1], *more, "--begin", "2020-02-25", "--json"))
    assert data["optimum_usd"] <= data["cost_usd"] < 60


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ("--billing", "on-demand", "--device", "k80"),
            "--device, --billing: got 'k80; on-demand'; allowed: what leaves at least",
        ),
        (("--taken-away", "1e-9:1"), "--taken-away: got '1e-9:1'; allowed: UP:DOWN, each a number from 0.001 to "),
        (("--step-hours", "1e-9", "--every-hours", "1"), "--step-hours: got 1e-09; allowed: at most 2e+08 steps x"),
        (("--strategy", "baseline", "--device", "k80"), "--strategy: got 'baseline'; allowed: a device that baseline"),
    ],
)
def test_errors_name_the_option_that_was_stated(market, given, said):
    code, out, err = market("simulate", *given)
    assert (code, out) == (2, "") and said in err
