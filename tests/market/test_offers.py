import numpy as np
import pytest

from sim.market.offers import History, Market, Offer
from sim.specs.fields import InputError
from tests.market.toys import offer, priced


def test_names_for_readers():
    assert offer().name == "aws us-east-1a 1xv100"
    assert offer(billing="on-demand").name.endswith("on demand")
    assert Offer(cloud="azure", region="us_east", instance="NC6", device="k80", devices=1).name == "azure us_east NC6"


@pytest.mark.parametrize("price", [0.0, -1.0, float("nan"), float("inf"), 1e7])
def test_prices_are_above_zero(price):
    with pytest.raises(InputError, match="usd_per_hour"):
        priced(1.0, price)


def test_times_ascend():
    with pytest.raises(InputError, match="ascend"):
        History(offer(), np.array([1.0, 1.0]), np.array([1.0, 2.0]))
    with pytest.raises(InputError, match="one time for every price"):
        History(offer(), np.array([1.0]), np.array([1.0, 2.0]))


def test_a_market_ends_where_its_last_price_does():
    market = Market((priced(1, 2, 3), History.constant(offer("us-east-1b"), 2.0)))
    assert (market.begin_s, market.end_s) == (0.0, 7_200.0)
    assert Market((History.constant(offer(), 2.0),)).begin_s == -np.inf


def test_parts_of_a_market():
    market = Market((priced(1), priced(1, of=offer("us_eastx", "k80", cloud="azure"))), ("a note",))
    assert market.only(clouds=["azure"]).offers == market.offers[1:]
    assert market.only(regions=["azure us_east"]).notes == ("a note",)
    assert market.only(devices=["v100"], regions=["us-east-1"]).offers == market.offers[:1]
    with pytest.raises(InputError, match="one of aws, azure"):
        market.only(clouds=["aws", "azur"])
    with pytest.raises(InputError, match="at least one offer"):
        market.only(clouds=["aws"], devices=["k80"])
    with pytest.raises(InputError, match="at least one offer"):
        market.only(billing="on-demand")
