"""Plans taken away."""

import csv
import errno
import json
import os
from io import StringIO
from pathlib import Path

import pytest

import sim
from sim.plans.files import job_data, plain, save_numbered
from sim.specs import Cluster, InputError, Job, Model, Plan, StagePlan
from sim.specs.catalog import models
from sim.specs.files import write_all, write_atomically
from tests.oracle import reference
from tests.traced import table


def step(**given):
    model = models["llama3-8b"]
    plan = Plan(**{"tp": 2, "pp": 2, "global_batch": 32, "zero": 3} | given)
    return sim.simulate(model, Cluster.of("h100-sxm-80gb", nodes=1), plan)


def test_torch_csv_is_the_order():
    found = step()
    rows = list(csv.reader(StringIO(sim.emit(found, "torch-csv"))))
    assert [" ".join(filter(None, row)) for row in rows] == found.timeline.schedule.texts()


def test_saved_files_are_those_emitted(tmp_path):
    numbered = sim.save_emitted(step(), "torchtitan-0.3", tmp_path / "torchtitan-0.3")
    assert [path.name for path in numbered][:2] == ["torchtitan-0.3", "torchtitan-0.3.py"]
    paths = sim.save_emitted(step(), "torchtitan-0.3", tmp_path / "mine.flags")
    assert {path.name: path.read_text() for path in paths} == sim.plans.emitted(step(), "torchtitan-0.3", "mine")


def test_torch_csv_cells_are_those_of_torchs_fixture():
    fixture = reference("pipelines/fixture_pytorch_zb1p_2rank_2stagep_compute.csv").read_text()
    kinds = {c.strip("0123456789") for row in csv.reader(StringIO(fixture)) for c in row if c.strip()}
    ours = {c.strip("0123456789") for row in csv.reader(StringIO(sim.emit(step(), "torch-csv"))) for c in row if c}
    assert ours <= kinds | {"F", "B"}


def torchtitan_settings(found, target="torchtitan"):
    """Return what the Python configuration sets by name, and the flags with a value."""
    files = sim.plans.emitted(found, target)
    pairs = (line.strip().partition(" = ")[::2] for line in files["plan.py"].splitlines() if " = " in line)
    flags = dict(line[2:].split("=") for line in files.get("plan.flags", "").splitlines() if "=" in line)
    return {name.removeprefix("config."): value for name, value in pairs}, flags


def test_torchtitan_settings():
    main, flags = torchtitan_settings(step())
    assert not flags  # the main branch takes none
    assert main["parallelism.tensor_parallel_degree"] == "2"
    assert main["parallelism.data_parallel_shard_degree"] == "2"
    assert main["parallelism.pipeline_parallel_schedule"] == "'1F1B'"
    pieces = main["parallelism.num_pp_microbatches"]
    tokens = int(main["training.num_tokens_per_microbatch_per_dp_rank"]) * int(pieces)
    assert tokens * 2 == int(main["training.num_tokens_per_train_step"])
    released, flags = torchtitan_settings(step(), "torchtitan-0.3")
    assert flags["training.local_batch_size"] == released["training.local_batch_size"] == pieces
    assert flags["training.global_batch_size"] == "32"


@pytest.mark.parametrize(
    ("given", "target", "path"),
    [
        ({"zero": 1}, "torchtitan", "plan.zero"),
        ({}, "jax", "target"),
        ({"sequence_parallel": False}, "torchtitan", "plan.seq"),
    ],
)
def test_refusals(given, target, path):
    with pytest.raises(InputError) as caught:
        sim.emit(step(**given), target)
    assert caught.value.path.startswith(path)


@pytest.mark.parametrize("name", ["gpt3-175b", "llama3.2-1b"])
def test_job_files_round_trip(tmp_path, name):
    model, cluster = models[name], Cluster.of("h100-sxm-80gb", nodes=4, links=sim.Links(latency_s=1e-5))
    plan = Plan(tp=2, pp=2, virtual_stages=2, global_batch=64)
    (path,) = save_numbered([job_data(model, cluster, plan)], tmp_path)
    job = Job.load(path)
    assert job_data(job.model, job.cluster, job.plan) == job_data(model, cluster, plan)
    assert sim.simulate(job.model, job.cluster, job.plan).step_time_s == sim.simulate(model, cluster, plan).step_time_s


