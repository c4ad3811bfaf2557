"""`trainsim trace`: a file and a function in it become a table."""

import json
import logging
import re
import tomllib
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from calibration.tracing.cli import app
from sim.cli.check import checked_file
from sim.engine.step import simulate
from sim.report.html import save_html
from sim.specs import Job
from sim.specs.fields import InputError
from sim.specs.table import LayerTable

FACTORY = """
import torch
from parts import make

def small():
    return make(64), torch.zeros(1, 8, dtype=torch.long)

def huge():
    return make(2**20), lambda batch: torch.zeros(batch, 8, dtype=torch.long)

def wrong():
    return 1
"""
PARTS = """
from torch import nn

def make(width):
    return nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, width), nn.Linear(width, width), nn.Linear(width, 8))
"""


@pytest.fixture
def source(tmp_path):
    (tmp_path / "model.py").write_text(FACTORY)
    (tmp_path / "parts.py").write_text(PARTS)
    return tmp_path / "model.py"


def invoke(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)


def test_writes_a_table_and_prints_one_object(source, tmp_path):
    out = tmp_path / "t.json"
    result = invoke(f"{source}:small", "--out", out, "--dtype", "float16", "--json")
    printed, table = json.loads(result.stdout), LayerTable.load(out)
    assert table.dtype == printed["dtype"] == "float16"
    assert table.parameters == printed["parameters"] == 80 + 8 * 64 + 64 + 64 * 64 + 64 + 64 * 8 + 8
    assert [layer.name for layer in table.layers] == ["0", "1", "2", "3"]
    assert printed["seq"] == 8
    assert printed["flop_per_sample"]["forward"] == 2 * 8 * (8 * 64 + 64 * 64 + 64 * 8)


def test_builds_networks_larger_than_memory(source, tmp_path):
    result = invoke(f"{source}:huge", "--out", tmp_path / "t.json", "--layers", "2", "--name", "[/x] :x:")
    assert LayerTable.load(tmp_path / "t.json").parameters > 2**40
    assert "[/x] :x:" in result.stdout


@pytest.mark.slow
def test_a_job_file_takes_the_table(source, tmp_path):
    invoke(f"{source}:small", "--out", tmp_path / "t.json", "--name", "mine")
    job = {"model": {"table": "t.json"}, "cluster": {"device": "l4", "nodes": 1}, "plan": {"global_batch": 8}}
    (tmp_path / "job.json").write_text(json.dumps(job))
    assert checked_file(tmp_path / "job.json")[:2] == ("job", [])
    assert checked_file(tmp_path / "t.json")[:2] == ("table", [])
    loaded = Job.load(tmp_path / "job.json")
    step = simulate(loaded.model, loaded.cluster, loaded.plan)
    assert (step.model.name, step.model.layers, step.tokens_per_step) == ("mine", 4, 8 * 8)
    save_html(step, tmp_path / "report.html")
    assert "sequence 8" in (tmp_path / "report.html").read_text()


def test_refuses_an_empty_name(source, tmp_path):
    with pytest.raises(InputError, match="1 to 100 characters"):
        invoke(f"{source}:small", "--out", tmp_path / "t.json", "--name", "")


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("model.py:none", "one of make, small, huge, wrong"),
        ("model.py", "colon"),
        ("no.py:small", "existing Python file"),
    ],
)
def test_refusals(source, tmp_path, name, match):
    with pytest.raises(InputError, match=match):
        invoke(tmp_path / name, "--out", tmp_path / "t.json")
    assert not (tmp_path / "t.json").exists()


@pytest.mark.parametrize(
    ("lines", "match"),
    [
        ("raise RuntimeError('boom')", r"model.py:f \(line 1\): got 'RuntimeError: boom'; allowed: a file that can be"),
        ("raise SystemExit(0)", r"line 1\): got 'SystemExit: 0'"),
        ("def f(:", r"SyntaxError: invalid syntax"),
        ("def f():\n    exit(3)", r"line 2\): got 'SystemExit: 3'; allowed: a function that runs on fake tensors"),
        (
            "from torch import nn, zeros\n"
            "class M(nn.Linear):\n    def forward(self, x):\n        return super().forward(x.view(5, 3))\n"
            "def f():\n    return M(3, 3), zeros(1, 3)",
            r"line 4\): got \"RuntimeError: shape '\[5, 3\]' is invalid for input of size .*; allowed: a module that",
        ),
    ],
)
def test_what_fails_in_the_users_file_is_one_error_with_its_line(tmp_path, lines, match):
    (tmp_path / "model.py").write_text(lines + "\n")
    with pytest.raises(InputError, match=match):
        invoke(f"{tmp_path / 'model.py'}:f", "--out", tmp_path / "t.json")
    assert not (tmp_path / "t.json").exists()


def test_what_fails_on_fake_tensors_is_told_once(tmp_path, caplog):
    """torch logs a traceback of its own."""
    logging.getLogger("torch._subclasses.fake_tensor").addHandler(caplog.handler)
    (tmp_path / "model.py").write_text("from torch import nn, zeros\ndef f():\n    return nn.Linear(3, 3), zeros(3)\n")
    with pytest.raises(InputError, match="same reduction dim"):
        invoke(f"{tmp_path / 'model.py'}:f", "--out", tmp_path / "t.json")
    assert not caplog.records


def test_shows_what_small_layers_have(source, tmp_path):
    """They stood in millions and 10^9, with three decimals."""
    shown = invoke(f"{source}:small", "--out", tmp_path / "table.json").stdout
    assert re.search(r"1 +4.16 k +65.5 k +131 k +\d", shown), shown
    assert shown.endswith(f"written: {tmp_path}/table.json; a job takes it as model: {tmp_path}/table.json\n")


def test_copied_layers_are_no_cause_for_a_warning(tmp_path, recwarn):
    (tmp_path / "model.py").write_text(
        "from copy import deepcopy\nfrom torch import nn, zeros\n"
        "def f():\n    return nn.Sequential(*[deepcopy(nn.Linear(4, 4)) for _ in range(2)]), zeros(1, 4)\n"
    )
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # else torch warns once in a process
    try:
        invoke(f"{tmp_path / 'model.py'}:f", "--out", tmp_path / "t.json")
    finally:
        torch.set_warn_always(before)
    assert not [str(w.message) for w in recwarn if "data pointer" in str(w.message)]


def test_refuses_another_result_and_another_place(source, tmp_path):
    with pytest.raises(InputError, match="module, inputs"):
        invoke(f"{source}:wrong", "--out", tmp_path / "t.json")
    with pytest.raises(InputError, match="existing folder"):
        invoke(f"{source}:small", "--out", tmp_path / "no" / "t.json")


def test_joins_the_trainsim_command():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["trainsim.commands"]["trace"] == "calibration.tracing.cli:app"
