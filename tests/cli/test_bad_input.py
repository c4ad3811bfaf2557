"""Bad input, row by row: exactly this message, exit code 2, nothing on stdout and nothing left behind."""

import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml

from sim.catalog import folder, names
from sim.cli import list as listing
from sim.cli import main
from sim.cli.kinds import KINDS
from sim.cli.schema import SCHEMAS
from sim.plans import EXPORTERS
from sim.schedules import SCHEDULES
from sim.specs.cluster import Links
from sim.specs.fields import InputError, init_names
from sim.specs.hf import READERS
from sim.specs.knobs import KNOBS
from tests.full import full
from tests.oracle import ROOT

TABLE = yaml.safe_load((ROOT / "tests" / "cli" / "bad_input.yaml").read_text("utf-8"))
GOOD = {
    "model": "gpt3-175b",
    "cluster": "{device: h100-sxm-80gb, nodes: 16}",
    "plan": "{tp: 8, pp: 4, global_batch: 1024}",
}
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}
FILES = {
    "ok.yaml": "model: gpt2-xl\ncluster: {device: l4}\nplan: {global_batch: 8}\n",
    "tune.yaml": "model: gpt2-xl\ncluster: {device: l4}\ntune: {global_batch: 8}\n",
    "bare.yaml": "model: gpt2-xl\ncluster: {device: l4}\n",
    "order.csv": "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n",
    "twice.csv": "0F0,0B0\n1F0,1B0,1F0\n",
    "crossed.csv": "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n",
}
LARGE = [
    ("job.yaml", b"x: " + b"a" * 10 * 2**20, "job.yaml: got 'more than 32768 bytes'; allowed: at most 32768 bytes"),
    ("job.json", b" " * (2**20 + 1), "job.json: got 'more than 1048576 bytes'; allowed: at most 1048576 bytes"),
    ("job.json", b"[" * 100_000, "job.json: got 'deeper nesting'; allowed: at most 32 levels"),
    (
        "job.json",
        b"[" + b"0," * 60_000 + b"0]",
        "job.json: got 'more than 50000 values'; allowed: at most 50000 values",
    ),
]


def words():
    """Return what each <...> of the table stands for."""
    lists = {kind: [str(v) for v in values] for kind, (_, values) in listing.choices().items()}
    lists |= {f"{kind} keys": init_names(cls) for kind, cls in KINDS.items()}
    lists["links keys"] = init_names(Links)
    lists |= {kind: names(kind) for kind in ("devices", "models", "profiles")}
    lists |= {"knobs": KNOBS, "schedules": SCHEDULES, "files": SCHEMAS, "model types": sorted(READERS)}
    lists["orders"] = [*SCHEDULES, "custom (with --order)"]
    lists["targets"] = EXPORTERS
    lists["lists"] = [*listing.kinds(), *listing.REGISTRIES, *listing.choices()]
    counts = {f"<count of {name}>": f"{len(values)} names" for name, values in lists.items()}
    return {f"<{name}>": ", ".join(values) for name, values in lists.items()} | counts | {"<folder>": str(Path.cwd())}


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Check that `trainsim` with these arguments says exactly this, and leaves the folder as it was."""
    monkeypatch.chdir(tmp_path)

    def run(arguments, message, told="error: ", stream="err"):
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
        monkeypatch.setattr(sys, "argv", ["trainsim", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        for mark, text in words().items():
            message = message.replace(mark, text)
        out = capsys.readouterr()
        assert getattr(out, stream) == f"{told}{message}\n"
        assert getattr(out, "out" if stream == "err" else "err") == ""
        assert stop.value.code == 2
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before

    return run


def rows(kind):
    return pytest.mark.parametrize("row", TABLE[kind], ids=lambda row: str(row.get("change", row.get("line")))[:60])


def changed(kind, name, changes):
    """Return a shipped file's text with the values at dotted paths replaced."""
    raw = json.loads((folder(kind) / name).read_text("utf-8"))
    for path, value in changes.items():
        *above, last = path.split(".")
        holder = raw
        for key in above:
            holder = holder[int(key)] if isinstance(holder, list) else holder[key]
        holder[last] = value
    return json.dumps(raw)


def job_text(change):
    return "".join(f"{key}: {value}\n" for key, value in (GOOD | change).items())


@rows("job")
def test_job(refused, row):
    Path("job.yaml").write_text(job_text(row["change"]))
    refused(["simulate", "job.yaml"], row["error"])


