"""Every command of `trainsim`: one good line and one bad one; a command that has none in these tables fails."""

import re
import shlex

import pytest
from typer.main import get_command

from sim.cli import app, leaves
from sim.cli.examples import EXAMPLES
from sim.specs import InputError
from tests.oracle import ROOT

FILES = {
    "ok.yaml": "model: gpt2-xl\ncluster: {device: l4}\nplan: {global_batch: 8}\n",
    "args.sh": "--global-batch-size 8 --micro-batch-size 1\n",
    "net.py": "def factory():\n    raise RuntimeError('no network')\n",
}
GOOD = {
    "simulate": "ok.yaml --json",
    "tune": "tests/cli/test_cli.py::test_tune_prints_the_contract_and_leaves_runnable_plans",
    "compare": "tests/cli/test_files.py::test_compare_goes_on_where_it_stopped",
    "sweep": "tests/sweep/test_commands.py::test_a_sweep_and_its_json",
    "report": "tests/sweep/test_commands.py::test_tables_hold_every_row",
    "optimal": "ok.yaml --days 1",
    "emit": "ok.yaml --to megatron",
    "import": "args.sh --from megatron",
    "schedule": "1f1b --ranks 2 --microbatches 2",
    "validate": "tests/cli/test_validate.py::test_json_has_exactly_the_contracts_keys",
    "list": "devices",
    "check": "ok.yaml",
    "schema": "plan",
    "lab": "tests/cli/test_lab.py::test_lab_is_local_and_quiet",
    "device new": "mine",
    "checkpointing plan": "ok.yaml",
    "checkpointing simulate": "ok.yaml --hours 1 --seeds 1",
    "checkpointing measure": "tests/calibration/checkpointing/test_measure.py::test_the_command",
    "cluster simulate": "tests/cli/test_cluster.py::test_the_same_seed_is_the_same_cluster",
    "cluster measure": "tests/calibration/cluster/test_measure.py::test_three_trainings_are_compared",
    "decentralized simulate": "--steps 100",
    "decentralized measure": "tests/calibration/federated/test_command.py::test_prints_and_writes_one_object",
    "loading predict": "tests/cli/test_loading.py::test_events_stand_beside_the_law",
    "loading measure": "tests/calibration/loading/test_command.py::test_prints_and_writes_one_object",
    "market simulate": "tests/cli/test_market.py::test_the_contract",
    "market together": "tests/cli/test_market.py::test_jobs_that_rent_together",
    "calibrate": "tests/calibration/test_calibrate_command.py::test_measures_and_prints_one_object",
    "execute": (
        "tests/calibration/execute/test_execute_command.py::test_predicted_and_measured_figures_stand_side_by_side"
    ),
    "trace": "tests/calibration/test_trace_command.py::test_writes_a_table_and_prints_one_object",
}
"""Command -> what follows it, or the test that runs it."""

