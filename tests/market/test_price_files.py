import csv
import gzip
import json
import time
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.market.offers import History, Market, Offer
from sim.market.price_files import read_prices, write_prices
from sim.specs.fields import InputError
from tests.market.toys import HOUR, offer

AWS = "region,availability_zone,instance_type,timestamp_utc,spot_price_usd_per_hour\n"
PLAIN = "cloud,region,zone,instance,device,devices,billing,time_utc,usd_per_hour\n"
ONE = "aws,us-east-1,us-east-1a,p3.2xlarge,v100,1,spot,"
AZURE = "region,date,instance_type,gpu,n_gpus,spot_price_usd_per_hour\n"
GCP = "timestamp_utc,zone,gpu,n_gpus,price_usd_per_hour\n"
SKYPILOT = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone\n"
)
SAMPLE = "cloud,instance_type,gpu,n_gpus,vcpus,mem_gib,price_usd_per_hour,spot_price,region,source\n"
DESCRIBED = {
    "AvailabilityZone": "us-west-2b", "InstanceType": "p3.8xlarge", "ProductDescription": "Linux/UNIX",
    "SpotPrice": "3.6", "Timestamp": "2020-03-01T10:00:00+00:00",
}  # fmt: skip

EXAMPLES = {
    "aws.csv": (
        AWS + "us-east-1,us-east-1a,p3.2xlarge,2020-03-01T00:00:00.000Z,0.9\n"
        "us-east-1,us-east-1a,p3.2xlarge,2020-03-01T01:00:00.000Z,1.1\n",
        [("aws us-east-1a p3.2xlarge", "v100", 1, "spot", [0.9, 1.1])],
    ),
    "described.json": (
        json.dumps({"SpotPriceHistory": [DESCRIBED, DESCRIBED | {"ProductDescription": "Windows"}]}),
        [("aws us-west-2b p3.8xlarge", "v100", 4, "spot", [3.6])],
    ),
    "azure.csv": (
        AZURE + "us_east,2/24/2020,NC6s v3,V100,1,0.6\nus_east,2020-02-25,NC6s v3,V100,1,0.7\n",
        [("azure us_east NC6s v3", "v100", 1, "spot", [0.6, 0.7])],
    ),
    "gcp.csv": (
        GCP + "2020-02-26T17:03:53.000Z,us-west1-b,nvidia-tesla-v100,2,1.702\n",
        [("gcp us-west1-b 2xv100", "v100", 2, "spot", [1.702])],
    ),
    "cloud9.csv": (
        SKYPILOT + "big,A100-80GB,8,96,1152,,32.7,12.5,us-east-1,us-east-1a\n"
        "big,A100-80GB,8.0,96,1152,,33,,us-west-2,\nsmall,,,2,4,,0.1,0.05,us-east-1,us-east-1a\n"
        "slice,V100-32GB,0.25,2,4,,0.1,,us-east-1,\n",
        [
            ("cloud9 us-east-1a big on demand", "a100-80gb", 8, "on-demand", [32.7]),
            ("cloud9 us-east-1a big", "a100-80gb", 8, "spot", [12.5]),
            ("cloud9 us-west-2 big on demand", "a100-80gb", 8, "on-demand", [33.0]),
        ],
    ),
    "sample.csv": (
        SAMPLE + "lambda,gpu_8x_v100,V100,8,92,448,4.4,,us-east-1,catalog\n",
        [("lambda us-east-1 gpu_8x_v100 on demand", "v100", 8, "on-demand", [4.4])],
    ),
    "plain.csv": (
        PLAIN + ONE + ",2.5\n",
        [("aws us-east-1a p3.2xlarge", "v100", 1, "spot", [2.5])],
    ),
}  # fmt: skip


def written(folder, text, name="prices.csv"):
    """Return the path of a file with this text."""
    (folder / name).write_text(text, "utf-8")
    return folder / name


