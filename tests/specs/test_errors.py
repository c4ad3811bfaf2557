"""Every bad value gets one error with the field's path, the value and the allowed range."""

import pytest

from sim.specs import Cluster, InputError, Job, Model, Plan
from sim.specs.catalog import models
from sim.specs.fields import Told, check
from sim.specs.files import load_mapping

JOB = """
model: {model}
cluster: {cluster}
plan: {plan}
{more}
"""
GOOD = {
    "model": "gpt3-175b",
    "cluster": "{device: h100-sxm-80gb, nodes: 16}",
    "plan": "{tp: 8, pp: 4, global_batch: 1024}",
    "more": "",
}

CASES = [
    ({"model": "gpt5"}, "model", "'gpt5'", "catalog name"),
    ({"model": "{layers: 0, hidden: 8, heads: 2}"}, "model.layers", "0", "1 to 4096"),
    ({"model": "{layers: 2, hidden: 10, heads: 3}"}, "model.heads", "3", "divisor of hidden = 10"),
    (
        {"model": "{layers: 2, hidden: 8, heads: 4, kv_heads: 3}"},
        "model.kv_heads",
        "3",
        "divisor of heads = 4",
    ),
    ({"model": "{layers: 2, hidden: 8}"}, "model.heads", "missing", "required"),
    ({"model": "{layers: 2, hidden: 8, heads: 2, width: 3}"}, "model.width", "3", "no such key"),
    ({"model": "{layers: two, hidden: 8, heads: 2}"}, "model.layers", "'two'", "whole number"),
    (
        {"model": "{layers: 2, hidden: 8, heads: 2, norm: batch}"},
        "model.norm",
        "'batch'",
        "layernorm, rmsnorm",
    ),
    ({"cluster": "{device: h1000}"}, "cluster.device", "'h1000'", "h100-sxm-80gb"),
    ({"cluster": "{device: l4, nodes: -1}"}, "cluster.nodes", "-1", "1 to 100000"),
    (
        {"cluster": "{device: l4, links: {intra_bytes_per_s: fast}}"},
        "cluster.links.intra_bytes_per_s",
        "'fast'",
        "1e+06 to 1e+14 B/s",
    ),
    ({"cluster": "{device: l4, memory_bytes: .nan}"}, "cluster.memory_bytes", "nan", "1e+06 to 1e+14"),
    ({"plan": "{tp: 0, global_batch: 8}"}, "plan.tp", "0", "1 to 4096"),
    ({"plan": "{tp: true, global_batch: 8}"}, "plan.tp", "True", "whole number"),
    ({"plan": "{tp: 8}"}, "plan.global_batch", "missing", "required"),
    ({"plan": "{tp: 8, global_bach: 4}"}, "plan.global_bach", "4", "did you mean global_batch?"),
    ({"plan": "{global_batch: 8, zero: 4}"}, "plan.zero", "4", "0 to 3"),
    ({"plan": "[1, 2]"}, "plan", "[1, 2]", "mapping"),
    ({"more": "tune: {global_batch: 8, knobs: {tp: [0]}}"}, "tune.knobs.tp", "0", "1 to 4096"),
    ({"more": "tune: {global_batch: 8, knobs: {gpus: [1]}}"}, "tune.knobs.gpus", "[1]", "a knob: tp, pp"),
    ({"more": "tune: {global_batch: 8, objective: speed}"}, "tune.objective", "'speed'", "step_time, cost"),
    ({"more": "plans: 3"}, "plans", "3", "known keys: model, cluster, plan, tune, training"),
    ({"more": "training: {}"}, "training.tokens", "None", "exactly one of tokens and steps"),
    ({"more": "training: {tokens: 1e9, steps: 3}"}, "training.tokens", "1000000000.0", "exactly one"),
    ({"more": "training: {tokens: -1}"}, "training.tokens", "-1", "1 to 1e+18 tokens"),
    ({"more": "training: {tokens: many}"}, "training.tokens", "'many'", "1 to 1e+18 tokens"),
    ({"more": "training: {tokens: .inf}"}, "training.tokens", "inf", "1 to 1e+18 tokens"),
    ({"more": "training: {steps: 1.5}"}, "training.steps", "1.5", "a whole number from 1"),
    ({"more": "training: {steps: 0}"}, "training.steps", "0", "a whole number from 1"),
    ({"more": "training: {steps: 1, goodput: 0}"}, "training.goodput", "0", "0.01 to 1"),
    ({"more": "training: {steps: 1, goodput: 1.1}"}, "training.goodput", "1.1", "0.01 to 1"),
    ({"more": "training: {steps: 1, pue: 0.9}"}, "training.pue", "0.9", "1 to 3"),
    ({"more": "training: {steps: 1, utilisation: 2}"}, "training.utilisation", "2", "0 to 1"),
    ({"more": "training: {steps: 1, usd_per_gpu_hour: -1}"}, "training.usd_per_gpu_hour", "-1", "0 to 10000 USD"),
    ({"more": "training: {steps: 1, warmup: 3}"}, "training.warmup", "3", "known keys: tokens, steps"),
    ({"more": "training: 3"}, "training", "3", "mapping"),
    ({"more": "model: gpt2-xl"}, "model", "given twice (again in line 5)", "each key once"),
]


