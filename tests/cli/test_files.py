"""The commands about files: list, check, schema."""

import errno
import json
from dataclasses import asdict
from pathlib import Path

import jsonschema
import pytest

import sim.catalog
from sim.catalog import folder, kinds, names
from sim.cli import list as listing
from sim.cli.check import checked_file
from sim.cli.kinds import KINDS, recognised
from sim.cli.schema import SCHEMAS
from sim.costs.run_level import run_level
from sim.schedules import SCHEDULES
from tests.oracle import ROOT

JOBS = ROOT / "notebooks" / "jobs"
BAD_JOB = """
model: {layers: 0, hidden: 8, heads: 2, norm: batch}
cluster: {device: h1000, nodes: -1}
plan: {tp: 0, zero: 9, wings: 2}
tune: {global_batch: 8, objective: speed}
prise: 3
"""
BAD_TUNE = "model: gpt2-xl\ncluster: {device: l4}\ntune: {global_batch: 8, knobs: {tp: [0], gpus: [1], pp: [2, x]}}\n"
BAD_PLAN = "model: gpt3-175b\ncluster: {device: l4, nodes: 2}\nplan: {tp: 7, pp: 5, global_batch: 9, micro_batch: 2}\n"


def test_list_holds_everything_by_kind(trainsim):
    code, out, _ = trainsim("list", "--json")
    data = json.loads(out)
    assert code == 0
    assert set(data) >= {"models", "devices", "profiles", "schedules", "engines", "targets", "plan.recompute"}
    for kind in kinds():
        assert [entry["name"] for entry in data[kind]] == names(kind)
    assert [entry["name"] for entry in data["schedules"]] == list(SCHEDULES)
    for kind in [*kinds(), *listing.REGISTRIES]:
        for entry in data[kind]:
            assert entry["description"], (kind, entry)
            assert "\n" not in entry["description"]


def test_list_states_the_facts(trainsim):
    model = next(m for m in json.loads(trainsim("list", "models", "--json")[1])["models"] if m["name"] == "gpt3-175b")
    assert (model["layers"], model["hidden"], model["heads"]) == (96, 12288, 96)
    told = trainsim("list", "models")[1]
    assert "1.01 trillion parameters, 128 layers" in told and "19.8 million parameters, 2 layers" in told
    assert f"{model['parameters'] / 1e9:.0f}" == "175"
    assert "12288" in trainsim("list", "models")[1]
    device = next(d for d in json.loads(trainsim("list", "devices", "--json")[1])["devices"] if d["name"] == "l4")
    assert device["memory_bytes"] > 2e10
    assert "8-bit tensor units, 1.03125 bytes" in trainsim("list", "precisions")[1]
    assert "loss = 1.69 + 406.4 / N^0.34 + 410.7 / D^0.28" in trainsim("list", "scaling")[1]
    (level,) = json.loads(trainsim("list", "run-level", "--json")[1])["run-level"]
    assert level["parameters"] == asdict(run_level().parameters)
    assert run_level().source in level["description"]
    assert "raises" not in trainsim("list", "engines")[1]
    profiles = trainsim("list", "profiles")[1]
    assert "estimate, 20" in profiles
    assert "measured, 20" in profiles


def test_a_new_kind_of_entry_appears_by_itself(trainsim, tmp_path, monkeypatch):
    (tmp_path / "toys").mkdir()
    (tmp_path / "toys" / "top.json").write_text('{"name": "top", "spins": 3, "source": "x"}')
    (tmp_path / "toys" / "kite.json").write_text('{"title": "A kite", "tail": 1}')
    monkeypatch.setattr(sim.catalog, "files", lambda _: tmp_path)
    assert json.loads(trainsim("list", "toys", "--json")[1]) == {
        "toys": [{"name": "kite", "description": "A kite"}, {"name": "top", "description": "spins 3"}]
    }


