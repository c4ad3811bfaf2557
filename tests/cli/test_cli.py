"""The command line: what it prints, what it leaves, how it fails."""

import json
import re
import subprocess
import sys
from importlib.metadata import entry_points

import pytest
import yaml
from typer.main import get_command

from sim.cli import COMMANDS, JOINED, app, leaves
from sim.cli.output import console
from sim.engine.memory_trace import check, read_trace
from sim.schedules import SCHEDULES
from tests.oracle import ROOT, reference

JOBS = ROOT / "notebooks" / "jobs"


def test_simulate_prints_the_contract(trainsim):
    code, out, _ = trainsim("simulate", JOBS / "gpt3-175b-plan.yaml", "--json")
    data = json.loads(out)
    assert code == 0
    assert set(data) >= {
        "step_time_s", "step_time_interval_s", "mfu", "mfu_convention", "hfu", "tokens_per_s_per_gpu",
        "bubble_fraction", "bubble_over_ideal", "bubble_rank_span", "breakdown_s", "ranks", "fits", "assumptions",
    }  # fmt: skip
    assert set(data["breakdown_s"]) == {
        "compute", "recompute", "tp", "dp", "pp", "cp", "ep", "offload", "straggler", "bubble", "optimizer", "other",
        "learned",
    }  # fmt: skip
    assert sum(data["breakdown_s"].values()) == pytest.approx(data["step_time_s"])
    path = [part["seconds"] for part in data["critical_path"]]
    assert path == sorted(path, reverse=True)
    assert sum(path) == pytest.approx(data["step_time_s"] - data["breakdown_s"]["straggler"])
    assert set(data["ranks"][0]) == {
        "rank", "peak_memory_bytes", "memory_kind", "interval80_bytes", "at_s", "composition_bytes",
        "reserved_bytes", "nvidia_smi_bytes", "margin_bytes", "action",
    }  # fmt: skip
    assert data["nearest_margin_bytes"] == min(rank["margin_bytes"] for rank in data["ranks"])
    assert data["fits_memory_kind"] == "nvidia_smi"
    for rank in data["ranks"]:
        assert rank["peak_memory_bytes"] < rank["reserved_bytes"] < rank["nvidia_smi_bytes"]
        assert set(rank["composition_bytes"]) >= {"optimizer", "communication", "offload"}
    assert len(data["ranks"]) == 4


def test_what_is_stated_and_not_taken_is_said(trainsim, tmp_path):
    model = "{layers: 2, hidden: 64, heads: 4, vocab: 1000, seq: 64}"
    job = f"model: {model}\ncluster: {{device: l4, gpus_per_node: 1}}\nplan: {{global_batch: 8}}\n"
    (tmp_path / "job.yaml").write_text(job + "tune: {global_batch: 4}\n")
    code, out, _ = trainsim("simulate", tmp_path / "job.yaml")
    assert code == 0 and "assumed: plan.global_batch = 4 (tune.global_batch, which wins over 8)\n" in out
    (tmp_path / "job.yaml").write_text(job + "tune: {global_batch: 8}\n")
    assert "wins over" not in trainsim("simulate", tmp_path / "job.yaml")[1]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["simulate", "tune"])
def test_the_text_says_that_a_context_was_cut(trainsim, tmp_path, command):
    config = json.loads((JOBS / "llama3-70b" / "config.json").read_text()) | {"num_hidden_layers": 2}
    (tmp_path / "hf.json").write_text(json.dumps(config | {"max_position_embeddings": 131_072}))
    job = "model: hf.json\ncluster: {device: h100-sxm-80gb}\nplan: {global_batch: 8}\ntune: {global_batch: 8}\n"
    (tmp_path / "job.yaml").write_text(job)
    code, out, _ = trainsim(command, tmp_path / "job.yaml")
    assert code == 0
    assert "assumed: model.seq = 8192 (the config allows 131072; " in out
    assert "assumed: profile h100-sxm-80gb: an estimate scaled from a100-pcie-80gb\n" in out
    assert "more, which --json lists" in out


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["path", "events"])
def test_offload_has_its_own_term(trainsim, tmp_path, engine):
    job = yaml.safe_load((JOBS / "gpt3-175b-plan.yaml").read_text("utf-8"))
    job["plan"]["offload"] = {"optimizer": 0.5, "activations": 0.3}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    data = json.loads(trainsim("simulate", tmp_path / "job.yaml", "--json", "--engine", engine)[1])
    assert data["breakdown_s"]["offload"] > 0
    assert sum(data["breakdown_s"].values()) == pytest.approx(data["step_time_s"])
    assert any("50.4 GB/s in each direction" in note for note in data["assumptions"])


