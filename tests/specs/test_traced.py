"""A layer table as a model: parts in order, job files, and what is refused."""

import json

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.plans.files import job_data
from sim.specs import Cluster, InputError, Job, LayerTable, Model, Plan
from sim.specs.check import check_job
from sim.specs.schema import file_schema
from sim.specs.table import ATTENTION, Layer, Op
from sim.specs.traced import MAX_KINDS, Network, Part, largest


def layer(parameters=1, **given):
    sizes = dict.fromkeys(("saved_bytes", "boundary_bytes", "temporary_bytes"), (0, 1))
    return Layer(**{"name": "x", "parameters": parameters, "trainable_parameters": parameters} | sizes | given)


def made(*layers, **given):
    return LayerTable(**{"name": "net", "dtype": "bfloat16", "batches": [1, 2, 3], "layers": list(layers)} | given)


TABLE = made(
    layer(5, role="first"), layer(2, count=3), layer(7, role="between"), layer(3), layer(4, role="last"), seq=16
)


def test_what_is_between_belongs_to_the_layer_in_front():
    network = Network.of(TABLE)
    assert [part.parameters for part in network.parts] == [5, 2, 2, 9, 3, 4]
    assert len(network.kinds) == 3
    model = Model.from_table(TABLE)
    assert (model.layers, model.seq, model.parameters) == (4, 16, TABLE.parameters)
    assert model.assumptions == ()


def test_notes_say_what_is_taken_for_granted():
    frozen = Model.from_table(made(layer(9, trainable_parameters=4), layer(boundary_bytes=(2, 6)), seq=4))
    assert frozen.assumptions == (
        "pipeline messages are all as large as the largest: 8 bytes for one sample",
        "5 frozen parameters have gradients and optimizer states like the others (an upper bound)",
    )


def test_attention_that_reads_a_mask_is_told():
    sizes = dict.fromkeys(ATTENTION, (1, 0))
    plain, masked = (Op(kind="attention", count=2, masked=m, causal=not m, **sizes) for m in (False, True))
    told = Model.from_table(made(layer(forward=[plain, masked], count=3), seq=4)).assumptions
    assert told == ("6 of the attentions read a mask and compute all scores, also those that it hides",)


@pytest.mark.parametrize(
    ("layers", "tied", "shares"),
    [
        ([layer(role="first"), layer(), layer(role="last", shared={"w": 1})], True, False),
        ([layer(), layer(role="last", shared={"w": 1})], False, True),
        ([layer(role="first"), layer(shared={"w": 1})], False, True),
    ],
)
def test_who_shares_parameters(layers, tied, shares):
    network = Network.of(made(*layers))
    assert (network.tied, network.shares) == (tied, shares)
    assert Model.from_table(made(*layers)).tied_embeddings == tied


SIZES = st.tuples(st.integers(0, 99), st.integers(0, 99))
PARTS = st.builds(Part, parameters=st.integers(0, 9), saved=SIZES, boundary=SIZES, temporary=SIZES, inflow=SIZES)


@given(PARTS, PARTS, PARTS)
def test_joining_is_associative(a, b, c):
    assert a.then(b).then(c) == a.then(b.then(c))
    assert a.then(b).temporary == largest((a.temporary, b.temporary))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (made(layer(), dtype="float64"), "dtype: got 'float64'; allowed: bfloat16, float16 or float32"),
        (made(layer(role="first")), "layers: got '0 pipeline layers'"),
        (made(layer(count=4097)), "layers: got '4097 pipeline layers'"),
        (made(layer(), layer(role="first")), "layers.1.role: got 'first'"),
        (made(layer(role="between"), layer()), "layers.0.role: got 'between'"),
        (made(layer(role="last"), layer()), "layers.1.role: got None"),
        (made(*(layer(n) for n in range(MAX_KINDS + 1))), f"layers: got 'more than {MAX_KINDS} different'"),
    ],
)
def test_tables_that_are_no_pipeline(table, message):
    with pytest.raises(InputError) as caught:
        Model.from_table(table)
    assert str(caught.value).startswith(message)


def test_an_end_comes_once():
    with pytest.raises(InputError, match="1 with role last"):
        layer(role="last", count=2)


@pytest.fixture
def folder(tmp_path):
    TABLE.save(tmp_path / "table.json")
    return tmp_path


def job(folder, model):
    (folder / "job.json").write_text(json.dumps({"model": model, "cluster": {"device": "l4"}}))
    return Job.load(folder / "job.json").model


@pytest.mark.parametrize("model", [{"table": "table.json"}, "table.json", {"table": TABLE.data()}])
def test_a_job_names_its_table(folder, model):
    assert job(folder, model) == Model.from_table(TABLE)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"table": "none.json"}, "none.json: got 'no such file'"),
        ({"table": 3}, "model.table: got 3; allowed: the path of a layer table"),
        ({"table": "table.json", "layers": 3}, "model.layers: got 3; allowed: left out beside table"),
        ({"table": {"kind": "x"}}, "model.table.kind: got 'x'"),
        ({"table": made(layer(), dtype="float64").data()}, "model.table.dtype: got 'float64'"),
    ],
)
def test_bad_tables_are_named(folder, model, message):
    with pytest.raises(InputError) as caught:
        job(folder, model)
    assert message in str(caught.value)
    _, problems = check_job({"model": model, "cluster": {"device": "l4"}}, folder)
    assert [str(p) for p in problems] == [str(caught.value)]


def test_a_saved_plan_holds_the_table(folder):
    model, cluster = Model.from_table(folder / "table.json"), Cluster.of("l4", nodes=1)
    (folder / "plan.json").write_text(json.dumps(job_data(model, cluster, Plan(global_batch=8))))
    assert Job.load(folder / "plan.json").model == model


@pytest.mark.parametrize(
    ("model", "valid"),
    [({"table": "table.json"}, True), ({"table": TABLE.data()}, True), ({"table": 3}, False), ({"name": "x"}, False)],
)
def test_the_schema_knows_tables(model, valid):
    schema = jsonschema.Draft202012Validator(file_schema(Job))
    assert schema.is_valid({"model": model, "cluster": {"device": "l4"}}) == valid
    assert jsonschema.Draft202012Validator(file_schema(Model)).is_valid(model) == valid
