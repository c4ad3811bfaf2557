"""Layer tables: arithmetic of sizes, strict reading, round trips."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.costs import kernels
from sim.costs.algebra import symbol
from sim.specs.fields import InputError, read
from sim.specs.table import SIZES, Layer, LayerTable, Op, at

TEXT = st.text(st.characters(codec="utf-8", categories=["L", "N", "P"]), min_size=1, max_size=9)
size = st.tuples(st.integers(0, 10**9), st.integers(0, 10**9))
OPS = st.sampled_from(sorted(SIZES)).flatmap(
    lambda kind: st.builds(Op, kind=st.just(kind), count=st.integers(1, 99), **dict.fromkeys(SIZES[kind], size))
)
LAYERS = st.builds(
    Layer,
    name=TEXT,
    count=st.integers(1, 9),
    parameters=st.integers(10**9, 10**12),
    trainable_parameters=st.integers(0, 10**9),
    shared=st.dictionaries(TEXT, st.integers(0, 99), max_size=2),
    saved_bytes=size,
    boundary_bytes=size,
    temporary_bytes=size,
    forward=st.lists(OPS, max_size=3),
    backward_input=st.lists(OPS, max_size=2),
    backward_weight=st.lists(OPS, max_size=2),
)
TABLE = LayerTable(
    name="two",
    dtype="bfloat16",
    batches=[1, 2, 3],
    layers=[
        Layer(
            name="a",
            count=3,
            parameters=10,
            trainable_parameters=10,
            saved_bytes=(5, 7),
            boundary_bytes=(0, 1),
            temporary_bytes=(0, 0),
            forward=[Op(kind="gemm", count=2, m=(0, 4), n=(3, 0), k=(2, 0), batch=(1, 0))],
        ),
    ],
)


@given(st.lists(LAYERS, min_size=1, max_size=4))
def test_round_trip(tmp_path_factory, layers):
    table = LayerTable(name="x", dtype="float32", seq=7, batches=[2, 3, 4], layers=layers)
    path = tmp_path_factory.mktemp("tables") / "t.json"
    table.save(path)
    assert LayerTable.load(path) == table


def test_totals_count_equal_layers():
    assert TABLE.parameters == 30
    assert TABLE.saved_bytes(2) == 3 * 19
    assert TABLE.flop(5) == TABLE.flop(5, "forward") == 3 * 2 * 2 * 20 * 3 * 2
    assert [layer.name for layer in TABLE.each()] == ["a"] * 3


def test_sizes_take_symbols_and_fit_the_kernel_forms():
    b = symbol("micro_batch")
    assert at((3, 2), b) == 3 + 2 * b
    for kind, direction in {k: k for k in kernels.KERNELS}:
        names = SIZES[kind]
        inputs = Op(kind=kind, **dict.fromkeys(names, (1, 2))).inputs(b)
        assert set(inputs) == set(kernels.FORMS[kernels.KERNELS[kind, direction]].inputs)


def test_attention_flop():
    """Two products forward, five backward; the forms halve for a causal mask."""
    sizes = {"batch": (0, 1), "heads": (4, 0), "kv_heads": (2, 0), "head_dim": (8, 0), "value_dim": (8, 0)}
    op = Op(kind="attention", **sizes, query_len=(16, 0), key_len=(32, 0), causal=True)
    forward = 4 * 3 * 4 * 16 * 32 * 8
    assert op.flop(3) == forward
    assert op.flop(3, "backward_input") == 2.5 * forward
    assert op.inputs(3) == {"flop": forward / 2, "seq": 32, "rows": 3 * 4 * 16}


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"schema_version": 2}, "schema_version"),
        ({"kind": "table"}, "kind"),
        ({"dtype": "int8"}, "dtype"),
        ({"batches": [1]}, "batches"),
        ({"layers": []}, "layers"),
        ({"surprise": 1}, "surprise"),
        ({"layers": [{"name": "a"}]}, "layers.0.parameters"),
    ],
)
def test_refusals_name_the_field(change, path, tmp_path):
    file = tmp_path / "t.json"
    TABLE.save(file)
    with pytest.raises(InputError) as error:
        read(LayerTable, json.loads(file.read_text()) | change)
    assert error.value.path == path


@pytest.mark.parametrize("bad", [[-1, 0], [0], [0, 1, 2], [0.5, 1], [0, 10**19], "12", None, [True, 1]])
def test_sizes_are_pairs_of_whole_numbers(bad):
    with pytest.raises(InputError, match="bytes"):
        read(Op, {"kind": "elementwise", "bytes": bad})


def test_an_operation_states_what_its_kind_needs():
    with pytest.raises(InputError, match="k: got None"):
        Op(kind="gemm", m=(1, 0), n=(1, 0), batch=(1, 0))
    with pytest.raises(InputError, match=r"columns: got .* left out"):
        Op(kind="elementwise", bytes=(1, 0), columns=(1, 0))
    with pytest.raises(InputError, match="channels: got 3; allowed: left out for kind gemm"):
        Op(kind="gemm", m=(1, 0), n=(1, 0), k=(3, 0), batch=(1, 0), channels=3)


def test_no_more_parameters_are_trained_than_there_are():
    with pytest.raises(InputError, match="trainable_parameters: got 2; allowed: at most parameters = 1"):
        read(Layer, LAYER | {"name": "a", "trainable_parameters": 2})


def test_a_table_that_could_not_be_read_is_not_written(tmp_path):
    many = [read(Layer, LAYER | {"name": f"{n:0400}"}) for n in range(3000)]
    with pytest.raises(InputError, match="fewer distinct layers"):
        LayerTable(name="x", dtype="float32", batches=[1, 2, 3], layers=many).save(tmp_path / "t.json")
    assert not list(tmp_path.iterdir())


LAYER = {
    "parameters": 1,
    "trainable_parameters": 1,
    "saved_bytes": [0, 1],
    "boundary_bytes": [0, 1],
    "temporary_bytes": [0, 1],
}