@pytest.mark.slow
def test_commands_are_loaded_when_they_run():
    code = "import sys; from sim.cli import main\ntry: main()\nfinally: print(*sys.modules, file=sys.stderr)"
    for words, absent in (
        (["--version"], {"pydantic", "numpy", "sim.specs", "sympy"}),
        (["--help"], {"pydantic", "numpy", "sim.specs", "sympy"}),
        (["list", "devices"], {"sympy", "numba", "scipy", "pyarrow", "plotly"}),
        (["simulate", str(JOBS / "gpt3-175b-plan.yaml")], {"torch", "numba", "scipy.sparse", "plotly"}),
        (["loading", "predict", str(JOBS / "vit-imagenet-v100.yaml")], {"torch", "calibration.loading"}),
    ):
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
        assert done.stdout and not absent & set(done.stderr.split()), words


def test_the_help_has_the_first_line_of_every_command(trainsim):
    for name, line in [*JOINED.items(), *((name, line) for name, (_, line) in COMMANDS.items())]:
        out = " ".join(trainsim(*name.split(), "--help")[1].split())
        assert line in out and "-completion" not in out, name
    shown = trainsim("--help")[1]
    assert all(f"│ {name} " in shown for name in [*COMMANDS, *JOINED] if " " not in name)
    assert JOINED.keys() == {
        f"{group.removeprefix('trainsim.commands').removeprefix('.')} {entry.name}".strip()
        for group in entry_points().groups
        if group.startswith("trainsim.commands")
        for entry in entry_points(group=group)
    }


def test_every_option_says_what_it_is():
    for name, command in leaves(get_command(app)):
        bare = {option.opts[-1] for option in command.params if not option.help}
        assert not bare, name


def test_files_are_listed_by_what_they_hold(trainsim):
    out = trainsim("list", "files")[1]
    assert "partial(" not in out and "Degrees and memory techniques of one training step." in out


def test_engines_print_the_same_fields(trainsim):
    path, events = (
        json.loads(trainsim("simulate", JOBS / "gpt3-175b-plan.yaml", "--json", "--engine", e)[1])
        for e in ("path", "events")
    )
    assert path.keys() == events.keys()
    assert events["step_time_s"] == pytest.approx(path["step_time_s"], rel=0.01)


def test_simulate_writes_trace_and_report(trainsim, tmp_path):
    trace, html = tmp_path / "step.json", tmp_path / "step.html"
    code, out, _ = trainsim("simulate", JOBS / "gpt3-175b-plan.yaml", "--trace", trace, "--html", html)
    assert code == 0
    assert "a step" in out
    assert json.loads(trace.read_text())["traceEvents"]
    assert html.read_text().lstrip().startswith("<!DOCTYPE html>")


