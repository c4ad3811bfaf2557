import json

import pytest

from sim.catalog import folder, names
from sim.market.jobs import Moves
from sim.specs.fields import InputError
from sim.specs.tariffs import instances, tariffs


def test_every_number_has_a_source():
    for kind in ("tariffs", "instances"):
        for name in names(kind):
            raw = json.loads((folder(kind) / f"{name}.json").read_text("utf-8"))
            numbers = raw.get("groups") or [value for value in raw.values() if isinstance(value, dict)]
            assert numbers
            for number in numbers:
                assert "http" in number["source"] or "github.com" in number["source"]
                assert "20" in number["source"], "a date"


def test_tariffs_by_cloud():
    assert list(tariffs()) == ["aws", "azure", "gcp"]
    aws = tariffs()["aws"]
    assert aws.usd_per_byte(same_cloud=True) * 1e9 == pytest.approx(0.02)
    assert aws.usd_per_byte(same_cloud=False) * 1e9 == pytest.approx(0.09)
    assert tariffs()["azure"].usd_per_gb_out == 0.087
    assert all(tariff.usd_per_gb_between_regions < tariff.usd_per_gb_out for tariff in tariffs().values())
    cost = Moves(state_bytes=1e9).transfer_usd([("aws", "us-east-1"), ("gcp", "us-west1")])
    assert cost.ravel().tolist() == pytest.approx([0.0, 0.09, 0.12, 0.0])


def test_instances_by_type():
    held = instances("aws")
    assert (held["p2.16xlarge"].device, held["p2.16xlarge"].devices) == ("k80", 16)
    assert (held["p3dn.24xlarge"].device, held["g5.12xlarge"].devices) == ("v100-32gb", 4)
    families = "p2 p3 p3dn p4d p4de p5 p5e p5en p6-b200 g4dn g5 g6"
    assert {name.split(".")[0] for name in held} == set(families.split())
    groups = json.loads((folder("instances") / "aws.json").read_text("utf-8"))["groups"]
    assert len(held) == sum(len(group["devices"]) for group in groups), "each type once"
    with pytest.raises(InputError, match="one of aws"):
        instances("azur")
