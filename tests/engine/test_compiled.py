"""Compiled functions where nothing can be kept."""

from sim.engine.compiled import compiled


def test_without_a_place_for_its_code_a_function_is_compiled_for_this_process():
    space = {"__file__": "/gone/away.py"}
    exec(compile("def doubled(x):\n    return 2 * x\n", "/gone/away.py", "exec"), space)  # noqa: S102
    doubled = compiled()(space["doubled"])
    assert doubled(21) == 42
    assert not doubled.stats.cache_path