def told(folder, text, name="prices.csv"):
    """Return where, what and why of everything that is wrong with a file."""
    path = written(folder, text, name)
    with pytest.raises(InputError) as caught:
        read_prices(path)
    each = (caught.value, *caught.value.also)
    return [(error.path.removeprefix(f"{path}").removeprefix(", "), error.value, error.allowed) for error in each]


def by_offer(market):
    """Return times and prices by offer, as lists."""
    return {h.offer: (h.times_s.tolist(), h.usd_per_hour.tolist()) for h in market.histories}


def rules(market):
    """Return the notes without the file they speak of."""
    return [note.split(".csv: ")[-1] for note in market.notes]


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_format_is_known_by_its_columns(tmp_path, name):
    text, expected = EXAMPLES[name]
    market = read_prices(written(tmp_path, text, name))
    found = [
        (h.offer.name, h.offer.device, h.offer.devices, h.offer.billing, h.usd_per_hour.tolist())
        for h in market.histories
    ]
    assert sorted(found) == sorted(expected)
    for history in market.histories:
        assert (np.diff(history.times_s) > 0).all()
        assert (history.usd_per_hour > 0).all()


def test_columns_come_in_any_order_and_packed(tmp_path):
    text, _ = EXAMPLES["aws.csv"]
    turned = "\r\n".join(",".join(reversed(line.split(","))) for line in text.split()) + "\r\n\r\n"
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + turned.encode()))
    assert by_offer(read_prices(tmp_path / "b.csv.gz")) == by_offer(read_prices(written(tmp_path, text)))


def test_a_catalogue_s_cloud_is_its_folder_or_a_column(tmp_path):
    text, _ = EXAMPLES["cloud9.csv"]
    (tmp_path / "lambda").mkdir()
    assert {o.cloud for o in read_prices(written(tmp_path / "lambda", text, "vms.csv")).offers} == {"lambda"}
    stated = SKYPILOT.replace("\n", ",cloud\n") + "a,L4,1,,,,1,,r,,oci\n"
    assert read_prices(written(tmp_path, stated)).offers[0].cloud == "oci"


def test_what_a_catalogue_leaves_out_is_told(tmp_path):
    market = read_prices(written(tmp_path, EXAMPLES["cloud9.csv"][0] + ",T4,1,,,,0.2,,us-east-1,\n", "cloud9.csv"))
    assert rules(market) == [
        "rows without a device are left out: 1",
        "rows with a part of a device are left out: 1 (0.25)",
        "offers of devices without an instance, at prices as stated: 1",
    ]
    unpriced = SAMPLE + "lambda,a,V100,1,,,,,r,\nlambda,b,V100,1,,,2,,r,\n"
    assert rules(read_prices(written(tmp_path, unpriced))) == ["rows without a price are left out: 1"]


def test_unknown_types_of_instances(tmp_path):
    row = "us-east-1,us-east-1a,{},2020-03-01T00:00:00Z,0.9\n"
    market = read_prices(written(tmp_path, AWS + row.format("x9.large") + row.format("p2.xlarge") + row.format("c5.l")))
    assert rules(market) == ["rows of unknown types of instances are left out: 2 (c5.l, x9.large)"]
    assert [o.instance for o in market.offers] == ["p2.xlarge"]
    ((place, value, allowed),) = told(tmp_path, AWS + row.format("p3.2xlarg"))
    assert (place, value) == ("line 2.instance_type", "p3.2xlarg")
    assert "p3.2xlarge" in allowed
    # What is wrong in a row that is left out does not matter.
    assert read_prices(written(tmp_path, AWS + row.format("p2.xlarge") + row.format("c5.l").replace("0.9", "-1")))