@pytest.mark.slow
def test_simulate_replays_the_allocator(trainsim, tmp_path):
    job = yaml.safe_load((JOBS / "gpt3-175b-plan.yaml").read_text("utf-8"))
    job["plan"]["global_batch"] = 64
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    trace = tmp_path / "trace.jsonl"
    code, out, _ = trainsim("simulate", tmp_path / "job.yaml", "--memory-trace", trace)
    assert code == 0
    lines = out.splitlines()
    assert sum(line.startswith("pipeline rank ") and "nvidia-smi" in line for line in lines) == 4
    data = json.loads(trainsim("simulate", tmp_path / "job.yaml", "--memory-trace", trace, "--json")[1])
    found = data["replay"]
    fullest = max(rank["peak_memory_bytes"] for rank in data["ranks"])
    assert data["memory_kind"] == "allocated" and data["ranks"][data["memory_rank"]]["peak_memory_bytes"] == fullest
    assert found["requested_peak_bytes"] == pytest.approx(fullest, rel=1e-5)
    assert found["requested_peak_bytes"] < found["allocated_peak_bytes"] < found["reserved_peak_bytes"]
    assert f"(x {found['reserved_over_allocated']:.3f})" in out and 0 < found["fragmentation"] < 0.1
    checked = check(read_trace(trace))
    assert checked.equal and checked.events == found["events"]
    code, _, err = trainsim("simulate", tmp_path / "job.yaml", "--memory-trace", tmp_path)
    assert code == 2 and "--memory-trace" in err


@pytest.fixture
def search(tmp_path):
    """A job whose search takes a second."""
    job = tmp_path / "search.yaml"
    job.write_text("model: llama3-8b\ncluster: {device: h100-sxm-80gb, nodes: 2}\ntune: {global_batch: 32}\n")
    return job


