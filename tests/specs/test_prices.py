"""The section prices: one price or files of them, what contradicts that, and paths relative to the job."""

from typing import get_args

import pytest

from sim.market import STRATEGIES
from sim.specs import InputError, Job, Prices
from sim.specs.fields import read
from sim.specs.job import read_sections
from sim.specs.prices import StrategyName

JOB = {"model": "gpt2", "cluster": {"device": "h100-sxm-80gb"}}


def test_the_names_of_strategies_are_those_of_the_market():
    assert get_args(StrategyName) == tuple(STRATEGIES)


def test_what_is_left_out_is_filled_and_said():
    made = read(Prices, {"files": "a.csv"})
    assert made == Prices(files=("a.csv",)) == Prices(files=["a.csv"])
    assert (made.strategy, made.every_hours, made.step_hours, made.boot_s, made.data_bytes) == (
        "dynamic",
        24,
        1,
        120,
        0,
    )
    told = " ".join(made.assumptions)
    assert all(part in told for part in ("egress_usd_per_gb = 0.09", "data_bytes = 0", "boot_s = 120"))
    stated = Prices(files="a", availability="b", data_bytes=1.0, boot_s=1.0, wan_bytes_per_s=1.0, egress_usd_per_gb=0.0)
    assert stated.assumptions == Prices(usd_per_gpu_hour=2.0).assumptions == ()


def test_a_deadline_asks_for_uniform_progress():
    made = Prices(files="a", deadline_hours=8.0)
    assert made.strategy == "uniform_progress"
    assert "prices.strategy = uniform_progress (a deadline is stated)" in made.assumptions
    assert Prices(files="a", deadline_hours=8.0, strategy="dynamic").strategy == "dynamic"


def test_times_are_utc_unless_they_say_otherwise():
    assert Prices(files="a", begin="1970-01-02").begin_s == 86_400
    assert Prices(files="a", begin="1970-01-01T12:00:00+02:00").begin_s == 36_000
    assert Prices(files="a").begin_s is None


@pytest.mark.parametrize(
    "raw, words",
    [
        ({}, "prices.usd_per_gpu_hour: got None; allowed: exactly one of usd_per_gpu_hour and files"),
        ({"usd_per_gpu_hour": 2.0, "files": "a"}, "prices.usd_per_gpu_hour: got 2.0; allowed: exactly one"),
        ({"usd_per_gpu_hour": 2.0, "begin": "2020-03-01"}, "prices.begin: got '2020-03-01'; allowed: left out beside"),
        ({"usd_per_gpu_hour": 2.0, "boot_s": 120.0}, "prices.boot_s: got 120.0; allowed: left out beside"),
        ({"usd_per_gpu_hour": -1.0}, "prices.usd_per_gpu_hour: got -1.0; allowed: a number from 0 to 10000 USD"),
        ({"files": 3}, "prices.files: got 3; allowed: text, or a list of texts"),
        ({"files": [""]}, "prices.files.0: got ''; allowed: text"),
        ({"files": "a", "every_hours": 1.5}, "prices.every_hours: got 1.5; allowed: a multiple of step_hours = 1"),
        ({"files": "a", "strategy": "dynamo"}, "prices.strategy: got 'dynamo'; allowed: one of baseline_worst"),
        ({"files": "a", "strategy": "uniform_progress"}, "prices.deadline_hours: missing; required with strategy"),
        ({"files": "a", "deadline_hours": -3.0}, "prices.deadline_hours: got -3.0; allowed: a number from 0.01"),
        ({"files": "a", "begin": "March"}, "prices.begin: got 'March'; allowed: a date such as 2020-03-01"),
        ({"files": "a", "availability": "b", "billing": "on-demand"}, "prices.availability: got 'b'"),
    ],
)  # fmt: skip
def test_bad_prices_are_refused(raw, words):
    with pytest.raises(InputError) as caught:
        read(Prices, raw, "prices")
    assert str(caught.value).startswith(words)


def test_a_job_states_its_price_once():
    raw = JOB | {"training": {"steps": 1, "usd_per_gpu_hour": 2.0}, "prices": {"usd_per_gpu_hour": 3.0}}
    _, problems = read_sections(raw, None)
    assert [str(p) for p in problems] == [
        "training.usd_per_gpu_hour: got 2.0; allowed: left out beside prices, which say it"
    ]


def test_paths_are_relative_to_the_job(tmp_path):
    (tmp_path / "job.yaml").write_text(
        "model: gpt2\ncluster: {device: h100-sxm-80gb}\n"
        "prices: {files: [a.csv, sub/b.csv], availability: c.csv, begin: 2020-03-01}\n"
    )
    made = Job.load(tmp_path / "job.yaml")
    assert made.prices.files == (str(tmp_path / "a.csv"), str(tmp_path / "sub" / "b.csv"))
    assert made.prices.availability == str(tmp_path / "c.csv")
    assert made.around.sections == {"prices": made.prices}