AT = shlex.quote(str(ROOT))
GRID = f"{AT}/notebooks/jobs/sweeps/llama3-70b.yaml"
RENT = f"--prices {AT}/notebooks/data/market-prices.csv --throughputs {AT}/notebooks/data/market-rates.csv"
BAD = {
    "simulate": ("ok.yaml --hours -1", "--hours: got -1.0; allowed: a number above 0, at most 10000"),
    "tune": ("ok.yaml --top 0", "--top: got '0'; allowed: a whole number from 1 to 100"),
    "compare": ("ok.yaml --out ok.yaml", "--out: got 'ok.yaml'; allowed: another file than ok.yaml"),
    "sweep": (
        f"{GRID} --store no/a.db",
        "--store: got 'no/a.db'; allowed: a file",
    ),
    "report": ("none.db", "none.db: got 'no such file'; allowed: the store of a sweep"),
    "optimal": ("ok.yaml --days -1", "--days: got -1.0; allowed: a number from 1e-06"),
    "emit": ("ok.yaml --to megatorn", "--to: got 'megatorn'; allowed: one of"),
    "import": ("args.sh --from megatorn", "--from: got 'megatorn'; allowed: one of"),
    "schedule": ("1f1b --ranks 0 --microbatches 2", "--ranks: got '0'; allowed: a whole number from 1 to 4096"),
    "validate": ("ok.yaml --csv ok.yaml", "--csv: got 'ok.yaml'; allowed: another file than ok.yaml"),
    "list": ("toys", "kind: got 'toys'; allowed: one of"),
    "check": ("none.yaml", "none.yaml: got 'no such file'; allowed: a readable file"),
    "schema": ("toys", "kind: got 'toys'; allowed: one of"),
    "lab": ("--port 80", "--port: got '80'; allowed: a whole number from 1024 to 65535"),
    "device new": ("mine --like toys", "--like: got 'toys'; allowed: one of"),
    "checkpointing plan": ("ok.yaml --writers me", "--writers: got 'me'; allowed: one of"),
    "checkpointing simulate": ("ok.yaml --seed -1", "--seed: got '-1'; allowed: a whole number of at least 0"),
    "checkpointing measure": ("--megabytes 0", "--megabytes: got 0; allowed: a whole number from 1"),
    "cluster simulate": ("--cluster 1:2:x", "--cluster: got '1:2:x'; allowed: three whole numbers"),
    "cluster measure": ("--round-s 0", "--round-s: got 0.0; allowed: a number from 1 to 3600"),
    "decentralized simulate": ("--partitions 1", "--partitions: got 1; allowed: a whole number from 2 to 64"),
    "decentralized measure": ("--out no/a.json", "--out: got 'no/a.json'; allowed: a file in an existing folder"),
    "loading predict": ("ok.yaml --what-if all", "--what-if: got 'all'; allowed: one of cache, cores"),
    "loading measure": ("--out no/a.json", "--out: got 'no/a.json'; allowed: a file in an existing folder"),
    "market simulate": (f"{RENT} --model A3C --what-if all", "--what-if: got 'all'; allowed: one of every"),
    "market together": (f"{RENT} --trace none.trace", "none.trace: got 'no such file'; allowed: a readable file"),
    "calibrate": ("--device cpu --out ok.yaml", "--out: got 'ok.yaml'; allowed: a folder that exists or can be made"),
    "execute": ("ok.yaml --steps 1", "--steps: got '1'; allowed: a whole number from 10 to 10000"),
    "trace": ("net.py:factory", "net.py:factory (line 2): got 'RuntimeError: no network'; allowed: a function"),
}
"""Command -> what follows it, and how its error begins."""

README = (ROOT / "README.md").read_text("utf-8").split("## Two minutes")[1].split("```sh\n")[1].split("```")[0]
STATED = [part.strip() for line in README.splitlines() for part in line.split("#")[0].split(";")]
LINES = [*EXAMPLES.values(), *(line.removeprefix("trainsim ") for line in STATED if line.startswith("trainsim "))]


@pytest.fixture(scope="module")
def commands():
    """Every command that does something, by its words."""
    return dict(leaves(get_command(app)))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_every_command_has_examples(commands):
    assert commands.keys() == EXAMPLES.keys() == GOOD.keys() == BAD.keys()


def test_every_command_prints_json_but_those_that_show_no_result(commands):
    bare = {words for words, part in commands.items() if not any("--json" in each.opts for each in part.params)}
    assert bare == {"schema", "lab"}


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_the_help_or_of_readme_is_one(commands, line):
    words = shlex.split(line)
    name = next(" ".join(words[:n]) for n in (2, 1) if " ".join(words[:n]) in commands)
    commands[name].make_context(name, words[len(name.split()) :])
    assert all((ROOT / word).exists() for word in words if word.startswith("notebooks/"))


@pytest.mark.parametrize("name", GOOD)
def test_a_good_line_answers(trainsim, folder, name):
    path, _, test = GOOD[name].partition("::")
    if test:
        assert f"def {test}(" in (ROOT / path).read_text("utf-8")
        return
    code, out, err = trainsim(*name.split(), *shlex.split(GOOD[name]))
    assert (code, bool(out), "error" in err) == (0, True, False)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_is_one_error(trainsim, folder, name):
    line, message = BAD[name]
    before = {path: path.read_bytes() for path in folder.rglob("*")}
    code, out, err = trainsim(*name.split(), *shlex.split(line))
    told = out.removeprefix("problem: ") if name == "check" else err.removeprefix("error: ")
    assert code == 2
    assert told.startswith(message)
    assert re.fullmatch(r"[^\n]+\n", told) and not (err if name == "check" else out)
    assert {path: path.read_bytes() for path in folder.rglob("*")} == before


@pytest.mark.parametrize("name", GOOD)
def test_nothing_takes_empty_text_for_left_out(commands, name):
    command = commands[name]
    taking = [each for each in command.params if not getattr(each, "is_flag", False) and each.name != "help"]
    assert taking
    for each in taking:
        option = each.param_type_name == "option"
        given = [each.opts[0], ""] if option else [""] * (command.params.index(each) + 1)
        with pytest.raises(InputError, match=r"^[-A-Za-z_.: ]+: got '{2}; allowed: not empty"):
            command.make_context(name, given)
