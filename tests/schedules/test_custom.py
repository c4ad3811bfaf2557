"""A user's own order: torch's and torchtitan's files, every inconsistency, malicious text."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.graph import DeadlockError, graph_of
from sim.engine.path import dependence_order
from sim.plans.torch_csv import schedule_csv
from sim.schedules import SCHEDULES, Shape, build, custom
from sim.schedules.custom import MAX_BYTES, parse_order, read_order
from sim.specs import InputError
from tests.contracts.longest_path import run
from tests.contracts.schedule import UNIT, check_order
from tests.oracle import reference
from tests.schedules.shapes import shapes
from tests.schedules.split import merge_backward

FIXTURES = {
    "pytorch_dualpipev_4rank_10mb": (0, 1, 2, 3, 3, 2, 1, 0),
    "pytorch_zb1p_2rank_2stagep_compute": (0, 1, 0, 1),
    "pytorch_zb1p_2rank_2stagep_comms": (0, 1, 0, 1),
    "torchtitan_custom_schedule_2rank_8mb": (0, 1, 0, 1),
}


def fixture(name):
    return reference(f"pipelines/fixture_{name}.csv")


@pytest.mark.parametrize("name", FIXTURES)
def test_published_files_load_and_run(name):
    order = read_order(fixture(name))
    assert order.rank_of == FIXTURES[name]
    check_order(order)


@pytest.mark.parametrize("name", [name for name in FIXTURES if "comms" not in name])
def test_they_are_written_back(name):
    """Cell by cell but for bubbles, which an order has none of: they follow from its durations."""
    text = fixture(name).read_text()
    cells = [",".join(filter(None, line.split(","))) for line in text.splitlines()]
    written = schedule_csv(read_order(fixture(name)))
    assert written.splitlines() == cells
    assert ",," in text or written == text


def test_they_are_the_orders_of_this_package():
    dualpipev = read_order(fixture("pytorch_dualpipev_4rank_10mb"))
    assert dualpipev.texts() == build("dualpipev", Shape(4, 10, 2)).texts()
    zb1p = read_order(fixture("pytorch_zb1p_2rank_2stagep_compute"))
    assert zb1p.texts() == build("interleaved-zb", Shape(2, 8, 2)).texts()


def test_communication_is_left_out():
    lowered = read_order(fixture("pytorch_zb1p_2rank_2stagep_comms"))
    planned = read_order(fixture("pytorch_zb1p_2rank_2stagep_compute"))
    assert lowered.actions == merged_where(planned, lowered).actions


def merged_where(planned, lowered):
    """Torch's lowering merged I and W of rank 0 into B and left rank 1 as it was."""
    merged = merge_backward(planned)
    assert lowered.actions[0] == merged.actions[0]
    return replace(planned, actions=(merged.actions[0], planned.actions[1]))


@given(st.data())
def test_every_order_comes_back(data):
    name = data.draw(
        st.sampled_from([n for n, kind in SCHEDULES.items() if kind.copies == 1 and not kind.asynchronous])
    )
    order = build(name, data.draw(shapes(name)))
    again = parse_order(schedule_csv(order))
    assert (again.actions, again.fused, again.rank_of) == (order.actions, order.fused, order.rank_of)
    assert again.microbatches == order.microbatches
    assert run(again, UNIT).makespan == run(order, UNIT).makespan


def test_two_copies_have_no_csv():
    with pytest.raises(InputError, match="schedule: got 'chimera'; allowed: one copy of the model"):
        schedule_csv(build("chimera", Shape(2, 2, 2)))


