"""What a cluster may rent, and what its devices cost at the prices of a job."""

import pytest

from sim.market.job_prices import begin_of, fitting, market_of, priced
from sim.market.offers import History, Market
from sim.market.price_files import write_prices
from sim.specs import Cluster, InputError, NodeGroup, Prices
from tests.market.toys import HOUR, offer
from tests.market.toys import priced as history

V100S = Cluster.of("v100-sxm-16gb", nodes=2, gpus_per_node=4)


@pytest.fixture
def prices(tmp_path):
    """Return prices of files of a market; more is stated by name."""

    def make(market, **more):
        write_prices(market, tmp_path / "prices.csv")
        return Prices(files=str(tmp_path / "prices.csv"), **more)

    return make


def fits(*sizes, cluster=V100S, **more):
    offers = [offer(f"r{n}a", devices=size, **more) for n, size in enumerate(sizes)]
    return [h.offer.devices for h in fitting(Market(tuple(history(1.0, of=o) for o in offers)), cluster).histories]


def test_instances_hold_nodes_evenly():
    assert fits(1, 2, 4, 8, 16) == [4, 8, 16]  # two nodes of four
    assert fits(4, 8, 16, cluster=Cluster.of("v100-sxm-16gb", nodes=3, gpus_per_node=4)) == [4, 16]
    with pytest.raises(InputError, match=r"files: .*instances of 1, 2 devices.*hold 2 x 4 v100-sxm-16gb evenly"):
        fits(1, 2)


def test_only_the_clusters_device_fits():
    market = Market((history(1.0, of=offer(devices=4)), history(1.0, of=offer("r1a", "v100-32gb", 4))))
    assert [o.device for o in fitting(market, V100S).offers] == ["v100"]
    assert [o.device for o in fitting(market, V100S, "V100-32GB").offers] == ["v100-32gb"]
    with pytest.raises(InputError, match=r"device: got 'h100'; allowed: one of v100, v100-32gb, which are offered"):
        fitting(market, Cluster.of("h100-sxm-80gb"))


def test_errors_name_the_fields_of_the_job(prices):
    market = Market((history(1.0, of=offer(devices=4)),))
    for more, words in (
        ({"clouds": "gcp"}, "prices.clouds: got 'gcp'; allowed: one of aws"),
        ({"regions": ["us-west-9"]}, "prices.regions: got 'us-west-9'"),
        ({"billing": "on-demand"}, "prices: got"),
        ({"device": "k80"}, "prices.device: got 'k80'; allowed: one of v100"),
        ({"begin": "1969-01-01"}, "prices.begin: got '1969-01-01'; allowed: a time at which something is"),
    ):
        with pytest.raises(InputError) as caught:
            priced(V100S, prices(market, **more))
        assert str(caught.value).startswith(words)
    mixed = Cluster.of(groups=[NodeGroup(device="h100-sxm-80gb"), NodeGroup(device="a100-sxm-80gb")])
    with pytest.raises(InputError, match="usd_per_gpu_hour for a cluster of several devices"):
        market_of(prices(market), mixed)
    with pytest.raises(InputError, match=r"nowhere\.csv"):
        priced(V100S, Prices(files="nowhere.csv"))


def test_one_price_is_that_of_every_device():
    made = priced(V100S, Prices(usd_per_gpu_hour=1.25))
    assert made.usd_per_gpu_hour == 1.25
    assert not any("usd_per_gpu_hour" in line for line in made.assumptions)
    assert "cluster.memory_bytes = 17.2 GB (the device's usual server)" in made.assumptions
    assert priced(V100S, None) is V100S
    mixed = Cluster.of(groups=[NodeGroup(device="h100-sxm-80gb"), NodeGroup(device="a100-sxm-80gb")])
    same = priced(mixed, Prices(usd_per_gpu_hour=1.25))
    assert {m.usd_per_gpu_hour for m in (same, *same.members)} == {1.25}


def test_files_cost_the_mean_of_the_cheapest_at_each_time(prices):
    """4 then 8 USD for four devices, 12 then 6 for eight: 1.00 and 0.75 a device, one hour each."""
    held = Market((history(4.0, 8.0, 8.0, of=offer(devices=4)), history(12.0, 6.0, 7.0, of=offer("r1a", devices=8))))
    found = priced(V100S, prices(held))
    assert found.usd_per_gpu_hour == pytest.approx(0.875)
    told = next(line for line in found.assumptions if "usd_per_gpu_hour" in line)
    assert told.startswith("cluster.usd_per_gpu_hour = 0.875 USD (the cheapest of 2 offers")
    later = priced(V100S, prices(held, begin="1970-01-01T02:00:00"))
    assert later.usd_per_gpu_hour == pytest.approx(7 / 8)


def test_a_file_that_changed_is_read_again(prices):
    cheap, dear = (Market((History.constant(offer(devices=4), usd),)) for usd in (4.0, 12.5))
    assert [priced(V100S, prices(held)).usd_per_gpu_hour for held in (cheap, dear)] == [1.0, 3.125]
    with pytest.raises(InputError, match="no such file"):
        priced(V100S, Prices(files="a\0b"))


def test_idle_devices_of_an_instance_are_paid(prices):
    four = Cluster.of("v100-sxm-16gb", nodes=1, gpus_per_node=4)
    catalogue = Market((History.constant(offer(devices=8), 6.0),))
    assert priced(four, prices(catalogue)).usd_per_gpu_hour == pytest.approx(1.5)
    assert priced(V100S, prices(catalogue)).usd_per_gpu_hour == pytest.approx(0.75)


def test_a_run_begins_when_told_or_with_the_prices(prices):
    held = Market((History.constant(offer(devices=4), 1.0), history(2.0, of=offer("r1a", devices=4))))
    assert begin_of(prices(held, begin="1970-01-01T05:00"), held) == 5 * HOUR
    assert begin_of(prices(held), held) == 0.0
    assert begin_of(prices(held), Market(held.histories[:1])) == 0.0
