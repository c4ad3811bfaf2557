"""`trainsim emit` and `trainsim import`."""

import json
from dataclasses import replace

import pytest

from sim.plans import EXPORTERS
from tests.specs.test_traced import TABLE

JOB = "model: llama3-8b\ncluster: {device: h100-sxm-80gb, nodes: 2}\nplan: {%s}\n"
PLANS = {
    "torch-csv": "tp: 2, pp: 4, global_batch: 32",
    "torchtitan": "tp: 2, pp: 2, zero: 3, global_batch: 32, schedule: zb-h1, optimizer_barrier: true",
    "torchtitan-0.3": "tp: 2, pp: 2, zero: 3, global_batch: 32",
    "megatron": "tp: 4, pp: 2, virtual_stages: 2, zero: 1, global_batch: 64, recompute: selective",
    "deepspeed": "pp: 4, zero: 1, global_batch: 32, recompute: full",
}


@pytest.fixture
def job(tmp_path):
    def write(plan):
        (tmp_path / "job.yaml").write_text(JOB % plan)
        return tmp_path / "job.yaml"

    return write


def test_every_target_has_a_plan_here():
    assert set(PLANS) == set(EXPORTERS)


@pytest.mark.parametrize("target", PLANS)
def test_the_path_and_the_content(trainsim, job, tmp_path, target):
    path = job(PLANS[target])
    code, out, _ = trainsim("emit", path, "--to", target, "--out", tmp_path / "plan.out", "--json")
    data = json.loads(out)
    assert code == 0
    assert (data["path"], data["target"]) == (str(tmp_path / "plan.out"), target)
    assert (tmp_path / "plan.out").read_text() == data["content"]
    assert {p.name for p in tmp_path.iterdir()} == {"job.yaml", *(f["path"].split("/")[-1] for f in data["files"])}
    assert trainsim("emit", path, "--to", target)[1] == data["content"]


def test_torchtitan_names_its_csv(trainsim, job, tmp_path):
    path = job(PLANS["torchtitan"])
    assert trainsim("emit", path, "--to", "torchtitan-0.3", "--out", tmp_path / "mine.flags")[0] == 0
    assert "--parallelism.pipeline_parallel_schedule_csv=mine.csv" in (tmp_path / "mine.flags").read_text()
    assert (tmp_path / "mine.csv").read_text().startswith("0F0,")
    assert "config.parallelism.tensor_parallel_degree = 2" in (tmp_path / "mine.py").read_text()


def test_notes_say_what_is_not_printed_and_what_was_simulated_otherwise(trainsim, job, tmp_path):
    path = job(PLANS["torchtitan"])
    notes = trainsim("emit", path, "--to", "torchtitan-0.3")[2].splitlines()
    assert notes[0].startswith("note: predicted with framework megatron: plan.framework torch")
    assert notes[1] == "note: not printed: plan.py, plan.csv; --out writes every file"
    data = json.loads(trainsim("emit", path, "--to", "torchtitan-0.3", "--json")[1])
    assert [f"note: {note}" for note in data["notes"]] == notes[:1]
    pieces = job(PLANS["torchtitan-0.3"] + ", framework: torch, tp_comm_overlap: true, compiled: true")
    _, out, err = trainsim("emit", pieces, "--to", "torchtitan-0.3", "--json")
    files = [file["content"] for file in json.loads(out)["files"]]
    assert "--compile.enable_async_tensor_parallel\n" in files[0] and "enable_async_tensor_parallel=True)" in files[1]
    assert not err and not json.loads(out)["notes"]
    assert (
        "tp_comm_overlap true" in trainsim("emit", pieces, "--to", "torchtitan")[2]
    )  # the main branch has it elsewhere
    own = job(PLANS["torchtitan"] + ", framework: torch")
    assert trainsim("emit", own, "--to", "torchtitan", "--out", tmp_path / "plan.py")[2] == ""
    path.write_text(path.read_text().replace("llama3-8b", "gpt-neox-20b"))
    assert "torchtitan has no network with model.norm layernorm" in trainsim("emit", path, "--to", "torchtitan")[2]


def test_notes_say_what_deepspeed_does_whatever_the_plan_says(trainsim, job):
    """Its pipeline overlaps nothing and blocks, and reads no stages from the configuration."""
    said = trainsim("emit", job(PLANS["deepspeed"]), "--to", "deepspeed")[2]
    for word in ("overlap_dp true", "blocking_sends false", "num_stages=4"):
        assert word in said
    own = PLANS["deepspeed"] + ", overlap_dp: false, blocking_sends: true"
    notes = trainsim("emit", job(own), "--to", "deepspeed")[2].splitlines()
    assert len(notes) == 2 and "ZeRO-1's shards: DeepSpeed all-reduces" in notes[0] and "num_stages" in notes[1]
    assert "all-reduces" not in trainsim("emit", job("global_batch: 32, zero: 3"), "--to", "deepspeed")[2]
    for words in ("zero: 2", "zero: 1, gradient_dtype: bf16"):
        assert "overlap_dp" not in trainsim("emit", job(f"global_batch: 32, {words}"), "--to", "deepspeed")[2]
    assert "overlap_dp" in trainsim("emit", job("global_batch: 32, zero: 1"), "--to", "deepspeed")[2]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("recompute: full", "configure, and checkpoint for every layer"),
        ("pp: 2, recompute: full, offload: {activations: 1}", "the program calls its checkpointing.configure\n"),
        ("pp: 2, recompute: full", None),
        ("zero: 1", None),
    ],
)
def test_what_deepspeed_leaves_of_recompute_to_the_program_is_said(trainsim, job, settings, said):
    told = trainsim("emit", job(f"global_batch: 32, gradient_dtype: bf16, {settings}"), "--to", "deepspeed")[2]
    assert said in told if said else "checkpointing" not in told