@pytest.mark.parametrize(("change", "path", "value", "allowed"), CASES)
def test_bad_job(tmp_path, change, path, value, allowed):
    file = tmp_path / "job.yaml"
    file.write_text(JOB.format(**GOOD | change))
    with pytest.raises(InputError) as caught:
        Job.load(file)
    assert caught.value.path == path
    assert value in str(caught.value)
    assert allowed in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("job.yaml", "a: &x 1\nb: *x", "no YAML aliases"),
        ("job.yaml", "a: [1", "well-formed"),
        ("job.yaml", "!!python/object/apply:os.system ['true']", "no YAML tags"),
        ("job.yaml", "- 1", "a mapping"),
        ("job.json", '{"model": 1, "model": 2}', "each key once"),
        ("job.json", "[" * 100_000, "at most 32 levels"),
        ("job.yaml", "cluster: {2020: 1, device: l4}", "text as a key"),
        ("job.yaml", "a: \x00", "well-formed"),
        ("job.json", "{" + ",".join(f'"k{i}": {i}' for i in range(40_000)) + "}", "known keys"),
        ("job.yaml", "x: " + "a" * 2**20, "at most"),
    ],
)
def test_bad_file(tmp_path, name, text, problem):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=problem):
        Job.load(tmp_path / name)


@pytest.mark.parametrize("value", ["0x" + "f" * 9_000, "0x10", "1:30", "010.", "9" * 5_000])
def test_numbers_that_are_not_decimal(tmp_path, value):
    (tmp_path / "job.yaml").write_text(JOB.format(**GOOD | {"plan": f"{{global_batch: {value}}}"}))
    with pytest.raises(InputError, match=r"plan\.global_batch"):
        Job.load(tmp_path / "job.yaml")


@pytest.mark.parametrize("text", ["300e9", "3e11", "3.0e+11", "300000000000", "300_000_000_000", ".3e12"])
def test_numbers_as_people_write_them(tmp_path, text):
    (tmp_path / "job.yaml").write_text(JOB.format(**GOOD | {"more": f"training: {{tokens: {text}}}"}))
    assert Job.load(tmp_path / "job.yaml").training.tokens == 300e9


@pytest.mark.parametrize(
    ("text", "value"), [("4e11", 4e11), ("3.2e+10", 3.2e10), (".5e9", 5e8), ("400000000000", 4e11)]
)
def test_numbers_with_an_exponent(tmp_path, text, value):
    cluster = f"{{device: l4, links: {{intra_bytes_per_s: {text}}}}}"
    (tmp_path / "job.yaml").write_text(JOB.format(**GOOD | {"cluster": cluster}))
    assert Job.load(tmp_path / "job.yaml").cluster.links.intra_bytes_per_s == value


def test_a_date_is_text(tmp_path):
    (tmp_path / "any.yaml").write_text("date: 2026-11-21\n")
    assert load_mapping(tmp_path / "any.yaml") == {"date": "2026-11-21"}