CELLS = "<stage><F|I|W|B><microbatch>, (<forward>;<backward>)OVERLAP_F_B, a communication cell of torch, or empty"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x: got 'no rows'; allowed: one row of actions a rank"),
        (" \n\n ", "x: got 'no rows'; allowed: one row of actions a rank"),
        ("\n0F0,0B0", "x row 1: got 'no action'; allowed: one or more actions on every rank"),
        ("0F0,0B0\n,,", "x row 2: got 'no action'; allowed: one or more actions on every rank"),
        ("0SEND_F0\n0F0,0B0", "x row 1: got 'no action'; allowed: one or more actions on every rank"),
        ("0F0,0B0\n0F1,0B1", "x row 2 cell 1: got '0F1'; allowed: stage 0 on one rank (row 1)"),
        ("0F0,0B0\n2F0,2B0", "x: got 'no action of stage 1'; allowed: every stage from 0 to 2"),
        ("0B0", "x: got 'no F of stage 0'; allowed: an F of every microbatch on every stage"),
        ("0F0", "x row 1 cell 1: got '0F0 without 0I0'; allowed: 0B0, or 0I0 and 0W0"),
        ("0F0,0I0", "x row 1 cell 1: got '0F0 without 0W0'; allowed: 0B0, or 0I0 and 0W0"),
        ("0F0,0W0", "x row 1 cell 1: got '0F0 without 0I0'; allowed: 0B0, or 0I0 and 0W0"),
        ("0F0,0B0,0F2,0B2", "x row 1 cell 3: got '0F2'; allowed: microbatches 0 to 1 (stage 0 has so many F)"),
        ("0F0,0F1,0B0,0B1\n1F0,1B0", "x: got 'no 1F1'; allowed: every stage's F, microbatches 0 to 1"),
        ("0F0,0B0,0B0", "x row 1 cell 3: got '0B0'; allowed: every action once (it stands in row 1 cell 2)"),
        ("0F0,0B0,0W0", "x row 1 cell 2: got '0B0'; allowed: either B or I and W (there is 0W0)"),
        ("0F0,0X0", f"x row 1 cell 2: got '0X0'; allowed: {CELLS}"),
        ("0F0,0F", f"x row 1 cell 2: got '0F'; allowed: {CELLS}"),
        ("0F0,-1B0", f"x row 1 cell 2: got '-1B0'; allowed: {CELLS}"),
        ("0F0,=cmd|'/c calc'!A0", "x row 1 cell 2: got \"=cmd|'/c calc'!A0\"; allowed: " + CELLS),
        ("0F0,0F1234567", f"x row 1 cell 2: got '0F1234567'; allowed: {CELLS}"),
        ("\u0660F0", f"x row 1 cell 1: got '\u0660F0'; allowed: {CELLS}"),
        ("0F0,\x00", f"x row 1 cell 2: got '\\x00'; allowed: {CELLS}"),
        ("0F0,\x1b[2J", f"x row 1 cell 2: got '\\x1b[2J'; allowed: {CELLS}"),
        (
            "(0B0;0F0)OVERLAP_F_B",
            "x row 1 cell 1: got '(0B0;0F0)OVERLAP_F_B'; allowed: an F first and a B second in OVERLAP_F_B",
        ),
        (
            "(0F0;0B0)OVERLAP_F_B",
            "x row 1 cell 1: got '(0F0;0B0)OVERLAP_F_B'; allowed: two actions in OVERLAP_F_B of which neither waits "
            "for the other",
        ),
        ('0F0,"0B0', "x row 1: got 'unexpected end of data'; allowed: comma-separated cells"),
        ("0F0,0B0\n" * 5000, "x: got '5000 rows'; allowed: at most 4096 rows"),
    ],
    ids=range(27),
)
def test_what_is_wrong_is_named_by_row_and_cell(text, message):
    with pytest.raises(InputError) as caught:
        parse_order(text, "x")
    assert str(caught.value) == message


def test_too_many_actions(monkeypatch):
    monkeypatch.setattr(custom, "MAX_ACTIONS", 3)
    with pytest.raises(InputError, match="x row 2: got 'more actions'; allowed: at most 3 in all"):
        parse_order("0F0,0B0\n1F0,1B0", "x")


def test_long_cells_are_cut_in_the_message():
    with pytest.raises(InputError) as caught:
        parse_order("1" * 100_000, "x")
    assert len(str(caught.value)) < 300


@given(st.text(alphabet='012FIWB(;),\n"OVERLAP_F_B=@ \x00é', max_size=60))
def test_any_text_is_an_order_or_an_input_error(text):
    try:
        order = parse_order(text)
    except InputError as error:
        assert error.path.startswith("order")
    else:
        assert parse_order(schedule_csv(order)).actions == order.actions


def test_a_deadlock_names_who_waits_for_whom():
    order = parse_order("0F0,0F1,0B1,0B0\n1F0,1B0,1F1,1B1")
    dependence_order(graph_of(order))
    crossed = parse_order("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0")
    with pytest.raises(DeadlockError, match="waits for"):
        dependence_order(graph_of(crossed))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"\xff\xfe", "got 'bytes that are not UTF-8'; allowed: UTF-8 text"),
        (b" " * (MAX_BYTES + 1), f"got 'more than {MAX_BYTES} bytes'; allowed: at most {MAX_BYTES} bytes"),
        (None, "got 'no such file'; allowed: a readable file"),
    ],
    ids=["bytes", "size", "missing"],
)
def test_files_that_cannot_be_read(tmp_path, raw, message):
    path = tmp_path / "order.csv"
    if raw is not None:
        path.write_bytes(raw)
    with pytest.raises(InputError) as caught:
        read_order(path)
    assert str(caught.value).endswith(message)
