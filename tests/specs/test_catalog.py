"""Catalog entries load, and every number has a source."""

import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sim.catalog import folder, names
from sim.specs import InputError
from sim.specs.catalog import device, devices, model, precision, precisions, scaling_law
from tests.oracle import ROOT, reference

CATALOG = ROOT / "sim" / "catalog"

PLAIN = {"name", "title", "vendor", "intra_node", "gpus_per_node", "domain_gpus", "price_date", "bfloat16"}


@pytest.mark.parametrize("name", names("devices"))
def test_device(name):
    found = device(name)
    assert found.name == name
    raw = json.loads((folder("devices") / f"{name}.json").read_text())
    numbers = {k: v for k, v in raw.items() if k not in PLAIN}
    assert len(numbers) >= 10
    assert all(len(v["source"]) > 10 for v in numbers.values())


ACCELERATORS = [name for name in names("devices") if not device(name).on_host]


def test_a_core_of_a_host_processor():
    core = device("cpu")
    assert core.on_host and core.host_bytes_per_s is None
    # Two 256-bit FMA pipes: 32 fp32 FLOP a clock, and twice as many in 16 bit.
    assert core.peak_flop_per_s("fp32") == pytest.approx(32 * core.boost_hz.value, rel=1e-3)
    assert core.peak_flop_per_s("bf16") == 2 * core.peak_flop_per_s("fp32")
    assert device("h100-sxm-80gb").peak_flop_per_s("fp32") == device("h100-sxm-80gb").peak_flop_per_s("bf16")


@pytest.mark.parametrize("name", ACCELERATORS)
def test_numbers_of_a_device_agree_with_each_other(name):
    found = device(name)
    peaks = [
        p.value
        for p in (found.peak_bf16_flop_per_s, found.peak_fp8_flop_per_s, found.peak_fp4_flop_per_s)
        if p is not None
    ]
    assert peaks == sorted(peaks)
    assert 0 < found.idle_power_w.value < found.power_w.value / 4
    # A tensor core does at most 16,384 dense 16-bit FLOP a clock and SM (Blackwell); a smaller clock is no boost.
    assert 256 <= found.peak_bf16_flop_per_s.value / (found.sms.value * found.boost_hz.value) <= 16_384
    assert found.inter_bytes_per_s_per_node.value / found.gpus_per_node <= found.intra_bytes_per_s.value
    assert found.host_bytes_per_s is not None
    assert 15e9 < found.host_bytes_per_s.value <= found.intra_bytes_per_s.value * 2
    assert (found.intra_node == "pcie") == (found.intra_bytes_per_s.value < 100e9)


def test_nvl72_joins_eighteen_trays():
    for name in ("gb200", "gb300"):
        assert (devices[name].gpus_per_node, devices[name].domain_gpus) == (4, 72)
    assert {d.domain_gpus for n, d in devices.items() if n in ACCELERATORS and not n.startswith("gb")} == {8}


def test_speedup_is_measured_where_it_can_be():
    h100 = device("h100-sxm-80gb")
    assert h100.speedup("bf16") == 1
    assert h100.speedup("fp8") == pytest.approx(1402.6 / 794.5, rel=1e-3)
    assert device("h100-pcie-80gb").speedup("fp8") == pytest.approx(2, rel=1e-3)
    assert device("b200").speedup("fp4") == 4
    with pytest.raises(InputError, match=r"precision: got 'fp4'; allowed: .* H100 .*: bf16, fp8"):
        h100.speedup("fp4")


def test_every_device_of_the_measured_runs_is_known():
    paths = sorted(reference("runs").glob("*.csv"))
    assert len(paths) >= 13
    used = {row["device"] for path in paths for row in csv.DictReader(path.open(encoding="utf-8"))}
    assert used <= set(devices)


@pytest.mark.parametrize("name", names("models"))
def test_model(name):
    assert model(name).name == name
    assert len(json.loads((folder("models") / f"{name}.json").read_text())["source"]) > 10


@pytest.mark.parametrize("name", names("scaling"))
def test_scaling_law(name):
    found = scaling_law(name)
    assert found.name == name
    assert all("arXiv" in number.source for number in (found.e, found.a, found.b, found.alpha, found.beta))


def test_unknown_scaling_law_names_the_known():
    with pytest.raises(InputError, match="one of besiroglu-2024, hoffmann-2022"):
        scaling_law("kaplan")


