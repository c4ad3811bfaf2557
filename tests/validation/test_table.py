"""Tables of runs: what is read, and what is refused with its place."""

import pytest

from sim.specs import InputError
from sim.validation.table import COLUMNS, MAX_BYTES, is_runs, read_runs
from tests.oracle import reference
from tests.validation.runs import ROW, write

ROWS = {
    "bigscience_a100": 78, "korthikanti_2205_05198": 13, "llm_foundry_mpt": 131, "megatron_ci_golden": 315,
    "nvidia_dgxc_early2025": 24, "nvidia_megatron_bridge": 228, "nvidia_nemo": 18, "ptdp_2104_04473": 10,
    "simumax_b200": 24, "torchtitan": 18, "vtrain_multi": 88, "vtrain_single": 1120, "zero_bubble_2401_10241": 24,
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_every_published_table_is_read(name: str) -> None:
    rows = read_runs(reference("runs") / f"{name}.csv")
    assert len(rows) == ROWS[name]
    assert len({row.id for row in rows}) == len(rows)


def test_cells_are_typed_and_blank_is_none(tmp_path) -> None:
    cells = {"gated_mlp": "1", "use_for": "time?+memory", "peak_memory_bytes": "4e10", "memory_kind": "reserved"}
    row = read_runs(write(tmp_path / "runs.csv", cells))[0]
    assert (row.gpus, row.step_time_s, row.gated_mlp, row.compiled, row.dp) == (8, 2.0, True, None, None)
    assert row.uses == {"time?", "memory"} and row.peak_memory_bytes == 4e10


@pytest.mark.parametrize(
    ("column", "cell", "value"),
    [
        ("gpus", "8.0", 8), ("gpus", "1.6e1", 16), ("global_batch", "2E3", 2000), ("gated_mlp", "1.0", True),
        ("gated_mlp", "false", False), ("compiled", "True", True), ("oom", "0.0", False), ("step_time_s", ".5", 0.5),
    ],
)  # fmt: skip
def test_numbers_are_read_however_they_are_written(tmp_path, column: str, cell: str, value: object) -> None:
    found = getattr(read_runs(write(tmp_path / "runs.csv", {column: cell}))[0], column)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("column", "cell", "allowed"),
    [
        ("gpus", "eight", "a whole number from 1"),
        ("gpus", "8.5", "a whole number"),
        ("gpus", "0", "a whole number from 1"),
        ("gpus", "1e999", "a whole number from 1"),
        ("gated_mlp", "2", "true or false"),
        ("step_time_s", "nan", "a number from"),
        ("step_time_s", "-1", "a number from"),
        ("step_time_s", "", "a number: use_for says time"),
        ("gated_mlp", "yes", "true or false"),
        ("recompute", "some", "one of none, selective, full"),
        ("use_for", "speed", "any of time, time?"),
        ("id", "", "text of 1 to 200"),
        ("zero_stage", "4", "from 0 to 3"),
        ("source", "a\x1b[2Jb", "text without control characters"),
        ("oom", "", "true or false: use_for says oom"),
        ("peak_memory_bytes", "71.5", "a number from 1e[+]06 to 1e[+]15 B"),
    ],
)
def test_a_bad_cell_is_refused_with_its_place(tmp_path, column: str, cell: str, allowed: str) -> None:
    path = write(tmp_path / "runs.csv", {}, {"use_for": "time+oom"} | {column: cell})
    with pytest.raises(InputError, match=allowed) as found:
        read_runs(path)
    assert found.value.path == f"{path}:3:{column}"


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("precision,", "", "missing: precision"),
        ("notes", "remarks", "unknown: remarks"),
        ("tier", "id", "twice: id"),
        ("device", "gpu", "missing: device; unknown: gpu"),
    ],
)
def test_a_column_missing_unknown_or_twice_is_refused(tmp_path, old: str, new: str, found: str) -> None:
    path = write(tmp_path / "runs.csv", {})
    header, _, _ = path.read_text().partition("\n")
    path.write_text(header.replace(old, new, 1) + "\n")
    with pytest.raises(InputError) as caught:
        read_runs(path)
    assert str(caught.value).startswith(f"{path}:1: got '{found}'; allowed: each column once: id, source, device, ")


def test_the_column_that_was_meant_is_named(tmp_path) -> None:
    (tmp_path / "runs.csv").write_text(f"{','.join(ROW)},n_gpus,zero,colour\n")
    with pytest.raises(InputError) as caught:
        read_runs(tmp_path / "runs.csv")
    assert str(caught.value).endswith("; did you mean gpus for n_gpus, zero_stage for zero?")


@pytest.mark.parametrize("between", [";", "\t"])
def test_columns_that_no_commas_separate_are_said_so(tmp_path, between: str) -> None:
    (tmp_path / "runs.csv").write_text(f"{between.join(ROW)}\n{between.join(ROW.values())}\n")
    with pytest.raises(InputError, match="allowed: each column once, separated by commas: id"):
        read_runs(tmp_path / "runs.csv")


def test_columns_that_rows_may_leave_blank_may_be_missing(tmp_path) -> None:
    full = read_runs(write(tmp_path / "full.csv", {}))
    (tmp_path / "runs.csv").write_text(f"{','.join(ROW)}\n{','.join(ROW.values())}\n")
    assert read_runs(tmp_path / "runs.csv") == full
    assert is_runs(tmp_path / "runs.csv")


@pytest.mark.parametrize("header", ["\ufeff" + ",".join(ROW), ",".join(f'"{name}"' for name in ROW)])
def test_a_table_is_known_by_its_header_as_other_programs_write_it(tmp_path, header) -> None:
    (tmp_path / "runs.csv").write_text(f"{header}\r\n{','.join(ROW.values())}\r\n", encoding="utf-8")
    assert is_runs(tmp_path / "runs.csv") and len(read_runs(tmp_path / "runs.csv")) == 1


def test_a_short_row_a_second_id_and_a_broken_quote_are_refused(tmp_path) -> None:
    path = write(tmp_path / "runs.csv", {}, {"id": "site-1"})
    with pytest.raises(InputError, match=r":3:id: .*each id once"):
        read_runs(path)
    path.write_text(",".join(COLUMNS) + "\na,b\n")
    with pytest.raises(InputError, match=f":2: got '2 cells'; allowed: {len(COLUMNS)}, as the header has"):
        read_runs(path)
    path.write_text(",".join(COLUMNS) + '\n"a"b\n')
    with pytest.raises(InputError, match="well-formed CSV"):
        read_runs(path)


def test_a_file_that_is_none_or_too_large_is_refused(tmp_path) -> None:
    with pytest.raises(InputError, match="a readable file"):
        read_runs(tmp_path / "none.csv")
    (tmp_path / "large.csv").write_bytes(b"x" * (MAX_BYTES + 1))
    with pytest.raises(InputError, match="at most"):
        read_runs(tmp_path / "large.csv")
    (tmp_path / "latin.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="UTF-8"):
        read_runs(tmp_path / "latin.csv")
    (tmp_path / "empty.csv").write_bytes(b"")
    with pytest.raises(InputError, match="each column once"):
        read_runs(tmp_path / "empty.csv")
