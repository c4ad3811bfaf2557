"""Names of devices: a market's and the catalog's."""

import json

from sim.catalog import folder, names
from sim.market.devices import catalog_device, market_name

ALIASES = json.loads(folder("aliases.json").read_text("utf-8"))["devices"]


def test_every_name_is_lower_case_and_means_a_device_of_the_catalog():
    assert ALIASES["source"]
    for name, device in ALIASES["names"].items():
        assert name == name.lower()
        assert device in names("devices")
        assert catalog_device(name) == device


def test_names_go_both_ways():
    assert catalog_device("a100-80gb") == "a100-sxm-80gb"
    assert market_name("a100-sxm-80gb") == "a100-80gb"
    assert market_name("v100-sxm-16gb") == "v100"
    assert catalog_device("tpu-v4") is market_name("cpu") is None
