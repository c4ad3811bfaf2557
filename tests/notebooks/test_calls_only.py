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


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_what_a_panel_asks_is_not_bound_anew_below(path) -> None:
    """A panel calls its functions again when a slider moves: by then all cells have run."""
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    trees = [ast.parse("".join(cell["source"])) for cell in cells]
    for n, tree in enumerate(trees):
        asked = {name for one in ast.walk(tree) if isinstance(one, ast.Lambda) for name in free(one)}
        if "explore" in ast.unparse(tree):
            anew = {name for later in trees[n + 1 :] for name in bound(later)}
            assert not asked & anew, f"{path.stem}, cell {cells[n]['id']}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_the_last_cell_says_what_was_assumed_and_what_can_be_taken_away(path) -> None:
    last = json.loads(path.read_text())["cells"][-1]
    assert last["cell_type"] == "markdown"
    assert "Assumptions of this page:" in "".join(last["source"]) and "Export:" in "".join(last["source"])


def free(function: ast.Lambda) -> set[str]:
    """Return the names that a function takes from its notebook."""
    inside = list(ast.walk(function))
    own = {one.arg for one in inside if isinstance(one, ast.arg)}
    own |= {one.id for one in inside if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    return {one.id for one in inside if isinstance(one, ast.Name)} - own


def bound(tree: ast.Module) -> set[str]:
    """Return the names that a cell binds."""
    targets = [target for line in tree.body if isinstance(line, ast.Assign) for target in line.targets]
    names = {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
    lines = [line for line in tree.body if isinstance(line, ast.Import | ast.ImportFrom)]
    return names | {alias.asname or alias.name.partition(".")[0] for line in lines for alias in line.names}