def test_rows_are_sorted_and_that_is_told(tmp_path):
    rows = [f"{ONE}2020-03-01T0{h}:00:00Z,{h}.5\n" for h in (1, 2, 3)]
    sorted_ = read_prices(written(tmp_path, PLAIN + "".join(rows)))
    descending = read_prices(written(tmp_path, PLAIN + "".join(rows[::-1])))
    mixed = read_prices(written(tmp_path, PLAIN + rows[1] + rows[0] + rows[2]))
    assert by_offer(sorted_) == by_offer(descending) == by_offer(mixed)
    assert sorted_.notes == descending.notes == ()
    assert rules(mixed) == ["rows after a later price of their offer: 1 of 3; sorted by time"]


def test_of_two_prices_at_one_time_the_one_written_last_holds(tmp_path):
    rows = [f"{ONE}2020-03-01T01:00:00Z,1\n", f"{ONE}2020-03-01T02:00:00Z,2\n", f"{ONE}2020-03-01T02:00:00Z,3\n"]
    up = read_prices(written(tmp_path, PLAIN + "".join(rows)))
    down = read_prices(written(tmp_path, PLAIN + "".join(rows[::-1])))
    assert by_offer(up) == by_offer(down)
    assert up.histories[0].usd_per_hour.tolist() == [1, 3]
    assert rules(up) == ["other prices of an offer at the same time: 1; the later row holds"]
    assert rules(down)[0].endswith("the earlier row holds, as the file descends")
    assert read_prices(written(tmp_path, PLAIN + rows[0] + rows[0])).notes == ()


def test_several_files_are_one_market(tmp_path):
    a = written(tmp_path, PLAIN + f"{ONE}2020-03-01,1\n{ONE}2020-03-03,1\n", "a.csv")
    b = written(tmp_path, PLAIN + f"{ONE}2020-03-02,2\n{ONE}2020-03-03,5\n", "b.csv")
    assert read_prices(a, b).histories[0].usd_per_hour.tolist() == [1, 2, 5]
    assert read_prices(b, a).histories[0].usd_per_hour.tolist() == [1, 2, 1]
    always = written(tmp_path, PLAIN + f"{ONE},9\n", "always.csv")
    assert read_prices(a, always).histories[0].usd_per_hour.tolist() == [9, 1]
    with pytest.raises(InputError, match="paths: missing"):
        read_prices()


def test_gaps_are_told_and_the_last_price_holds(tmp_path):
    week, more = f"{ONE}2020-03-01,1\n{ONE}2020-03-08,1\n", f"{ONE}2020-03-20,2\n"
    assert read_prices(written(tmp_path, PLAIN + week)).notes == ()
    (note,) = rules(read_prices(written(tmp_path, PLAIN + week + more)))
    assert note == (
        "offers without a price for more than 7 days, while the last known one holds: 1, longest 12.0 days "
        "(aws us-east-1a p3.2xlarge from 2020-03-08)"
    )
    days = AZURE + "".join(f"us_east,3/{d}/2020,NC6,K80,1,{p}\n" for d, p in ((1, "0.1"), (2, ""), (3, "0.2")))
    market = read_prices(written(tmp_path, days))
    assert market.histories[0].usd_per_hour.tolist() == [0.1, 0.2]
    assert rules(market) == ["days without a price, on which the last known one holds: 1"]


PRICE = "USD of an hour above 0, below 1e+06"


@pytest.mark.parametrize("price", ["-0.9", "0", "nan", "inf", "1e6", "much", ""])
def test_a_price_that_is_none(tmp_path, price):
    text = AWS + f"r,ra,p3.2xlarge,2020-03-01,1\nr,ra,p3.2xlarge,2020-03-02,{price}\n"
    assert told(tmp_path, text) == [("line 3.spot_price_usd_per_hour", price, PRICE)]