@pytest.mark.slow
def test_tune_prints_the_contract_and_leaves_runnable_plans(trainsim, search, tmp_path):
    code, out, _ = trainsim("tune", search, "--json", "--top", 3, "--budget-s", 900, "--out", tmp_path / "out")
    data = json.loads(out)
    assert code == 0
    assert set(data) >= {"plans", "evaluated", "seconds", "gap", "certified", "baseline", "speedup"}
    assert 0 < sum(data["seconds_by_part"].values()) == pytest.approx(data["seconds"])
    assert set(data["plans"][0]) >= {"plan", "step_time_s", "peak_memory_bytes", "p_best", "why"}
    assert data["plans"][0]["memory_kind"] == "allocated" and data["plans"][0]["memory_rank"] == 0
    assert len(data["plans"]) == 3
    ranked_by = [plan["contended_step_time_s"] for plan in data["plans"]]
    assert ranked_by == sorted(ranked_by)
    assert sum(plan["p_best"] for plan in data["plans"]) == pytest.approx(1)
    assert set(data["robustness"]) == {"samples", "expected_regret", "sigmas", "flip"}
    assert data["elasticities"]["matrix_flop_per_s"] < 0 <= data["elasticities"]["link_latency_s"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert len(page) > 1e6 and "trainsim tune job.json --top 3 --budget-s 900 --out out" in page
    again = json.loads(trainsim("simulate", tmp_path / "out" / "plan-1.json", "--json")[1])
    assert again["step_time_s"] == data["plans"][0]["step_time_s"]
    code, _, err = trainsim("tune", tmp_path / "out" / "plan-1.json", "--out", tmp_path / "out")
    assert code == 2 and err.startswith("error: --out: got ")  # plan-1.json would be replaced


@pytest.mark.parametrize("target", ["torch", "megatron"])
def test_what_fits_by_unequal_stages_alone_is_counted(trainsim, tmp_path, target):
    """A table of 160,000 words leaves the first and the last stage no room for two layers of eight."""
    job = tmp_path / "job.yaml"
    job.write_text(
        "model: {name: wide, layers: 8, hidden: 4096, heads: 32, seq: 512, vocab: 160000}\n"
        "cluster: {device: l4, nodes: 1, gpus_per_node: 4}\n"
        f"tune: {{global_batch: 16, target: {target}, knobs: {{tp: 1, pp: 4, virtual_stages: 1, micro_batch: 1}}}}\n"
    )
    code, out, _ = trainsim("tune", job)
    assert code == 0
    assert re.search(r" 0 of equal stages fit, [1-9]\d* of unequal stages among the best;", " ".join(out.split()))


@pytest.mark.slow
def test_tune_table(trainsim, search, tmp_path):
    code, out, _ = trainsim("tune", search, "--top", 2, "--out", tmp_path / "out")
    assert code == 0
    assert f"plans: {tmp_path}/out/plan-1.json to plan-2.json, best first" in out
    assert "no problem found in this plan file\n" in trainsim("check", tmp_path / "out" / "plan-1.json")[1]
    words = " ".join(out.split())
    assert "the textbook plan" in words
    told = "P(best)", "sampled calibrations", "Step time with 10 % better hardware"
    assert all(text in words for text in told)
    assert "certified" in out


def test_tune_counts_the_devices_of_every_group_apart(trainsim, tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text(
        "model: {name: two, layers: 4, hidden: 512, heads: 8, vocab: 1024, seq: 256}\n"
        "cluster: {groups: [{device: l4, gpus_per_node: 2}, {device: t4, gpus_per_node: 2}]}\n"
        "tune: {global_batch: 16, knobs: {unequal_stages: false}}\n"
    )
    code, out, _ = trainsim("tune", job, "--top", 2)
    assert code == 0 and "two on 2 x l4 + 2 x t4, global batch 16" in out


def test_a_plan_that_does_not_fit_is_told_what_would(trainsim, tmp_path):
    def told(plan):
        (tmp_path / "job.yaml").write_text(f"model: llama3-8b\ncluster: {{device: h100-sxm-80gb}}\nplan: {{{plan}}}\n")
        return " ".join(trainsim("simulate", tmp_path / "job.yaml")[1].split())

    near, far = told("global_batch: 64, zero: 2, micro_batch: 4"), told("global_batch: 64, zero: 0, micro_batch: 8")
    assert "and does not fit" in near and "and does not fit" in far
    assert re.search(r"Fits with one change: recompute none → full \(\+\d\d\.\d % time\)\.", near)
    assert re.search(r"No single change makes it fit \(.* saves \d+ GB\); trainsim tune searches all plans\.", far)
    fits = told("global_batch: 64, zero: 3, micro_batch: 1")
    assert "fits: yes" in fits and "change" not in fits


@pytest.mark.parametrize("width", [40, 60])
def test_a_line_ends_in_no_number_and_before_no_percent_sign(trainsim, monkeypatch, width):
    monkeypatch.setattr(console, "width", width)
    out = trainsim("decentralized", "simulate", "--controller", "hill_climbing", "--skew", "0.75", "--steps", 15_000)[1]
    words = out.partition("Assumed:")[0]
    assert "15\u2009000" in words and "\u00a0%" in words and max(map(len, out.splitlines())) <= width
    assert not re.search(r"^(000\b|%)", words, re.MULTILINE)


def test_schedule(trainsim):
    code, out, _ = trainsim(
        "schedule", "1f1b", "--ranks", 2, "--microbatches", 2, "--durations", "F=0.5,comm=0.25", "--json"
    )
    data = json.loads(out)
    assert code == 0
    assert data["actions"] == ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]
    assert data["makespan"] == 8.0
    assert data["peak_in_flight"] == [2, 1]


def test_the_text_of_a_schedule_begins_with_its_summary(trainsim):
    code, out, _ = trainsim("schedule", "1f1b", "--ranks", 4, "--microbatches", 256)
    first, second, *rest = out.splitlines()
    assert code == 0
    assert first.startswith("makespan 777, bubble 1.2\u00a0% over ideal")
    assert second.startswith("in flight at most, rank by rank: 4 3 2 1 ")
    assert len(rest) < 30 and out.count(" more, which --json lists") == 4
    shown = rest[0].split()[2:]
    same = trainsim("schedule", "gpipe", "--ranks", 3, "--microbatches", 2)[1]
    assert shown[:3] == ["0F0", "0F1", "0F2"] and "rank by rank: 2x3 " in same and "more" not in same


def test_schedule_variants(trainsim):
    def first_rank(*extra):
        out = trainsim("schedule", "interleaved", "--ranks", 2, "--microbatches", 6, "--chunks", 2, "--json", *extra)[1]
        return json.loads(out)["actions"][0]

    assert first_rank("--variant", "torch") == first_rank("--group-size", 2)
    assert first_rank("--group-size", 3) != first_rank()


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule_of_every_kind(trainsim, name):
    """Chunks and variant by the kind, on four ranks with eight microbatches."""
    code, out, _ = trainsim("schedule", name, "--ranks", 4, "--microbatches", 8, "--json")
    data = json.loads(out)
    assert code == 0
    assert data["name"] == name
    assert data["pipelines"] == SCHEDULES[name].copies
    assert len(data["actions"]) == len(data["peak_in_flight"]) == len(data["weight_versions"]) == 4
    versions = {"pipedream": [4, 3, 2, 1], "2bw": [2] * 4}.get(name, [1] * 4)
    assert data["weight_versions"] == versions
    assert data["staleness"] == [n - 1 for n in versions]


def test_schedule_of_replicated_stages(trainsim):
    """15-1 at stage times 15 : 1 never waits: a microbatch a tick once under way."""
    sizes = ("--ranks", 16, "--microbatches", 240, "--replicas", "15,1", "--durations", "F=1,I=1,W=0")
    code, out, _ = trainsim("schedule", "pipedream", *sizes, "--json")
    data = json.loads(out)
    assert code == 0
    assert len(data["actions"]) == 16
    assert data["actions"][15].split()[:3] == ["1F0", "1B0", "1F1"]
    assert data["steady_per_microbatch"] == pytest.approx(2)  # the stage on one rank sets the pace
    synced = trainsim("schedule", "pipedream", "--ranks", 4, "--microbatches", 9, "--vertical-sync", "--json")[1]
    assert json.loads(synced)["weight_versions"] == [4] * 4


def test_schedule_of_a_file(trainsim):
    path = reference("pipelines/fixture_pytorch_zb1p_2rank_2stagep_compute.csv")
    code, out, _ = trainsim("schedule", "custom", "--file", path, "--ranks", 2, "--durations", "F=2,I=2,W=2", "--json")
    same = ("interleaved-zb", "--ranks", 2, "--microbatches", 8)
    ours = trainsim("schedule", *same, "--durations", "F=2,I=2,W=2", "--json")
    assert code == 0
    assert json.loads(out) == json.loads(ours[1]) | {"name": "custom"}


def test_schedule_searches_under_a_memory_limit(trainsim):
    def found(*extra):
        arguments = ("schedule", "zb-2p", "--ranks", 4, "--microbatches", 16, "--durations", "F=10,I=12,W=8,comm=0.1")
        return json.loads(trainsim(*arguments, "--json", *extra)[1])

    usual, little, paper = found(), found("--memory-limit", 4), found("--input-frees", 0.5)
    assert usual["peak_in_flight"] == [8, 8, 8, 8]
    assert little["peak_in_flight"] == [4, 4, 4, 4]
    assert paper["bubble_rank_span"] < usual["bubble_rank_span"] < little["bubble_rank_span"]
    assert "0W0" in usual["actions"][0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("simulate", "none.yaml"), "none.yaml: got 'no such file"),
        (("schedule", "zigzag", "--ranks", 2, "--microbatches", 2), "schedule: got 'zigzag'; allowed: one of gpipe"),
        (("schedule", "1f1b", "--ranks", 2, "--microbatches", 2, "--durations", "F=x"), "durations: got 'F=x'"),
        (("schedule", "1f1b", "--ranks", 2, "--microbatches", 2, "--durations", "Q=1"), "durations: got 'Q=1'"),
        (("schedule", "1f1b", "--ranks", 2, "--microbatches", 2, "--durations", "F=1,F=2"), "comm= once"),
        (("schedule", "1f1b", "--ranks", 2, "--microbatches", 2, "--variant", "mine"), "--variant: got 'mine'"),
        (("schedule", "1f1b", "--ranks", 2, "--microbatches", 2, "--memory-limit", 3), "--memory-limit: got 3.0"),
        (("schedule", "zb-1p", "--ranks", 2, "--microbatches", 2, "--memory-limit", 0.5), "--memory-limit: got 0.5"),
        (("schedule", "1f1b", "--ranks", 2, "--microbatches", 2, "--input-frees", 0.5), "--input-frees: got 0.5"),
        (("schedule", "1f1b", "--ranks", 0, "--microbatches", 2), "--ranks"),
        (("lab", "--folder", "nowhere"), "--folder: got 'nowhere'"),
        (("simulate", JOBS / "llama3-70b-64xh100.yaml"), "plan: missing; required"),
        (("simulate", JOBS / "gpt3-175b-plan.yaml", "--engine", "magic"), "--engine"),
    ],
)
def test_bad_input_exits_with_2(trainsim, arguments, message):
    code, out, err = trainsim(*arguments)
    assert code == 2
    assert message in err
    assert out == ""


