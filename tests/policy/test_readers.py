"""Who reads files that users give is fuzzed: a new reader comes with a line in `tests/properties/readers.py`."""

import ast
import re
from collections.abc import Iterator

from tests.oracle import ROOT

BELOW = {
    "load_result": "what a step of this run wrote; anything else is none",
    "opened": "a format of prices that read_prices knows, and the file of Store",
    "read_cells": "of every CSV table of a spec",
    "read_config": "of Model.from_hf",
    "read_head": "of Store",
    "read_lines": "of read_sacct, read_kueue and, in the federated part, of read_journal",
    "read_mapping": "of every JSON file of the market",
    "read_model": "of Job.load",
    "read_samples": "of read_rows",
    "read_sections": "of Job.load",
    "read_table": "of every CSV file of the market",
    "import_command": "of read_plan",
    "imported_log": "of read_sacct and read_kueue",
}
"""Functions that readers in the tables read through."""
READS = re.compile(r"(read|load|imported|import|opened)(_|$)")


def readers() -> Iterator[tuple[str, str]]:
    """Yield file and name of the functions that, by name and argument, read a file."""
    for folder in ("sim", "calibration"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if isinstance(node, ast.FunctionDef) and READS.match(node.name):
                    given = [*node.args.posonlyargs, *node.args.args, *filter(None, [node.args.vararg])]
                    if any(a.annotation and re.search(r"\bPath\b", ast.unparse(a.annotation)) for a in given):
                        yield file.relative_to(ROOT).as_posix(), node.name


def test_every_reader_is_given_damaged_files():
    fuzzed = "".join(
        (ROOT / "tests" / "properties" / f"{name}.py").read_text("utf-8") for name in ("readers", "test_fuzz")
    )
    found = list(readers())
    assert len(found) > 40
    left = [f"{file}: {name}" for file, name in found if name not in BELOW and not re.search(rf"\b{name}\b", fuzzed)]
    assert not left
    assert set(BELOW) <= {name for _, name in found}
