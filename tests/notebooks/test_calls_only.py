"""Notebooks hold calls only: whatever decides, repeats or defines is in the packages, where it is tested."""

import ast
import json

import pytest

from tests.oracle import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
ALLOWED = (ast.Import, ast.ImportFrom, ast.Assign, ast.Expr)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_cells_hold_imports_assignments_and_calls(path) -> None:
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    for cell in cells:
        for node in ast.parse("".join(cell["source"])).body:
            assert isinstance(node, ALLOWED), f"{path.stem}, cell {cell['id']}: {ast.unparse(node)[:80]}"