BAD_TARGETS = [
    ("simulate", JOBS / "gpt3-175b-plan.yaml", "--html", "no/such/x.html"),
    ("simulate", JOBS / "gpt3-175b-plan.yaml", "--trace", "."),
    ("simulate", JOBS / "gpt3-175b-plan.yaml", "--html", JOBS / "gpt3-175b-plan.yaml"),
    ("tune", JOBS / "llama3-70b-64xh100.yaml", "--out", JOBS / "gpt3-175b-plan.yaml"),
    ("tune", JOBS / "llama3-70b-64xh100.yaml", "--out", JOBS / "gpt3-175b-plan.yaml" / "x"),
]


@pytest.mark.parametrize("arguments", BAD_TARGETS, ids=lambda a: " ".join(str(x) for x in a[2:]))
def test_bad_targets_are_refused_before_any_work(trainsim, arguments):
    code, out, err = trainsim(*arguments)
    assert code == 2
    assert err.startswith(f"error: {arguments[2]}: got ")
    assert err.count("\n") == 1
    assert out == ""


def test_durations_may_have_exponents(trainsim):
    made = [
        trainsim("schedule", "1f1b", "--ranks", 2, "--microbatches", 2, "--durations", durations, "--json")
        for durations in ("F=1e-3,I=2.5E-3,W=1e+0", "F=0.001,I=0.0025,W=1")
    ]
    assert made[0] == made[1] and made[0][0] == 0