def test_a_share_of_gradients_that_deepspeed_cannot_state_is_said(trainsim, job):
    """Its configuration has none: read back, the plan would be another one without a word."""
    for share, said in ((0.3, True), (1, False), (0, False)):
        plan = f"global_batch: 32, zero: 1, offload: {{optimizer: 1, gradients: {share}}}"
        assert ("offload.gradients" in trainsim("emit", job(plan), "--to", "deepspeed")[2]) is said


@pytest.mark.parametrize("target", ["megatron", "torchtitan"])
def test_a_traced_network_must_be_added_to_a_target_with_networks_of_its_own(trainsim, tmp_path, target):
    TABLE.save(tmp_path / "net.json")
    path = tmp_path / "job.yaml"
    path.write_text(JOB.replace("llama3-8b", "{table: net.json}") % "global_batch: 32, framework: torch")
    said = trainsim("emit", path, "--to", target)[2]
    assert "net, which was traced, must be added to it" in said
    assert "model.norm" not in said


@pytest.mark.parametrize(
    ("target", "settings", "told"),
    [
        ("deepspeed", "compiled: true, attention_kernel: flash-1", "plan.compiled true, plan.attention_kernel flash-1"),
        ("deepspeed", "cross_entropy: fused", "with plan.cross_entropy fused: DeepSpeed's configuration does not"),
        ("torchtitan", "framework: torch, attention_kernel: flash-1", "plan.attention_kernel flash-1: torchtitan has"),
        ("torchtitan", "cross_entropy: in-place", "plan.cross_entropy in-place: torchtitan has autograd"),
        ("torchtitan-0.3", "blocking_sends: true", "plan.blocking_sends true: torchtitan has false"),
    ],
)
def test_kernels_that_a_target_does_not_state_are_told(trainsim, job, target, settings, told):
    said = trainsim("emit", job(f"{PLANS[target]}, {settings}"), "--to", target)[2].splitlines()
    plain = trainsim("emit", job(PLANS[target]), "--to", target)[2]
    assert [told in line for line in said].count(True) == 1
    assert told not in plain