def test_check_finds_every_problem(trainsim, tmp_path):
    (tmp_path / "job.yaml").write_text(BAD_JOB)
    code, out, err = trainsim("check", tmp_path / "job.yaml", "--json")
    problems = {p["path"]: p for p in json.loads(out)["problems"]}
    assert (code, err) == (2, "")
    assert set(problems) == {
        "prise", "model.layers", "model.norm", "cluster.nodes", "plan.tp", "plan.zero", "plan.wings", "tune.objective",
    }  # fmt: skip
    assert problems["plan.zero"] == {"path": "plan.zero", "value": 9, "allowed": "a whole number from 0 to 3"}


@pytest.mark.parametrize("table", [JOBS.parent / "data" / "ptdp.csv", "job,step_time_s\na.yaml,3\n"])
def test_check_names_validate_for_tables_of_runs(tmp_path, table):
    if isinstance(table, str):
        (tmp_path / "own.csv").write_text(table)
        table = tmp_path / "own.csv"
    ((problem,), *_) = checked_file(table)[1:]
    assert "got 'a table of measured runs'; allowed: a job, plan" in str(problem)
    assert f"`trainsim validate {table}`" in problem.allowed


def test_check_finds_every_knob_and_every_broken_rule(tmp_path):
    def paths(text):
        (tmp_path / "job.yaml").write_text(text)
        return [problem.path for problem in checked_file(tmp_path / "job.yaml")[1]]

    assert paths(BAD_TUNE) == ["tune.knobs.tp", "tune.knobs.gpus", "tune.knobs.pp"]
    (tmp_path / "job.yaml").write_text(BAD_TUNE.replace("knobs: {tp: [0],", "tp: [1], knobs: {"))
    beside = checked_file(tmp_path / "job.yaml")[1]
    assert str(beside[0]) == "tune.tp: got [1]; allowed: as tune.knobs.tp: every knob stands under knobs"
    found = ["plan.tp"] * 3 + ["plan.pp", "plan.pp", "plan.virtual_stages", "plan.micro_batch", "plan.tp"]
    assert paths(BAD_PLAN) == found


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(JOBS.glob("*.yaml")), ids=lambda path: path.name)
def test_shipped_jobs_have_no_problem(trainsim, path):
    code, out, _ = trainsim("check", path, "--json")
    data = json.loads(out)
    assert (code, data["kind"], data["problems"], data["warnings"]) == (0, "job", [], [])
    assert any("cluster.gpus_per_node = " in text for text in data["assumptions"])


def test_a_plan_that_does_not_fit_is_a_warning(trainsim, tmp_path):
    (tmp_path / "job.yaml").write_text("model: gpt3-175b\ncluster: {device: l4}\nplan: {global_batch: 8}\n")
    code, out, _ = trainsim("check", tmp_path / "job.yaml")
    assert code == 0
    assert "no problem found" in out
    assert "warning: plan does not fit: " in out


