"""Compiled functions: where nothing can be kept, and what others are made of."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sim.engine import compiled as code
from sim.engine.compiled import PATIENCE, compiled, soonest, sort, those


def test_without_a_place_for_its_code_a_function_is_compiled_for_this_process():
    space = {"__file__": "/gone/away.py"}
    exec(compile("def doubled(x):\n    return 2 * x\n", "/gone/away.py", "exec"), space)  # noqa: S102
    doubled = compiled()(space["doubled"])
    assert doubled(21) == 42
    assert not doubled.machine.stats.cache_path


def test_compiling_is_told_where_it_takes_long(monkeypatch, caplog, tmp_path):
    monkeypatch.setattr(code, "SILENT_S", 0.0)
    monkeypatch.setattr(code, "_at_terminal", lambda: True)
    (file := tmp_path / "of.py").write_text("def tripled(x):\n    return 3 * x\n")
    space = {"__file__": str(file)}
    exec(compile(file.read_text(), str(file), "exec"), space)  # noqa: S102
    tripled = compiled()(space["tripled"])
    assert (tripled(5), tripled(6)) == (15, 18)
    assert caplog.messages == [f"compiling, for this run first: later runs find it in {tmp_path}/__pycache__"]


def test_python_runs_until_it_has_worked_through_as_much_as_loading_costs():
    @compiled()
    def halved(x):
        return x / 2

    assert soonest(halved, PATIENCE) is halved.python
    assert soonest(halved, 1) is halved.machine
    assert halved.python(5) == soonest(halved, 1)(5) == halved(5)


@compiled()
def _in_order(flags, keys):
    queue = those(flags)
    sort(queue, len(queue), keys)
    return queue


@given(
    st.integers(0, 40).flatmap(
        lambda n: st.tuples(*(arrays(float, s, elements=st.integers(0, 2)) for s in (n, (n, 2))))
    )
)
def test_rows_go_by_their_keys_and_else_as_they_came(rows):
    flags, keys = rows
    wanted = sorted(np.flatnonzero(flags), key=lambda row: (*(-keys[row]),))
    assert _in_order(flags, keys).tolist() == wanted
