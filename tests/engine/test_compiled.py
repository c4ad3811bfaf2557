"""Compiled functions: where nothing can be kept, and what others are made of."""

from errno import ENOSPC
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numba import config
from numba.core.caching import IndexDataCacheFile

from sim.engine import compiled as code
from sim.engine.compiled import PATIENCE, compiled, soonest, sort, those


def test_without_a_place_for_its_code_a_function_is_compiled_for_this_process():
    space = {"__file__": "/gone/away.py"}
    exec(compile("def doubled(x):\n    return 2 * x\n", "/gone/away.py", "exec"), space)  # noqa: S102
    doubled = compiled()(space["doubled"])
    assert doubled(21) == 42
    assert not doubled.machine.stats.cache_path


@pytest.mark.parametrize("fails", ["load", "save"])
def test_a_folder_that_fails_ends_no_run_and_is_told_once(fails, monkeypatch, caplog, tmp_path):
    def full(*_):
        raise OSError(ENOSPC, "No space left on device")

    @compiled()
    def thirds(x):
        return x / 3

    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(IndexDataCacheFile, fails, full)
    code._tell_once.cache_clear()
    assert thirds(6) == 2 and thirds(6.0) == 2
    (told,) = caplog.messages
    assert told.startswith(f"compiled code is not kept in {tmp_path}") and told.endswith("No space left on device")


DAMAGES = {
    "empty": lambda held: b"",
    "truncated": lambda held: held[: len(held) // 2],
    "end cut off": lambda held: held[:-1],
    "other bytes": lambda held: bytes(255 - byte for byte in held),
    "a byte in the middle": lambda held: held[: (n := len(held) // 2)] + bytes([255 - held[n]]) + held[n + 1 :],
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("end", ["nbi", "nbc"])
def test_a_damaged_file_of_kept_code_is_compiled_anew(end, damage, monkeypatch, caplog, tmp_path):
    def thirds(x):
        return x / 3

    def hits():
        """Return how often a process that begins now finds the code whole."""
        function = compiled()(thirds)
        assert function(6) == 2
        return sum(function.machine.stats.cache_hits.values())

    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    assert (hits(), hits()) == (0, 1)
    (file,) = tmp_path.rglob(f"*.{end}")
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    found = hits()
    assert found == 0 or (end == "nbi" and found == 1)  # an index that can still be read names whole files only
    assert hits() == 1
    assert not caplog.messages


@pytest.mark.parametrize("place", ["/somewhere", ""])
def test_compiling_is_told_once_where_it_takes_long(place, monkeypatch, caplog):
    """Also where it compiles what it calls meanwhile; not what ends at once."""
    monkeypatch.setattr(code, "_at_terminal", lambda: True)
    data = {"dispatcher": SimpleNamespace(stats=SimpleNamespace(cache_path=place))}
    begin, end = (SimpleNamespace(is_start=start, data=data) for start in (True, False))
    for silent_s in (60.0, 0.0):
        monkeypatch.setattr(code, "SILENT_S", silent_s)
        listener = code._Compiling()
        for event in (begin, begin):
            listener.notify(event)
        if not silent_s:
            listener.timer.join()
        for event in (end, end):
            listener.notify(event)
    told = f"later runs find it in {place}" if place else "again in every run: no folder for it can be written"
    assert caplog.messages == [f"compiling, for this run first: {told}"]


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
