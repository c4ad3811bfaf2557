import gzip
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.throughput_files import ALONE, kind_of, ordered, read_throughputs
from sim.cluster.throughputs import Throughputs
from sim.specs.fields import InputError
from tests.oracle import reference

A, B = "('a (batch size 1)', 1)", "('b', 2)"
KIND_A, KIND_B = ("a (batch size 1)", 1), ("b", 2)
MEASURED = {
    "k80": {A: {"null": 1.0, B: [0.5, 0.25]}, B: {"null": 0}},
    "tpu": {A: {"null": 5}},
    "v100": {A: {"null": 3.0}, B: {"null": 4.5}},
    "v100_unconsolidated": {B: {"null": 2.5}},
}


def written(folder, raw, name="t.json"):
    text = raw if isinstance(raw, str) else json.dumps(raw)
    (folder / name).write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    return folder / name


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_published_form(tmp_path, name):
    found = read_throughputs(written(tmp_path, MEASURED, name))
    assert found.types == ("v100", "k80", "tpu")
    assert found.alone[KIND_A].tolist() == [3.0, 1.0, 5.0]
    assert found.alone[KIND_B].tolist() == [4.5, 0.0, 0.0]
    assert found.together[KIND_A, KIND_B].tolist() == [[0, 0], [0.5, 0.25], [0, 0]]
    assert found.together[KIND_B, KIND_A].tolist() == [[0, 0], [0.25, 0.5], [0, 0]]
    apart = read_throughputs(tmp_path / name, "unconsolidated")
    assert (apart.types, list(apart.alone)) == (("v100",), [KIND_B])


def test_keys_are_never_run():
    assert kind_of(A) == KIND_A
    for text in ("('a', 0)", "('a', 1) ", "('a'*9, 1)", "(__import__('os'), 1)", "('a\\'', 1)", "['a', 1]", ""):
        assert kind_of(text) is None


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        ('{"v100": {"A": {"null": -1}}}', "v100.A.null"),
        ('{"v100": {"A": {"null": NaN}}}', "v100.A.null"),
        ('{"v100": {"A": {"null": "1"}}}', "v100.A.null"),
        ('{"v100": {"A": {"null": true}}}', "v100.A.null"),
        ('{"v100": {"A": {"null": 1, "B": [1, -Infinity]}}}', "v100.A.B"),
        ('{"v100": {"A": {"null": 1, "B": [1]}}}', "v100.A.B"),
        ('{"v100": {"A": {"null": 1, "c": [1, 1]}}}', "v100.A.c"),
        ('{"v100": {"A": {"B": [1, 1]}}}', "v100.A"),
        ('{"v100": {"x": {"null": 1}}}', "v100.x"),
        ('{"v100": 3}', "v100"),
        ("{}", ""),
        ('{"v100_unconsolidated": {}}', ""),
    ],
)
def test_what_is_wrong_is_told_with_its_path(tmp_path, raw, path):
    file = written(tmp_path, raw.replace('"A"', f'"{A}"').replace('"B"', f'"{B}"'))
    with pytest.raises(InputError) as caught:
        read_throughputs(file)
    want = f"{file}: {path}" if path else str(file)
    assert caught.value.path == want.replace(".A", f".{A}").replace(".B", f".{B}")


def test_all_that_is_wrong_is_told_together(tmp_path):
    with pytest.raises(InputError) as caught:
        read_throughputs(written(tmp_path, {"v100": {A: {"null": -1}}, "k80": {A: {"null": -2}}}))
    assert [caught.value.value, *(e.value for e in caught.value.also)] == [-1, -2]


def test_short_tables(tmp_path):
    csv = written(tmp_path, "job_type,scale_factor,device,steps_per_s\nbert,8,a100,2.5\nbert,8,p100,0\n", "t.csv")
    rows = (
        "{job_type: bert, scale_factor: 8, device: a100, steps_per_s: 2.5}",
        "{job_type: bert, scale_factor: 8, device: p100, steps_per_s: 0}",
    )
    yaml = written(tmp_path, "source: measured\nthroughputs:\n" + "".join(f" - {row}\n" for row in rows), "t.yaml")
    for file in (csv, yaml):
        found = read_throughputs(file)
        assert found.types == ("p100", "a100")
        assert found.alone["bert", 8].tolist() == [0.0, 2.5]
    assert read_throughputs(yaml).source == "measured"