@rows("file")
def test_file(refused, row):
    text = row["text"]
    Path(row["name"]).write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(["simulate", row["name"]], row["error"])


@pytest.mark.parametrize(("name", "raw", "message"), LARGE, ids=range(len(LARGE)))
def test_large_file(refused, name, raw, message):
    Path(name).write_bytes(raw)
    refused(["simulate", name], message)


@rows("config")
def test_config(refused, row):
    Path("config.json").write_text(json.dumps(LLAMA | row["change"]))
    Path("job.yaml").write_text("model: config.json\ncluster: {device: l4}\nplan: {global_batch: 8}\n")
    refused(["simulate", "job.yaml"], row["error"])


@rows("device")
def test_device(refused, row):
    Path("device.json").write_text(changed("devices", "l4.json", row["change"]))
    refused(["check", "device.json"], row["error"], "problem: ", "out")


@rows("profile")
def test_profile(refused, row):
    Path("prof").mkdir()
    Path("prof/profile.json").write_text(changed("profiles", "l4/profile.json", row["change"]))
    Path("job.yaml").write_text("model: gpt2-xl\ncluster: {device: l4, profile: prof}\nplan: {global_batch: 8}\n")
    refused(["simulate", "job.yaml"], row["error"])


@rows("arguments")
def test_arguments(refused, row):
    for name, text in FILES.items():
        Path(name).write_text(text)
    refused(shlex.split(row["line"]), row["error"])


LOOP, LONG = "Too many levels of symbolic links", "File name too long"


@pytest.mark.parametrize(("name", "why"), [("loop.yaml", LOOP), ("x" * 300, LONG)], ids=["loop", "long"])
@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("simulate {}", "job"),
        ("simulate ok.yaml --html {}", "--html"),
        ("sweep ok.yaml --store {}", "--store"),
        ("report {}", "store"),
        ("validate ok.yaml {}", "runs"),
    ],
)
def test_paths_that_lead_nowhere(trainsim, tmp_path, monkeypatch, name, why, line, option):
    monkeypatch.chdir(tmp_path)
    Path("loop.yaml").symlink_to("loop.yaml")
    Path("ok.yaml").write_text(FILES["ok.yaml"])
    error = InputError(option, name, f"a path that can be followed ({why})")
    assert trainsim(*line.format(name).split()) == (2, "", f"error: {error}\n")
    assert {path.name for path in tmp_path.iterdir()} == {"ok.yaml", "loop.yaml"}


def test_a_profile_whose_name_is_too_long_is_none(refused):
    allowed = "a folder with profile.json or one of <profiles>"
    refused(["validate", "ok.csv", "--profile", "x" * 300], str(InputError("--profile", "x" * 300, allowed)))


@pytest.mark.parametrize("change", [{"model": "loop.yaml"}, {"cluster": "{device: loop.yaml}"}])
@pytest.mark.parametrize("line", ["simulate job.yaml", "sweep job.yaml --store s.db"])
def test_files_of_a_job_that_lead_nowhere(trainsim, monkeypatch, change, line):
    with tempfile.TemporaryDirectory() as place, monkeypatch.context() as there:  # so short that errors tell all of it
        there.chdir(place)
        Path("loop.yaml").symlink_to("loop.yaml")
        axes = {"axes": "{plan.tp: [1]}"} if line.startswith("sweep") else {}
        Path("job.yaml").write_text(job_text(change | axes))
        code, out, err = trainsim(*line.split())
        assert (code, out) == (2, "")
        assert err.startswith("error: ") and "loop.yaml" in err and err.count("\n") == 1
        assert {path.name for path in Path().iterdir()} == {"job.yaml", "loop.yaml"}


@pytest.mark.slow
@pytest.mark.parametrize("row", [TABLE["job"][0], full(TABLE["job"][1]), full(TABLE["arguments"][1])], ids=range(3))
def test_as_a_program(tmp_path, row):
    (tmp_path / "job.yaml").write_text(job_text(row.get("change", {})))
    arguments = shlex.split(row.get("line", "simulate job.yaml"))
    command = [sys.executable, "-m", "sim", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    for mark, text in words().items():
        row["error"] = row["error"].replace(mark, text)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {row['error']}\n")


def test_no_arguments_show_the_help(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["trainsim"])
    with pytest.raises(SystemExit) as stop:
        main()
    out = capsys.readouterr()
    assert stop.value.code == 2
    assert "error" not in out.err
    assert "simulate" in out.out + out.err