def test_every_mistake_has_its_place(tmp_path):
    rows = [
        "aws,r,z,i,v100,0,spot,2020-03-01,1",
        "aws,r,z,i,v100,two,spot,2020-03-01,1",
        "aws,r,z,i,v100,1,rented,2020-03-01,1",
        "aws,,z,i,v100,1,spot,2020-03-01,1",
        "aws,r\x1b[2J,z,i,v100,1,spot,2020-03-01,1",
    ]
    assert [(place, value) for place, value, _ in told(tmp_path, PLAIN + "\n".join(rows))] == [
        ("line 2.devices", "0"),
        ("line 3.devices", "two"),
        ("line 4.billing", "rented"),
        ("line 5.region", ""),
        ("line 6.region", "r\x1b[2J"),
    ]
    later = [f"{ONE}2020-03-32,-1", f"{ONE}2020-03-01,1", f"{ONE}soon,1", ""]
    assert [place for place, _, _ in told(tmp_path, PLAIN + "\n".join(later))] == [
        "line 2.time_utc", "line 2.usd_per_hour", "line 4.time_utc"
    ]  # fmt: skip
    assert told(tmp_path, PLAIN + ONE + "\n\n1,2\n") == [
        ("line 2", "8 cells", "9, as the header has"),
        ("line 4", "2 cells", "9, as the header has"),
    ]
    assert len(told(tmp_path, PLAIN + f"{ONE},0\n" * 300)) == 100


def test_files_that_are_none(tmp_path):
    (first,) = told(tmp_path, AWS.replace(",timestamp_utc", "") + "a,b,c,1\n")
    assert first == ("line 1", None, "required: column timestamp_utc (price changes of AWS)")
    ((place, value, allowed),) = told(tmp_path, "a,b\n1,2\n")
    assert (place, value) == ("line 1", "a,b")
    assert "AcceleratorName" in allowed
    for text, value in (("", "an empty file"), (AWS, "no rows"), (SAMPLE + "c,a,V100,1,,,,,r,\n", "no price")):
        assert told(tmp_path, text)[0][:2] == ("", value)
    assert told(tmp_path, "a,b,A\n")[0][1:] == ("a", "each column once")
    assert told(tmp_path, AWS + '"a\n')[0][0].startswith("line ")
    assert told(tmp_path, SAMPLE + "c,a,,1,,,1,,r,\n")[0][:2] == ("line 2.gpu", "")
    with pytest.raises(InputError, match="no such file"):
        read_prices(tmp_path / "none.csv")


def test_what_aws_printed_must_be_a_list_of_prices(tmp_path):
    assert told(tmp_path, "{}", "a.json")[0][0] == "SpotPriceHistory"
    wrong = [DESCRIBED | {"SpotPrice": 3.6}, DESCRIBED, 7]
    found = told(tmp_path, json.dumps({"SpotPriceHistory": wrong}), "a.json")
    assert [place for place, _, _ in found] == ["SpotPriceHistory.0", "SpotPriceHistory.2"]
    zone = [DESCRIBED | {"AvailabilityZone": "use1-az1"}]
    assert told(tmp_path, json.dumps({"SpotPriceHistory": zone}), "a.json")[0][:2] == (
        "SpotPriceHistory.0.AvailabilityZone", "use1-az1"
    )  # fmt: skip
    bare = Offer(
        cloud="aws", region="us-east-1", zone="us-east-1-bos-1a", instance="p3.2xlarge", device="v100", devices=1
    )
    local = [DESCRIBED | {"AvailabilityZone": bare.zone, "InstanceType": bare.instance}]
    path = written(tmp_path, json.dumps({"SpotPriceHistory": local}), "b.json")
    assert read_prices(path).offers == (bare,)


WORDS = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=8)
USD = st.floats(1e-9, 999_999.0)


