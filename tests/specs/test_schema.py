"""JSON Schemas: they take what the readers take and refuse what they refuse, as far as a schema can say."""

import json
from functools import cache

import jsonschema
import pytest
import yaml

from sim.catalog import folder, names
from sim.cli.device import device_text
from sim.cli.kinds import KINDS
from sim.specs import InputError, Job
from sim.specs.catalog import device
from sim.specs.fields import init_names
from sim.specs.files import load_mapping
from sim.specs.schema import DIALECT, file_schema
from tests.cli.test_bad_input import TABLE, changed, job_text
from tests.oracle import ROOT

JOBS = sorted((ROOT / "notebooks" / "jobs").glob("*.yaml"))
BEYOND = (
    "divisor of", "no such file", "device file (none", "got 2.0", "got nan", "control characters", "letters",
    "layers of experts", "to experts =", "with kv_lora_rank", "encoder_layers: got", "the groups say", "in all groups",
    "oversubscription above", "at least min =", "left out beside prices",
)  # fmt: skip
"""Words of errors that no schema expresses: other fields, other files, 2.0 for 2, NaN."""


@cache
def schema(kind):
    made = file_schema(KINDS[kind])
    jsonschema.Draft202012Validator.check_schema(made)
    return jsonschema.Draft202012Validator(made)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_described_schema(kind):
    made = schema(kind).schema
    assert made["$schema"] == DIALECT
    assert made["description"]
    assert made["additionalProperties"] is False
    assert not {"assumptions", "derived"} & set(made["properties"])


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.name)
def test_shipped_jobs_are_valid(path):
    schema("job").validate(yaml.safe_load(path.read_text("utf-8")))


@pytest.mark.parametrize("kind", ["devices", "profiles"])
def test_the_catalog_is_valid(kind):
    inner = "profile.json" if kind == "profiles" else ""
    for name in names(kind):
        file = folder(kind) / (f"{name}/{inner}" if inner else f"{name}.json")
        schema(kind.removesuffix("s")).validate(json.loads(file.read_text("utf-8")))


@pytest.mark.parametrize("row", TABLE["job"], ids=lambda row: str(row["change"])[:60])
def test_bad_jobs_are_refused(tmp_path, row):
    (tmp_path / "job.yaml").write_text(job_text(row["change"]))
    raw = yaml.safe_load(job_text(row["change"]))
    try:
        Job.load(tmp_path / "job.yaml")
        expected = True
    except InputError as error:
        expected = any(words in str(error) for words in BEYOND)
    # What YAML 1.1 takes for a number and the reader for text is the reader's own business.
    if not any(odd in row["error"] for odd in ("'0x10'", "'1:30'", "100000.0")):
        assert schema("job").is_valid(raw) == expected


@pytest.mark.parametrize(("kind", "file"), [("device", "devices/l4.json"), ("profile", "profiles/l4/profile.json")])
def test_bad_catalog_files_are_refused(kind, file):
    for row in TABLE[kind]:
        raw = json.loads(changed(*file.split("/", 1), row["change"]))
        if "/prof" in row["error"] and any(words in row["error"] for words in ("to 1e18", "exactly")):
            continue  # what the forms of the kernels ask for
        if kind == "device" and any(words in row["error"] for words in BEYOND):
            continue
        if row["error"].endswith(("must hold gemm/forward", "nan; allowed: a number from 0 to 1e+06")):
            continue
        assert not schema(kind).is_valid(raw), row


@pytest.mark.parametrize("kind", [kind for kind, cls in KINDS.items() if kind != "profile"])
def test_every_field_is_in_the_schema_with_its_meaning(kind):
    properties = schema(kind).schema["properties"]
    assert set(properties) - ({"base"} if kind == "model" else set()) == set(init_names(KINDS[kind]))
    assert all(set(held) & {"description", "type", "enum", "anyOf", "$ref", "const"} for held in properties.values())


def test_device_files_may_hold_plain_numbers_and_no_source(tmp_path):
    raw = json.loads((folder("devices") / "l4.json").read_text("utf-8"))
    assert schema("device").is_valid(raw | {"sms": 58, "usd_per_gpu_hour": 0.8})
    (tmp_path / "mine.yaml").write_text(device_text("mine", device("l4"), "mine.yaml"))
    assert schema("device").is_valid(load_mapping(tmp_path / "mine.yaml"))
    assert not schema("device").is_valid(raw | {"sms": "58"})


@pytest.mark.parametrize(("cluster", "good"), [({"device": "l4"}, True), ({"nodes": 2}, False), ({"groups": []}, False),
                                               ({"groups": [{"device": "l4"}]}, True)])  # fmt: skip
def test_a_cluster_has_a_device_or_groups(cluster, good):
    assert schema("cluster").is_valid(cluster) == good


@pytest.mark.parametrize(("training", "good"), [({"tokens": 1e9}, True), ({"steps": 5}, True), ({}, False),
                                                ({"tokens": 1e9, "steps": 5}, False)])  # fmt: skip
def test_a_run_is_so_many_tokens_or_steps(training, good):
    assert schema("training").is_valid(training) == good


@pytest.mark.parametrize(("model", "good"), [({"base": "gpt2-xl", "seq": 512}, True), ({"base": "mine.json"}, True),
                                              ({"base": "gpt5"}, False), ({"seq": 512}, False)])  # fmt: skip
def test_a_model_has_dimensions_or_a_base(model, good):
    assert schema("model").is_valid(model) == good


def test_tune_gives_the_batch():
    job = {"model": "gpt3-175b", "cluster": {"device": "l4"}, "plan": {"tp": 2}}
    assert not schema("job").is_valid(job)
    assert schema("job").is_valid(job | {"tune": {"global_batch": 8}})