@pytest.mark.parametrize("name", names("precisions"))
def test_precision(name):
    found = precision(name)
    assert found.name == name
    assert all(len(v.source) > 10 for v in vars(found).values() if hasattr(v, "source"))
    low = found.operand_bytes < found.activation_bytes.value
    assert (found.activation_bytes.value, found.master_bytes.value) == ((4, 0) if name == "fp32" else (2, 4))
    # What is cast is read from 16 bit and written once at least; only then is there a second copy of the weights.
    assert found.cast_bytes_per_element.value >= (2 + found.operand_bytes if low else 0)
    assert (found.weight_copy_bytes.value > 0) == (found.cast_bytes_per_element.value > 0) == low


def test_block_scales_are_those_of_the_formats():
    """One byte a block of 32 (OCP MX v1.0) and a block of 16 (NVFP4)."""
    assert {n: p.operand_bytes for n, p in precisions.items()} == {
        "fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "mxfp8": 1 + 1 / 32, "nvfp4": 1 / 2 + 1 / 16,
    }  # fmt: skip


def test_unknown_names_are_answered_with_the_known_ones():
    with pytest.raises(InputError, match=r"precision: got 'int8'; allowed: one of bf16, fp16, fp32, fp8, mxfp8, nvfp4"):
        precision("int8")
    with pytest.raises(InputError, match=r"device: got 'tpu'; allowed: one of a100.*path of a device file"):
        device("tpu")


COUNTED = {file.stem: json.loads(file.read_text()) for file in (Path(__file__).parent / "configs").glob("*.json")}


@pytest.mark.parametrize("name", sorted(COUNTED.keys() & set(names("models"))))
def test_parameters_without_prediction_modules_are_the_library_s(name):
    assert replace(model(name), mtp_layers=0).parameters == COUNTED[name]["parameters"]


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("nemotron-3-ultra", 550, 55),
        ("nemotron-3-super", 120, 12),
        ("nemotron-3.5-lightning", 31.6, 3.6),
        ("deepseek-v4-flash", 284, 13),
        ("nemotron3-8b", 8.5, 8.5),
        ("nemotron3-22b", 22, 22),
        ("gpt3-5b", 5, 5),
        ("gpt3-20b", 20, 20),
        ("mixtral-8x22b", 141, 39),
        ("grok-1", 314, 84),
        ("llama4-scout", 109, 17),
        ("llama4-maverick", 400, 17),
        ("qwen2.5-32b", 32.5, 32.5),
        ("qwen2.5-72b", 72.7, 72.7),
        ("nemotron-h-56b", 56, 56),
        ("deepseek-v2-lite", 15.7, 2.4 + 0.2),  # the published 2.4 leaves the table of words out
        ("opt-175b", 175, 175),
    ],
)
def test_parameters_meet_the_published_ones(name, billions, active):
    found = replace(model(name), mtp_layers=0)
    assert found.parameters / 1e9 == pytest.approx(billions, rel=0.035)
    assert found.active_parameters / 1e9 == pytest.approx(active, rel=0.065)


COUNTS = {"gpus_per_node", "domain_gpus", "schema_version"}
"""What names a shape, not a measured or published number."""
SOURCES = ("source", "sources", "method")


def unsourced(raw: Any, path: str = "", told: bool = False) -> Iterator[str]:
    """Yield the places of numbers beside and above which no source stands."""
    if isinstance(raw, dict):
        told = told or any(len(str(raw.get(name, ""))) > 10 for name in SOURCES)
        for key, value in raw.items():
            if key not in COUNTS:
                yield from unsourced(value, f"{path}.{key}", told)
    elif isinstance(raw, list):
        for number, value in enumerate(raw):
            yield from unsourced(value, f"{path}[{number}]", told)
    elif isinstance(raw, int | float) and not isinstance(raw, bool) and not told:
        yield path


# What a profile predicts of its hold-outs is no source of anything, and its session stands beside it.
FILES = sorted(set(CATALOG.rglob("*.json")) - set(CATALOG.glob("profiles/*/hold-out.json")))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(CATALOG).as_posix())
def test_every_number_of_every_kind_has_a_source(file):
    assert list(unsourced(json.loads(file.read_text("utf-8")))) == []


def test_a_number_without_source_is_found():
    assert list(unsourced({"a": [1], "b": {"source": "a book of 1999", "value": 2}})) == [".a[0]"]


@pytest.mark.parametrize("name", [3, None, ("gpt2",)])
def test_what_is_no_name_is_refused_as_an_unknown_one(name):
    with pytest.raises(InputError, match=r"device: got .*; allowed: one of a100"):
        devices[name]
