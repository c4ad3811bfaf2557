"""Tables that show themselves: paths, formats, alignment; nothing from the rows becomes markup."""

from types import SimpleNamespace

import pytest

import sim
from sim.specs import InputError

ROWS = [
    SimpleNamespace(name="<b>one", size=1234.5, held={"n": 3}, inner=None),
    SimpleNamespace(name="two", size=0.25, held={}, inner=SimpleNamespace(x=1e-7)),
]


def test_text_is_aligned_and_numbers_end_at_one_edge():
    shown = sim.table(ROWS, plan="name", step_time="size", n="held.n", x="inner.x")
    assert repr(shown).splitlines() == [
        "plan    step time  n         x",
        "<b>one      1\u2009234  3         –",
        "two         0.250  –  1.00e-07",
    ]


def test_html_is_escaped_and_every_cell_says_its_side():
    html = sim.table(ROWS, plan="name", size="size")._repr_html_()
    assert "<b>" not in html and "&lt;b&gt;one" in html
    assert html.count("text-align:left") == html.count("text-align:right") == 3


def test_formats_are_specifications_texts_and_functions():
    shown = sim.table({"a": 0.25, "b": None}, share=("", ".1%"), GB=("", "{:.2f} GB"), twice=(lambda v: v, repr))
    assert shown.headings == ("", "share", "GB", "twice")
    assert shown.cells == (("a", "25.0\u00a0%", "0.25 GB", "0.25"), ("b", "–", "–", "–"))
    assert shown.right == (False, True, True, True)


def test_thousands_stand_apart_however_they_are_asked_for():
    shown = sim.table([{"usd": 12345.6, "runs": 12345}], usd=("usd", ",.0f"), runs=("runs", ","), plain="runs")
    assert shown.cells == (("12\u2009346", "12\u2009345", "12\u2009345"),)


def test_without_columns_all_fields_are_shown():
    shown = sim.table([{"plan.tp": 8, "ok": True}, {"plan.tp": 4, "why": ("x", 2)}])
    assert shown.headings == ("plan.tp", "ok", "why")
    assert shown.cells == (("8", "yes", "–"), ("4", "–", "x, 2"))
    assert sim.table([]).cells == ()


@pytest.mark.parametrize(
    ("columns", "said"),
    [({"a": "nothing"}, "nothing"), ({"a": ("name", ".1f")}, "a"), ({"a": ("size", "{1}")}, "a")],
)
def test_what_is_wrong_is_said(columns, said):
    with pytest.raises(InputError) as caught:
        sim.table(ROWS, **columns)
    assert caught.value.path == said


def test_rows_without_fields_need_columns():
    with pytest.raises(InputError, match="columns"):
        sim.table([1.0])
