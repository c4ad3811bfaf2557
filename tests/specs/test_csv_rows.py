"""Tables of CSV: what is read, and each mistake with its place."""

from typing import Annotated

import pytest

from sim.specs.csv_rows import MAX_BYTES, read_cells, read_records, read_specs
from sim.specs.fields import InputError, real, spec, whole

LONG = 2**17 + 1
"""More characters than a cell may hold."""


@spec
class Row:
    name: str
    count: Annotated[int, whole(0, 9)]
    share: Annotated[float, real(0.0, 1.0)] = 0.5


def test_rows_are_typed_and_other_columns_left_out(tmp_path):
    (tmp_path / "t.csv").write_text("share,note,count,name\n\n0.25,,3,a\n1,x,4,\n")
    assert list(read_specs(tmp_path / "t.csv", Row)) == [
        Row(name="a", count=3, share=0.25),
        Row(name="", count=4, share=1.0),
    ]
    assert list(read_records(tmp_path / "t.csv", ("name", "note"))) == [
        (f"{tmp_path / 't.csv'}:3", {"name": "a", "note": ""}),
        (f"{tmp_path / 't.csv'}:4", {"name": "", "note": "x"}),
    ]


def test_cells_are_those_of_a_header_of_all_fields(tmp_path):
    (tmp_path / "t.csv").write_text('name,count,share\n"a\nb",3,x\n')
    assert list(read_cells(tmp_path / "t.csv", Row, "a table")) == [(f"{tmp_path / 't.csv'}:3", ["a\nb", "3", "x"])]
    (tmp_path / "t.csv").write_text("count,name,share\n")
    with pytest.raises(InputError, match=r"t\.csv:1: got 'count,name,share'; allowed: a table: name,count,share"):
        list(read_cells(tmp_path / "t.csv", Row, "a table"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", r":1: got ''; allowed: columns name, count, share too"),
        ("name,count\n", r":1: got 'name,count'; allowed: columns share too"),
        ("name,count,share,count\n", r":1: got 'name,count,share,count'; allowed: each column once: count"),
        ("name,count,share\na,1\n", r":2: got '2 cells'; allowed: 3, as the header has"),
        ("name,count,share\n\na,1.5,0\n", r":3\.count: got '1\.5'; allowed: a whole number from 0 to 9"),
        (f"name,count,share\na,{'9' * 5_000},0\n", r":2\.count: got '999"),
        ("name,count,share\na,1,nan\n", r":2\.share: got "),
        (f"name,count,share\na,1,{'1' * LONG}\n", r":2: got 'field larger than field limit"),
        (f"{'x' * LONG}\n", r":1: got 'field larger than field limit"),
        ('name,count,share\n"a"b,1,1\n', r":2: got .*; allowed: well-formed CSV"),
        ("x" * (MAX_BYTES + 1), r"got 'more than 16777216 bytes'"),
    ],
)
def test_mistakes_are_told_with_their_place(tmp_path, text, told):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(InputError, match=told):
        list(read_specs(tmp_path / "t.csv", Row))


@pytest.mark.parametrize("name", ["none.csv", "a\0b.csv", "."])
def test_what_cannot_be_read_is_named(tmp_path, name):
    for read in (lambda path: read_specs(path, Row), lambda path: read_cells(path, Row, "a table")):
        with pytest.raises(InputError, match="a readable file"):
            list(read(f"{tmp_path}/{name}"))