def test_check_finds_what_failures_leave_nothing_of(tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text(
        "model: gpt2\ncluster: {device: h100-sxm-80gb}\nplan: {global_batch: 8}\n"
        "training: {steps: 9}\ncheckpointing: {failures: {node_mtbf_s: 1}}\n"
    )
    assert [problem.path for problem in checked_file(job)[1]] == ["checkpointing"]


def test_a_job_of_several_devices_is_checked_with_the_profile_of_each(tmp_path):
    groups = "[{device: h100-sxm-80gb}, {device: a100-sxm-80gb%s}]"
    text = "model: llama3-8b\ncluster: {groups: %s}\nplan: {tp: 8, pp: 2, global_batch: 64}\n"
    (tmp_path / "job.yaml").write_text(text % (groups % ""))
    kind, problems, _, assumed = checked_file(tmp_path / "job.yaml")
    assert (kind, problems) == ("job", [])
    assert any(line.startswith("a100-sxm-80gb: ") for line in assumed)
    (tmp_path / "job.yaml").write_text(text % (groups % ", profile: none"))
    assert [p.value for p in checked_file(tmp_path / "job.yaml")[1]] == ["none"]


def test_a_new_device_file_and_a_job_with_it_have_no_problem(trainsim, tmp_path):
    assert trainsim("device", "new", "mine", "--out", tmp_path / "mine.yaml")[0] == 0
    (tmp_path / "job.yaml").write_text(
        "model: llama3-8b\ncluster: {device: mine.yaml}\nplan: {tp: 8, global_batch: 8}\n"
    )
    assert checked_file(tmp_path / "mine.yaml")[:2] == ("device", [])
    assert checked_file(tmp_path / "job.yaml")[:2] == ("job", [])


def test_every_problem_of_a_device_file_is_told(trainsim, tmp_path):
    assert trainsim("device", "new", "mine", "--out", tmp_path / "mine.yaml")[0] == 0
    text = (tmp_path / "mine.yaml").read_text().replace("sms: 132", "sms: -1").replace("gpus_per_node: 8", "nodes: 8")
    (tmp_path / "mine.yaml").write_text(text)
    assert [p.path for p in checked_file(tmp_path / "mine.yaml")[1]] == ["sms", "nodes"]


def test_a_missing_or_broken_profile_is_a_problem(tmp_path):
    (tmp_path / "job.yaml").write_text("model: gpt2-xl\ncluster: {device: l4, profile: none}\n")
    assert [p.path for p in checked_file(tmp_path / "job.yaml")[1]] == ["cluster.profile"]


KNOWN = [
    ("config", JOBS / "llama3-70b" / "config.json"),
    ("device", Path(str(folder("devices") / "l4.json"))),
    ("profile", Path(str(folder("profiles") / "l4" / "profile.json"))),
    ("job", JOBS / "gpt3-175b-plan.yaml"),
]


@pytest.mark.parametrize(("kind", "path"), KNOWN, ids=[kind for kind, _ in KNOWN])
def test_files_are_recognised_by_content(tmp_path, kind, path):
    renamed = tmp_path / f"any{path.suffix}"
    renamed.write_bytes(path.read_bytes())
    assert checked_file(renamed)[:2] == (kind, [])


def test_sections_are_recognised_alone():
    assert recognised({"layers": 2, "hidden": 8, "heads": 2, "ffn": 32}) == "model"
    assert recognised({"tp": 8, "pp": 4, "global_batch": 64}) == "plan"
    assert recognised({"device": "l4", "nodes": 2}) == "cluster"
    assert recognised({"nothing": "known"}) == "job"


def test_every_problem_of_a_profile_is_told(tmp_path):
    raw = json.loads(KNOWN[2][1].read_text())
    raw |= {"kernel_sigma_log": -1, "estimate": "no", "memory": 3, "toy": 1}
    (tmp_path / "p.json").write_text(json.dumps(raw))
    kind, problems, _, _ = checked_file(tmp_path / "p.json")
    assert kind == "profile"
    assert {p.path for p in problems} == {"kernel_sigma_log", "estimate", "memory", "toy"}


def test_values_are_shown_as_json_holds_them(trainsim, tmp_path):
    (tmp_path / "job.yaml").write_text(
        "model: {layers: .nan, hidden: [1], heads: 99999999999999999999, name: %s}\n" % ("x" * 900)
    )
    problems = json.loads(trainsim("check", tmp_path / "job.yaml", "--json")[1])["problems"]
    values = {p["path"]: p["value"] for p in problems}
    assert values["model.layers"] == "nan"
    assert values["model.hidden"] == "[1]"
    assert values["model.heads"] == "99999999999999999999"
    assert len(values["model.name"]) == 400


def test_schema_is_printed_and_written(trainsim, tmp_path):
    code, out, _ = trainsim("schema", "job")
    assert code == 0
    jsonschema.Draft202012Validator.check_schema(json.loads(out))
    assert set(json.loads(trainsim("schema")[1])) == set(SCHEMAS) == {*KINDS, "plan-file"}
    code, out, _ = trainsim("schema", "--out", tmp_path / "schemas")
    assert code == 0
    assert {p.name for p in (tmp_path / "schemas").iterdir()} == {f"{kind}.schema.json" for kind in SCHEMAS}
    assert json.loads((tmp_path / "schemas" / "plan.schema.json").read_text())["title"] == "Plan"


@pytest.mark.parametrize("given", ["schema", "tune"])
def test_a_full_disk_leaves_neither_files_nor_a_new_folder(trainsim, tmp_path, monkeypatch, given):
    job = tmp_path / "job.json"
    model = {"layers": 4, "hidden": 256, "heads": 4, "vocab": 1000, "seq": 128}
    cluster = {"device": "l4", "gpus_per_node": 2}
    job.write_text(json.dumps({"model": model, "cluster": cluster, "tune": {"global_batch": 4}}))
    written = []

    def one_only(draft, content):
        if written:
            raise OSError(errno.ENOSPC, "no room")
        written.append(draft)
        draft.touch()

    monkeypatch.setattr(Path, "write_bytes", one_only)
    code, _, err = trainsim(given, *([job] if given == "tune" else []), "--out", tmp_path / "new" / "deep")
    assert (code, written != []) == (1, True)
    assert err.strip().startswith("stopped: No space left on device: ")
    assert list(tmp_path.iterdir()) == [job]


def test_a_full_disk_leaves_all_files_of_a_simulation_or_none(trainsim, tmp_path, monkeypatch):
    targets = {"--trace": "trace.json", "--memory-trace": "memory.jsonl", "--html": "report.html"}
    options = [each for option, name in targets.items() for each in (option, tmp_path / name)]
    given = ["simulate", JOBS / "gpt3-175b-plan.yaml", *options]
    write, drafts = Path.write_bytes, []

    def two_only(draft, content):
        if len(drafts) == 2:
            raise OSError(errno.ENOSPC, "no room")
        drafts.append(draft)
        return write(draft, content)

    with monkeypatch.context() as full:
        full.setattr(Path, "write_bytes", two_only)
        assert trainsim(*given)[0] == 1
    assert len(drafts) == 2 and not [*tmp_path.iterdir()]
    assert trainsim(*given)[0] == 0
    assert {one.name for one in tmp_path.iterdir()} == {*targets.values()}


@pytest.mark.slow
def test_compare_goes_on_where_it_stopped(trainsim, tmp_path):
    job, table = tmp_path / "small.json", tmp_path / "table.csv"
    model = {"layers": 8, "hidden": 1024, "heads": 8, "vocab": 50304, "seq": 1024, "attention": "flash"}
    cluster = {"device": "l4", "gpus_per_node": 2}
    job.write_text(json.dumps({"model": model, "cluster": cluster, "tune": {"global_batch": 8}}))
    code, out, _ = trainsim("compare", job, "--out", table, "--json")
    rows = json.loads(out)["rows"]
    assert code == 0 and {row["way"] for row in rows} >= {"megatron", "greedy", "tuned"}
    lines = table.read_text().splitlines()
    table.write_text("\n".join(lines[:-1]) + "\n")
    code, out, err = trainsim("compare", job, "--out", table)
    assert code == 0 and "no plan" not in out and err.split() == ["small:", "tuned"]
    assert len(table.read_text().splitlines()) == len(lines)
    assert trainsim("compare", job, "--out", tmp_path)[0] == 2
    code, out, err = trainsim("compare", job, tmp_path / "other" / "small.json")
    assert code == 2 and not out and "files of different names" in err  # each would be told the other's plans
    job.write_text(json.dumps({"model": model, "cluster": cluster, "tune": {"global_batch": 16}}))
    code, out, err = trainsim("compare", job, "--out", table)
    assert code == 2 and not out and "got 'small with global_batch 8 on 2 l4'; allowed: another file" in err
    job.write_text(json.dumps({"model": model | {"layers": 16}, "cluster": cluster, "tune": {"global_batch": 8}}))
    code, out, err = trainsim("compare", job, "--out", table)
    assert code == 2 and not out and "--out: got 'small, megatron: " in err and "allowed: another file: it takes" in err
    job.write_text(json.dumps({"model": model, "cluster": cluster}))
    code, _, err = trainsim("compare", job)
    assert code == 2 and "tune" in err