@st.composite
def markets(draw):
    found = {}
    for _ in range(draw(st.integers(1, 4))):
        one = Offer(
            cloud=draw(WORDS), region=draw(WORDS), zone=draw(WORDS | st.just("")), instance=draw(WORDS),
            device=draw(st.sampled_from(["v100", "a100-80gb"])), devices=draw(st.integers(1, 16)),
            billing=draw(st.sampled_from(["spot", "on-demand"])),
        )  # fmt: skip
        times = sorted(draw(st.sets(st.integers(0, 4 * 10**12), min_size=1, max_size=6)))
        prices = draw(st.lists(USD, min_size=len(times), max_size=len(times)))
        kept = [n for n in range(len(times)) if n == 0 or prices[n] != prices[n - 1]]
        begin = [-np.inf] if draw(st.booleans()) and prices[0] != 7.0 else []
        found[one] = History(
            one,
            np.array(begin + [times[n] / 1000 for n in kept]),
            np.array(([7.0] if begin else []) + [prices[n] for n in kept]),
        )
    return Market(tuple(found.values()))


@settings(max_examples=40, deadline=None)
@given(markets(), st.sampled_from(["a.csv", "a.csv.gz"]))
def test_what_is_written_reads_back(tmp_path_factory, market, name):
    path = tmp_path_factory.mktemp("prices") / name
    write_prices(market, path)
    assert by_offer(read_prices(path)) == by_offer(market)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_order_of_rows_does_not_matter(tmp_path_factory, data):
    rows = [f"{ONE.replace('1a', z)}2020-03-01T{h:02}:00:00Z,{1 + h % 3}\n" for z in ("1a", "1b") for h in range(6)]
    folder = tmp_path_factory.mktemp("prices")
    ordered = read_prices(written(folder, PLAIN + "".join(rows)))
    turned = read_prices(written(folder, PLAIN + "".join(data.draw(st.permutations(rows)))))
    assert turned.offers == ordered.offers
    assert by_offer(turned) == by_offer(ordered)


ROWS = st.lists(st.text(max_size=8), max_size=30).map(lambda cells: (PLAIN + ",".join(cells)).encode())


@given(st.binary(max_size=200) | ROWS)
@settings(max_examples=60, deadline=None)
def test_any_other_file_is_an_input_error(tmp_path_factory, raw):
    folder = tmp_path_factory.mktemp("prices")
    for name in ("a.csv", "a.csv.gz", "a.json"):
        (folder / name).write_bytes(raw)
        with pytest.raises(InputError):
            read_prices(folder / name)


def test_times_that_no_file_can_hold(tmp_path):
    market = Market((History(offer(), np.array([0.0, 1e15]), np.array([1.0, 2.0])),))
    with pytest.raises(InputError, match="years 1 to 9999"):
        write_prices(market, tmp_path / "a.csv")
    assert not (tmp_path / "a.csv").exists()


def test_reading_takes_a_few_times_as_long_as_splitting_rows(tmp_path):
    stamps = [datetime.fromtimestamp(h * HOUR, UTC).isoformat() for h in range(5_000)]
    rows = [f"r,r{z},p3.2xlarge,{s},{1 + (n * 7 + z) % 97}.5\n" for z in range(8) for n, s in enumerate(stamps)]
    path = written(tmp_path, AWS + "".join(rows))

    def split():
        with path.open(newline="") as file:
            return sum(float(cells[4]) for n, cells in enumerate(csv.reader(file)) if n)

    def best(work):
        spent = []
        for _ in range(3):
            begin = time.perf_counter()
            work()
            spent.append(time.perf_counter() - begin)
        return min(spent)

    assert len(read_prices(path).histories) == 8
    assert best(lambda: read_prices(path)) < 12 * best(split)


@pytest.mark.parametrize("when", ["0001-01-01T00:00:00+23:00", "9999-12-31T23:59:00"])
def test_times_that_cannot_be_told_are_refused(tmp_path, when):
    file = tmp_path / "prices.csv"
    file.write_text(PLAIN + f"x,r,,i,v100,1,spot,{when},1\n")
    with pytest.raises(InputError, match=r"line 2\.time_utc: got .*of the years 1900 to 2999"):
        read_prices(file)