def test_interrupted_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "plan.json"
    write_atomically(path, json.dumps({}))
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "\ud800")
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]
    assert path.read_text() == "{}"


@pytest.mark.parametrize("place", ["missing/x.json", ""])
def test_what_cannot_be_written_is_one_input_error(tmp_path, place):
    first = {tmp_path / "first.json": "{}"} if place else {}
    with pytest.raises(sim.InputError) as error:
        write_all(first | {tmp_path / place: "{}"})
    told = error.value
    assert (told.path, told.value, told.allowed) == ("path", str(tmp_path / place), "a file in an existing folder")
    assert list(tmp_path.iterdir()) == []


def test_savers_of_the_facade_refuse_a_missing_folder(tmp_path):
    step = sim.simulate(models["gpt2-xl"], Cluster.of("l4"), Plan(global_batch=8))
    for saver in (sim.save_trace, sim.save_html, sim.save_plan):
        with pytest.raises(sim.InputError, match=r"^path: got .*; allowed: a file in an existing folder$"):
            saver(step, tmp_path / "missing" / "step.json")


def test_an_emitted_plan_gets_its_folder_as_at_the_shell(tmp_path):
    step = sim.simulate(models["gpt2-xl"], Cluster.of("l4"), Plan(global_batch=8))
    (path,) = sim.save_emitted(step, "torchtitan", tmp_path / "new" / "folder" / "plan.py")
    assert path.read_text().startswith('"""')
    with pytest.raises(sim.InputError, match=r"^path: got .*; allowed: a file in an existing folder$"):
        sim.save_emitted(step, "torchtitan", path / "below.py")


SPREAD = {
    "tp": 2, "pp": 2, "cp": 2, "ep": 4, "etp": 2, "fsdp_shard": 2, "zero": 3, "stage_layers": (15, 17),
    "schedule": "zb-h1", "rank_order": "pp-tp-cp-dp", "precision": "fp8", "compiled": True, "sequence_parallel": True,
    "overlap_dp": False, "tp_overlap": False, "blocking_sends": True, "gradient_dtype": "bf16", "recompute": "full",
    "microbatch_group_size": 4, "software_year": 2026.5,
    "offload": sim.Offload(optimizer=0.5, activations=0.25, weights=0.1, gradients=0.75),
}  # fmt: skip


@pytest.mark.slow
def test_a_job_file_keeps_every_field_of_a_plan(tmp_path):
    plan = Plan(global_batch=32, **SPREAD)
    mixed = Cluster.of(groups=[{"device": "h100-sxm-80gb"}, {"device": "h200-sxm-141gb"}])
    job = Job.load(*save_numbered([job_data(models["mixtral-8x7b"], mixed, plan)], tmp_path))
    assert {k: getattr(job.plan, k) for k in SPREAD} == SPREAD
    assert job_data(job.model, job.cluster, job.plan) == job_data(models["mixtral-8x7b"], mixed, plan)
    assert sim.simulate(job.model, job.cluster, job.plan).step_time_s > 0


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"precision": "fp8"}, "precision"),
        ({"rank_order": "tp-cp-pp-dp"}, "rank_order"),
        ({"schedule": "dualpipe"}, "schedule"),
        ({"gradient_dtype": "bf16"}, "gradient_dtype"),
        ({"overlap_dp": False}, "overlap_dp"),
        ({"cp": 2, "zero": 0}, "zero"),
        ({"schedule": "zbv", "pp": 2, "virtual_stages": 2}, "optimizer_barrier"),
        ({"pp": 4, "stage_layers": (11, 0, 11, 10)}, "stage_layers"),
        ({"cp": 2, "fsdp_shard": 1}, "fsdp_shard"),
        ({"offload": sim.Offload(optimizer=0.5)}, "offload"),
    ],
)
def test_torchtitan_refuses_by_name(given, field):
    with pytest.raises(InputError) as caught:
        sim.emit(step(**given), "torchtitan-0.3")
    assert caught.value.path == f"plan.{field}"


