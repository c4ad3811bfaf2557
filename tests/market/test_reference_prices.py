"""The reference's files of prices and lifetimes are read whole."""

import csv
import gzip
import io

import numpy as np
import pytest

from sim.market.availability import read_availability
from sim.market.lifetimes import read_lifetimes
from sim.market.price_files import read_prices, write_prices
from tests.market.toys import HOUR
from tests.oracle import reference

AWS = "aws_gpu_spot_2019-12_2020-03.csv.gz"
AZURE = "azure_gpu_spot_2020-02_2020-03.csv"
GCP = "gcp_preemptible_2020-02_2020-03.csv"
SAMPLE = "gpu_on_demand_prices_skypilot_sample.csv"
LIVES = "instance_lifetimes_2020-03.csv"


def published(*names):
    return read_prices(*(reference(f"market/{name}") for name in names))


@pytest.mark.parametrize(
    ("name", "offers", "changes", "notes"),
    [(AWS, 98, 9_085, 0), (AZURE, 28, 141, 0), (GCP, 33, 33, 1), (SAMPLE, 10, 10, 0)],
)
def test_every_file_is_read_whole(name, offers, changes, notes):
    market = published(name)
    assert len(market.offers) == len(set(market.offers)) == offers
    assert sum(len(history.times_s) for history in market.histories) == changes
    assert len(market.notes) == notes
    for history in market.histories:
        assert (np.diff(history.times_s) > 0).all()
        assert (history.usd_per_hour > 0).all()


def test_every_row_of_aws_holds_from_its_time_on():
    market = published(AWS)
    at = {(history.offer.zone, history.offer.instance): history for history in market.histories}
    rows = list(csv.DictReader(io.StringIO(gzip.decompress(reference(f"market/{AWS}").read_bytes()).decode())))
    assert len(rows) == 16_560
    for row in rows:
        history = at[row["availability_zone"], row["instance_type"]]
        time_s = np.datetime64(row["timestamp_utc"].rstrip("Z")).astype("datetime64[ms]").astype(float) / 1000
        n = np.searchsorted(history.times_s, time_s, side="right") - 1
        assert history.usd_per_hour[n] == float(row["spot_price_usd_per_hour"])


def test_all_of_them_together_are_written_and_read_back(tmp_path):
    market = published(AWS, AZURE, GCP, SAMPLE)
    assert len(market.offers) == 169
    write_prices(market, tmp_path / "all.csv.gz")
    again = read_prices(tmp_path / "all.csv.gz")
    assert again.offers == market.offers
    assert all((a.times_s == b.times_s).all() for a, b in zip(again.histories, market.histories, strict=True))


def test_lives_of_instances():
    held = {(each.cloud, each.device): each for each in read_lifetimes(reference(f"market/{LIVES}"))}
    assert sum(len(each.lived_s) for each in held.values()) == 39 + 451
    assert sum(each.ended.sum() for each in held.values()) == 32 + 445
    assert held["gcp", "v100"].mean_s / HOUR == pytest.approx(3.74, abs=0.01)
    assert not held["aws", "v100"].ended.any()  # none was lost within two days


def test_large_instances_are_up_less():
    held = read_availability(reference(f"market/{LIVES}"), published(AWS, GCP))
    up = {offer.name: float(np.diff(times).sum()) for offer, times in held.items()}
    log_s = up["aws us-east-1b p3.2xlarge"]
    assert up["aws us-east-1c p2.xlarge"] / log_s == pytest.approx(0.82, abs=0.01)
    assert up["aws us-east-1c p2.8xlarge"] / log_s == pytest.approx(0.20, abs=0.01)
    assert all(offer.billing == "spot" for offer in held)
