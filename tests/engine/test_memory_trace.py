"""Allocator traces as files: what is written comes back, what is wrong is refused, replays meet what is recorded."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.allocations import memory_trace
from sim.engine.memory_trace import Entry, Header, MemoryTrace, check, read_trace, write_trace
from sim.engine.step import simulate
from sim.specs import Cluster, InputError, Plan
from sim.specs.catalog import models

MIB = 2**20
LINES = (
    '{"schema_version": 1, "source": "test", "reserved_peak_bytes": 20971520}',
    '{"action": "alloc", "addr": 16, "size": 2097152, "stream": 0}',
)


def test_a_trace_comes_back_and_replays_to_its_own_peaks(tmp_path):
    step = simulate(models["llama3-8b"], Cluster.of("h100-sxm-80gb"), Plan(tp=8, global_batch=8))
    made, found = memory_trace(step)
    write_trace(made, tmp_path / "trace.jsonl")
    again = read_trace(tmp_path / "trace.jsonl")
    assert again.header == made.header and again.entries == made.entries
    checked = check(again)
    assert checked.equal and checked.misplaced is None
    assert checked.replayed_reserved_bytes == found.reserved_peak_bytes > checked.replayed_allocated_bytes


def test_another_peak_is_not_equal():
    entry = Entry("alloc", 16, 2 * MIB, 0)
    assert check(MemoryTrace(Header(source="a", reserved_peak_bytes=20 * MIB), [entry])).equal
    assert not check(MemoryTrace(Header(source="a", reserved_peak_bytes=22 * MIB), [entry])).equal


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], ":1: got ''; allowed: one JSON object"),
        (["[1]"], ":1: got '[1]'; allowed: one JSON object"),
        (["{}"], ":1.source: "),
        (['{"source": "a", "schema_version": 2}'], ":1.schema_version: got 2; allowed: 1, which this version"),
        ([LINES[0], "x"], ":2: got 'x'; allowed: one JSON object"),
        ([*LINES, '{"action": "alloc"}'], ":3: got ['action']; allowed: exactly action, addr, size, stream"),
        ([LINES[0], LINES[1].replace("alloc", "jump")], ":2:action: got 'jump'; allowed: one of alloc, "),
        ([LINES[0], LINES[1].replace("2097152", "-1")], ":2:size: got -1; allowed: a whole number, 0 to 2^64 - 1"),
        ([LINES[0], LINES[1].replace("2097152", "true")], ":2:size: got True; allowed: a whole number"),
        ([LINES[0], LINES[1].replace("2097152", "1e400")], ":2:size: got inf; allowed: a whole number"),
    ],
)
def test_wrong_lines_are_named(tmp_path, lines, message):
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(InputError) as caught:
        read_trace(path)
    assert str(caught.value).startswith(str(path)) and message in str(caught.value)


def test_no_such_file(tmp_path):
    with pytest.raises(InputError, match="a readable file"):
        read_trace(tmp_path / "none.jsonl")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (Entry("free", 17, 0, 0), "events[1].id: got 17; allowed: a live allocation"),
        (Entry("alloc", 17, 2**40, 0), "what fits in the capacity that the header states"),
    ],
)
def test_a_recording_that_cannot_be(tmp_path, entry, message):
    held = json.loads(LINES[0]) | {"settings": {"capacity_bytes": 2**30}}
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join([json.dumps(held), LINES[1], json.dumps(entry._asdict())]))
    with pytest.raises(InputError) as caught:
        check(read_trace(path))
    assert message in str(caught.value)


@given(st.lists(st.one_of(st.sampled_from(LINES), st.text(max_size=40)), max_size=5))
def test_any_text_is_read_or_refused(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("any") / "trace.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8", errors="replace")
    try:
        check(read_trace(path))
    except InputError as error:
        assert str(error)