def test_torchtitan_says_context_experts_and_copies():
    plan = Plan(tp=2, cp=2, ep=2, global_batch=32, zero=3, fsdp_shard=4, compiled=True)
    model, cluster = models["mixtral-8x7b"], Cluster.of("h100-sxm-80gb", nodes=4)
    found = sim.simulate(model, cluster, plan)
    flags = torchtitan_settings(found, "torchtitan-0.3")[1]
    degrees = ("data_parallel_replicate", "data_parallel_shard", "context_parallel", "expert_parallel")
    assert [flags[f"parallelism.{name}_degree"] for name in degrees] == ["4", "2", "2", "2"]
    switches = sim.emit(found, "torchtitan-0.3").splitlines()
    assert "--compile.enable" in switches and "--training.disable_cuda_graphs" in switches
    with pytest.raises(InputError, match="CPInnerAttention"):
        sim.emit(found, "torchtitan")
    main = sim.emit(sim.simulate(model, cluster, plan.but(cp=1)), "torchtitan")
    assert "from torchtitan.config import CompileConfig\n" in main
    assert "config.compile = CompileConfig()\n" in main


def test_torchtitan_is_told_to_compile_nothing():
    """llama3's registry of 0.3.0 has configurations that compile: what they say must not hold."""
    files = sim.plans.emitted(step(), "torchtitan-0.3")
    assert "--compile.no-enable\n" in files["plan.flags"]
    assert "config.compile = CompileConfig(enable=False)\n" in files["plan.py"]
    assert "config.compile = None\n" in sim.emit(step(), "torchtitan")


@pytest.mark.slow
def test_torchtitan_takes_networks_that_read_tokens():
    found = sim.simulate(Model.from_table(table("resnet-50")), Cluster.of("l4", nodes=1), Plan(global_batch=64))
    with pytest.raises(InputError, match="a network that reads tokens"):
        sim.emit(found, "torchtitan")


def test_unequal_stages_come_back(tmp_path):
    first = StagePlan(layers=20, tp=2, dp=4, zero=1, recompute="full", recompute_layers=5)
    plan = Plan(global_batch=32, stages=(first, StagePlan(layers=12, tp=2, dp=4, zero=3)))
    data = job_data(models["llama3-8b"], Cluster.of("h100-sxm-80gb"), plan)
    (tmp_path / "job.json").write_text(json.dumps(data))
    again = Job.load(tmp_path / "job.json").plan
    assert (again.stages, again.pp) == (plan.stages, 2)
    assert plain(again) == plain(plan)


def test_numbered_plans_on_a_full_disk_are_none_and_the_error_is_the_disks(tmp_path, monkeypatch):
    written = []

    def one_only(draft, content):
        if written:
            raise OSError(errno.ENOSPC, "no room")
        written.append(draft)

    monkeypatch.setattr(Path, "write_bytes", one_only)
    with pytest.raises(OSError, match=r"No space left on device: .*plan-2\.json"):
        save_numbered([{}, {}], tmp_path)
    assert not list(tmp_path.iterdir())
    (tmp_path / "plan-3.json").write_text("an older search's")
    with pytest.raises(OSError, match="No space left"):
        save_numbered([{}, {}], tmp_path)
    assert (tmp_path / "plan-3.json").exists()


def test_links_stay_and_devices_are_not_replaced(tmp_path):
    (tmp_path / "link").symlink_to("file")
    write_atomically(tmp_path / "link", "a")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_text() == "a"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(sim.InputError, match="a file in an existing folder"):
        write_atomically(tmp_path / "pipe", "a")
    assert (tmp_path / "pipe").is_fifo()