def test_several_problems_come_together():
    made, problems = check(Plan, {"tp": 0, "zero": 7, "wings": 2}, "plan")
    assert made is None
    assert [p.path for p in problems] == ["plan.tp", "plan.global_batch", "plan.zero", "plan.wings"]
    _, nested = check(Job, {"model": {"layers": 2}, "cluster": {"device": "l4", "links": {"latency_s": 9}}})
    assert [p.path for p in nested] == ["model.hidden", "model.heads", "cluster.links.latency_s"]


def test_a_device_is_no_job_file():
    with pytest.raises(InputError, match="not a regular file"):
        Job.load("/dev/zero")


def test_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"none\.yaml.*readable file"):
        Job.load(tmp_path / "none.yaml")


PLANS = [
    ({"tp": 7}, "plan.tp", "nearest 6 or 8"),
    ({"tp": 8, "pp": 3}, "plan.pp", "must divide 128 GPUs; nearest pp 2 or 4"),
    ({"tp": 3, "pp": 4}, "plan.pp", "must divide 128 GPUs; no pp does: nearest tp 2 or 4"),
    ({"tp": 3, "pp": 3}, "plan.pp", "must divide 128 GPUs; no pp does, nor any tp beside this one"),
    ({"tp": 3, "cp": 2}, "plan.cp", "must divide 128 GPUs; no cp does beside tp 3"),
    ({"pp": 64, "virtual_stages": 5}, "plan.pp", "(or give stage_layers); no pp does beside virtual_stages 5"),
    ({"tp": 8, "pp": 4, "dp": 2}, "plan.dp", "4 (tp x pp x dp must equal 128 GPUs)"),
    ({"pp": 64}, "plan.pp", "must divide layers = 96 (or give stage_layers); nearest 32"),
    ({"pp": 4, "virtual_stages": 5}, "plan.virtual_stages", "nearest 4 or 6"),
    ({"micro_batch": 3}, "plan.micro_batch", "must divide global_batch = 1024"),
    ({"pp": 2, "schedule": "none"}, "plan.schedule", "another one, such as 1f1b"),
    ({"virtual_stages": 2}, "plan.virtual_stages", "pp 2 or more"),
    ({"tp": 8, "pp": 8, "virtual_stages": 2, "global_batch": 18}, "plan.micro_batch", "multiple of 8"),
    (
        {"pp": 4, "virtual_stages": 2, "microbatch_group_size": 2},
        "plan.microbatch_group_size",
        "can deadlock",
    ),
    ({"sequence_parallel": True}, "plan.sequence_parallel", "false with tp = 1"),
]


@pytest.mark.parametrize(("change", "path", "allowed"), PLANS)
def test_illegal_plan(gpt3, h100s, change, path, allowed):
    plan = Plan(**{"global_batch": 1024} | change)
    with pytest.raises(InputError) as caught:
        plan.on(gpt3, h100s)
    assert caught.value.path == path
    assert allowed in caught.value.allowed


def test_constructor_and_file_give_the_same_text():
    with pytest.raises(InputError, match=r"tp: got 0; allowed: a whole number from 1 to 4096"):
        Plan(tp=0, global_batch=8)
    with pytest.raises(InputError, match="one of a100"):
        Cluster.of("tpu")
    with pytest.raises(InputError, match="hidden: missing; required"):
        Model(layers=2, heads=2)


def test_every_default_is_listed():
    listed = " ".join(Model(layers=2, hidden=64, heads=4).assumptions)
    for name in ("head_dim", "kv_heads", "ffn = 256", "vocab", "seq", "tied_embeddings", "bias", "positions"):
        assert f"model.{name}" in listed
    assert "ffn" not in " ".join(models["llama3-70b"].assumptions)


@pytest.mark.parametrize("text", ["1\u2009000", r"C:\u2009", "a\u2009b"])
def test_a_users_text_is_told_as_python_writes_it_and_our_numbers_as_a_reader_does(text):
    assert f"got {text!r};" in str(InputError("model.name", text, "a name"))
    assert f"got [{text!r}];" in str(InputError("model.name", [text], "a name"))
    assert "got '1\u2009000 s';" in str(InputError("storage", Told("1\u2009000 s"), "less"))