@pytest.mark.parametrize(
    "durations", ["F=1e400", "F=1e99999999", "F=-1", "F=1e-400", "F=0", "F=123456789012.123456789012"]
)
def test_durations_out_of_range(trainsim, durations):
    code, _, err = trainsim("schedule", "1f1b", "--ranks", 2, "--microbatches", 2, "--durations", durations)
    assert code == 2
    assert "durations" in err


@pytest.mark.slow
def test_markup_in_a_name_is_text(trainsim, tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text(
        'model: {name: "x[/bold]y", layers: 4, hidden: 512, heads: 8}\n'
        "cluster: {device: h100-sxm-80gb}\ntune: {global_batch: 8}\n"
    )
    code, out, _ = trainsim("tune", job, "--top", 1)
    assert code == 0
    assert "x[/bold]y" in out


def test_version(trainsim):
    assert trainsim("--version")[1].startswith("trainsim ")


@pytest.mark.slow
def test_failed_report_leaves_nothing(trainsim, tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text("model: gpt3-175b\ncluster: {device: l4}\ntune: {global_batch: 8}\n")
    code, _, err = trainsim("tune", job, "--out", tmp_path / "out")
    assert code == 2
    assert "smallest plan" in err
    assert not (tmp_path / "out").exists()


def test_help_names_every_command():
    done = subprocess.run([sys.executable, "-m", "sim", "--help"], capture_output=True, text=True, check=True)
    assert all(name in done.stdout for name in ("simulate", "tune", "schedule", "calibrate", "lab"))