def test_deepspeed_counts_a_batch_over_tensor_parallel_ranks(trainsim, job):
    """So its configuration leaves that count out, which is `train_batch_size` by default."""
    words = "tp: 2, zero: 1, global_batch: 32, sequence_parallel: false"
    config = json.loads(trainsim("emit", job(words), "--to", "deepspeed")[1])
    assert "train_batch_size" not in config
    assert (config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"]) == (1, 4)


def test_notes_say_to_what_megatron_pads_a_vocabulary(trainsim, job):
    assert "vocab" not in trainsim("emit", job("tp: 2, global_batch: 32, zero: 1"), "--to", "megatron")[2]
    for tp, padded in ((1, 50_304), (5, 50_560)):
        path = job(f"tp: {tp}, global_batch: 80, sequence_parallel: false")
        path.write_text(path.read_text().replace("llama3-8b", "gpt2-xl").replace("nodes: 2", "gpus_per_node: 5"))
        said = trainsim("emit", path, "--to", "megatron")[2]
        assert f"predicted with model.vocab 50257: Megatron-LM pads it to {padded}, a multiple of {128 * tp}" in said


def test_notes_say_that_megatrons_layers_are_not_parallel(trainsim, job):
    path = job("tp: 2, global_batch: 32, zero: 1")
    assert "parallel_block" not in trainsim("emit", path, "--to", "megatron")[2]
    path.write_text(path.read_text().replace("llama3-8b", "falcon-40b"))
    assert "predicted with model.parallel_block true" in trainsim("emit", path, "--to", "megatron")[2]


def test_a_plan_that_does_not_fit_is_emitted_and_told_so(trainsim, job):
    path = job("tp: 2, global_batch: 32")
    path.write_text(path.read_text().replace("llama3-8b", "gpt3-175b"))
    code, out, err = trainsim("emit", path, "--to", "megatron")
    assert (code, out.startswith("--num-layers")) == (0, True)
    told = [line.removeprefix("note: ") for line in err.splitlines()]
    assert told[-1].startswith("every device peaks at ")
    assert " and does not fit: over by " in told[-1]
    assert json.loads(trainsim("emit", path, "--to", "megatron", "--json")[1])["notes"] == told


def test_a_plan_is_exported_once(trainsim, job, tmp_path, monkeypatch):
    stems, held = [], EXPORTERS["torch-csv"]

    def write(made, stem):
        stems.append(stem)
        return held.write(made, stem)

    monkeypatch.setitem(EXPORTERS, "torch-csv", replace(held, write=write))
    assert trainsim("emit", job(PLANS["torch-csv"]), "--to", "torch-csv", "--out", tmp_path / "mine.csv")[0] == 0
    assert stems == ["mine"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--to", "jax"), "--to: got 'jax'"),
        (("--to", "megatron", "--out", "job.yaml/x"), "'job.yaml/x'; allowed: a file in an existing folder"),
        (
            ("--to", "megatron", "--out", "job.yaml/a/x"),
            "'job.yaml/a'; allowed: a folder that exists or can be",
        ),
        (("--to", "torchtitan", "--out", "no/such/x"), "plan.zero: got 1"),
        (("--to", "deepspeed"), "plan.schedule: got 'interleaved'; allowed: 1f1b"),
        (("--to", "torchtitan"), "plan.zero: got 1"),
    ],
)
def test_refusals_leave_nothing(trainsim, job, tmp_path, monkeypatch, arguments, message):
    path = job(PLANS["megatron"])
    monkeypatch.chdir(tmp_path)
    code, out, err = trainsim("emit", path, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert [p.name for p in tmp_path.iterdir()] == ["job.yaml"]


def test_the_folder_of_a_file_is_made_and_goes_with_what_fails(trainsim, job, tmp_path):
    path, out = job(PLANS["torchtitan"]), tmp_path / "new" / "er"
    assert trainsim("emit", path, "--to", "torchtitan-0.3", "--out", out / "mine.py")[0] == 2
    assert [p.name for p in tmp_path.iterdir()] == ["job.yaml"]
    assert trainsim("emit", path, "--to", "torchtitan-0.3", "--out", out / "mine.flags")[0] == 0
    assert sorted(p.name for p in out.iterdir()) == ["mine.csv", "mine.flags", "mine.py"]


def test_a_companion_does_not_take_the_plans_place(trainsim, job, tmp_path):
    path = job(PLANS["torchtitan"])
    code, _, err = trainsim("emit", path, "--to", "torchtitan-0.3", "--out", tmp_path / "mine.py")
    assert code == 2
    assert err.startswith("error: --out: got ") and "another suffix than .py" in err
    assert [p.name for p in tmp_path.iterdir()] == ["job.yaml"]


def test_import_makes_a_job(trainsim, job, tmp_path):
    path = job(PLANS["megatron"])
    assert trainsim("emit", path, "--to", "megatron", "--out", tmp_path / "plan.args")[0] == 0
    again = tmp_path / "again.json"
    code, out, err = trainsim("import", tmp_path / "plan.args", "--from", "megatron", "--job", path, "--out", again)
    assert (code, out.strip(), err) == (0, str(again), "")
    first, second = (json.loads(trainsim("simulate", p, "--json")[1]) for p in (path, again))
    assert first["step_time_s"] == second["step_time_s"]
    code, out, err = trainsim("import", tmp_path / "plan.args", "--from", "megatron", "--job", path, "--out", path)
    assert (code, out) == (2, "") and "which is read" in err


def test_import_lists_what_it_does_not_read(trainsim, tmp_path):
    (tmp_path / "a.sh").write_text("--global-batch-size 8 --lr 3\n")
    code, out, err = trainsim("import", tmp_path / "a.sh", "--from", "megatron")
    assert code == 0
    assert json.loads(out)["plan"]["global_batch"] == 8
    assert "not read: --lr=3" in err
    data = json.loads(trainsim("import", tmp_path / "a.sh", "--from", "megatron", "--json")[1])
    assert data["not_read"] == ["--lr=3"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--from", "jax"), "--from: got 'jax'"),
        (("--from", "megatron", "--out", "x.json"), "--job: missing; required with --out"),
        (("--from", "deepspeed"), "settings: got"),
    ],
)
def test_import_refuses(trainsim, tmp_path, arguments, message):
    (tmp_path / "a.sh").write_text("--global-batch-size 8\n")
    code, out, err = trainsim("import", tmp_path / "a.sh", *arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_a_tied_pipeline_that_torchtitan_refuses_is_told_how_to_be_untied(trainsim, tmp_path):
    job = tmp_path / "job.yaml"
    plan = "cluster: {device: h100-sxm-80gb}\nplan: {pp: 2, zero: 3, global_batch: 32}\n"
    job.write_text(f"model: {{base: llama3-8b, tied_embeddings: true}}\n{plan}")
    code, out, err = trainsim("emit", job, "--to", "torchtitan")
    told = "plan.pp: got 2; allowed: 1, or model.tied_embeddings: false (torchtitan ties no embeddings over pipeline"
    assert (code, out) == (2, "") and told in err
    job.write_text(f"model: {{base: llama3-8b, tied_embeddings: false}}\n{plan}")
    assert trainsim("emit", job, "--to", "torchtitan")[0] == 0
