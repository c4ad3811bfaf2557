"""Names of published tables resolve to catalog models."""

import csv

import pytest

from sim.specs import InputError
from sim.specs.catalog import alias, models
from tests.oracle import reference


def test_a_remark_changes_the_model():
    usual = models["deepseek-v3"]
    assert (usual.mtp_layers, usual.capacity_factor) == (1, 0.0)
    assert alias("DeepSeekV3 (w/o MTP)").mtp_layers == 0
    assert alias("DeepSeekV3 (tokendrop)").capacity_factor == 1.0
    assert alias("DeepSeekV3 (dropless)") == usual


def test_a_catalog_name_stands_for_itself():
    assert alias("mixtral-8x7b") == models["mixtral-8x7b"]


def test_unknown_name():
    with pytest.raises(InputError, match="deepseek-v3"):
        alias("DeepSeekV99")


def test_rows_without_dimensions_resolve():
    folder = reference("runs")
    rows = [row for file in sorted(folder.glob("*.csv")) for row in csv.DictReader(file.open())]
    nameless = {(row["model"], row["layers"]) for row in rows if not row["hidden"]}
    assert len(nameless) >= 20
    for name, layers in nameless:
        found = alias(name)
        assert not layers or found.layers == int(layers)