def test_short_tables_that_are_wrong(tmp_path):
    head = "job_type,scale_factor,device,steps_per_s\n"
    for text, told in (
        ("job,device\n", ":1: "),
        (head, "a row or more"),
        (head + "a,1,x,fast\na,1,x,-1\na,1,x\n", ":2.steps_per_s"),
        (head + "a,1.5,x,1\n", ":2.scale_factor"),
        (head + ",1,x,1\n", ":2.job_type"),
        (head + "a,1,x,1\na,1,x,2\n", "once"),
        (head + "a,1,x,inf\n", ":2.steps_per_s"),
    ):
        with pytest.raises(InputError, match=told):
            read_throughputs(written(tmp_path, text, "t.csv"))
    with pytest.raises(InputError) as caught:
        read_throughputs(written(tmp_path, head + "a,1,x,fast\na,1,x,-1\na,1,x\n", "t.csv"))
    assert len(caught.value.also) == 2
    with pytest.raises(InputError, match="steps_per_s"):
        read_throughputs(written(tmp_path, "throughputs: [{job_type: a, device: x, steps_per_s: -1}]", "t.yaml"))
    with pytest.raises(InputError, match="one of"):
        read_throughputs(written(tmp_path, "", "t.txt"))
    with pytest.raises(InputError, match="placement"):
        read_throughputs(tmp_path / "t.yaml", "packed")


KINDS = st.tuples(st.text(st.sampled_from("abc ()-8"), min_size=1, max_size=6), st.integers(1, 8))


@st.composite
def throughputs(draw):
    types = ordered(draw(st.lists(st.sampled_from(["v100", "k80", "tpu", "x"]), min_size=1, max_size=3, unique=True)))
    rates = st.lists(st.floats(0, 1e6), min_size=len(types), max_size=len(types)).map(np.array)
    alone = draw(st.dictionaries(KINDS, rates, min_size=1, max_size=4))
    together = {}
    for pair in draw(st.lists(st.tuples(*[st.sampled_from(sorted(alone))] * 2), max_size=3)):
        one, other = draw(rates), draw(rates)
        if pair[0] == pair[1]:
            other = one
        together[pair] = np.stack([one, other], axis=1)
        together[pair[::-1]] = together[pair][:, ::-1]
    return Throughputs(types=types, alone=alone, together=together)


def published_form(given_):
    """Return throughputs as the published files state them."""
    keys = {kind: f"('{kind[0]}', {kind[1]})" for kind in given_.alone}
    made = {}
    for m, name in enumerate(given_.types):
        made[name] = {keys[kind]: {ALONE: float(rates[m])} for kind, rates in given_.alone.items()}
        for (one, other), rates in given_.together.items():
            made[name][keys[one]][keys[other]] = [float(rate) for rate in rates[m]]
    return made


@given(throughputs())
def test_any_throughputs_are_read_from_the_published_form(tmp_path_factory, given_):
    found = read_throughputs(written(tmp_path_factory.mktemp("t"), published_form(given_), "t.json"))
    assert found.types == given_.types
    for name in ("alone", "together"):
        one, other = getattr(found, name), getattr(given_, name)
        assert {k: v.tolist() for k, v in one.items()} == {k: v.tolist() for k, v in other.items()}


VALUES = st.recursive(
    st.none() | st.floats() | st.text(max_size=4) | st.just([1, 2]),
    lambda inner: st.dictionaries(st.sampled_from(["v100", A, B, "null", "x"]), inner, max_size=3),
    max_leaves=6,
)


@given(st.binary(max_size=100) | VALUES.map(lambda v: json.dumps(v).encode()), st.sampled_from(["json", "csv", "yaml"]))
def test_any_other_file_is_read_or_an_input_error(tmp_path_factory, raw, suffix):
    path = tmp_path_factory.mktemp("t") / f"t.{suffix}"
    path.write_bytes(raw)
    try:
        found = read_throughputs(path)
    except InputError:
        return
    assert all((rates >= 0).all() and np.isfinite(rates).all() for rates in found.alone.values())


def test_published_measurements():
    for name in ("simulation", "physical_cluster"):
        path = reference(f"cluster/inputs/{name}_throughputs.json.gz")
        found = read_throughputs(path)
        assert found.types == ("v100", "p100", "k80")
        assert len(found.alone) == 83
        pair = ("ResNet-18 (batch size 16)", 1), ("ResNet-18 (batch size 32)", 1)
        k80 = json.loads(gzip.decompress(path.read_bytes()))["k80"]["('ResNet-18 (batch size 16)', 1)"]
        assert found.alone[pair[0]][2] == k80["null"]
        assert found.together[pair][2].tolist() == k80["('ResNet-18 (batch size 32)', 1)"]
        assert len(read_throughputs(path, "unconsolidated").alone) == 83
