"""Models in files: another one, by name or config, with some of its fields changed."""

import json

import pytest

from sim.specs import InputError, Job, Model
from sim.specs.catalog import models
from sim.specs.model_file import read_model
from sim.specs.resized import resized
from tests.oracle import ROOT
from tests.specs.test_traced import TABLE

LLAMA = json.loads((ROOT / "notebooks" / "jobs" / "llama3-70b" / "config.json").read_text())


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "hf.json").write_text(json.dumps(LLAMA | {"max_position_embeddings": 131_072}))
    (tmp_path / "gpt2.json").write_text(json.dumps({"model_type": "gpt2", "n_layer": 48, "n_embd": 1600, "n_head": 25}))
    return tmp_path


def changed(folder, **raw):
    model, problems = read_model(raw, folder)
    assert not problems
    return model


def test_a_job_trains_a_config_at_its_whole_context(folder):
    job = "model: {base: hf.json, seq: 131072}\ncluster: {device: l4}\n"
    (folder / "job.yaml").write_text(job)
    model = Job.load(folder / "job.yaml").model
    assert model.seq == 131_072
    assert not any(line.startswith("model.seq") for line in model.assumptions)
    assert model == Model.from_hf(folder / "hf.json", seq=131_072)


def test_what_the_note_of_the_cut_says_to_write_is_read(folder):
    (note,) = (line for line in changed(folder, base="hf.json", layers=8).assumptions if "131072" in line)
    assert "model: {base: hf.json, seq: 131072}" in note


@pytest.mark.parametrize("name", ["gpt3-175b", "bert-large", "gemma2-9b", "deepseek-v3", "lstm-lm", "t5-base"])
def test_a_base_alone_is_the_model(folder, name):
    assert changed(folder, base=name) == models[name]


def test_what_followed_follows_anew(folder):
    wider = changed(folder, base="bert-large", hidden=2048, heads=32)
    assert (wider.head_dim, wider.kv_heads, wider.ffn) == (64, 32, 4096)
    assert wider.pattern == models["bert-large"].pattern
    assert changed(folder, base="gemma2-9b", layers=4).pattern == models["gemma2-9b"].pattern[:4]


def test_other_layers_of_an_encoder_decoder_are_half_of_its_encoders(folder):
    model = changed(folder, base="t5-large", layers=36)
    assert (model.encoder_layers, model.pattern) == (18, "N" * 18 + "C" * 18)
    assert "model.encoder_layers = 18 (half of layers, which are of both stacks)" in model.assumptions
    assert changed(folder, base="t5-large", layers=36, encoder_layers=24).encoder_layers == 24
    assert resized(models["t5-large"], {"layers": 96}).encoder_layers == 48


def test_nothing_of_a_traced_network_is_resized():
    with pytest.raises(InputError, match=r"seq: got 8; allowed: left alone: nothing of a traced network"):
        resized(Model.from_table(TABLE), {"seq": 8})


@pytest.mark.parametrize(("seq", "rows"), [(512, 1024), (2048, 2048)])
def test_a_stated_table_of_positions_holds_what_is_shorter(folder, seq, rows):
    assert changed(folder, base="gpt2.json", seq=seq).max_positions == rows


def test_a_recurrent_model_stays_recurrent():
    assert resized(models["lstm-lm"], {"seq": 99}).pattern == models["lstm-lm"].pattern


def test_a_traced_network_is_no_base(folder):
    TABLE.save(folder / "table.json")
    model, problems = read_model({"base": "table.json", "seq": 8}, folder)
    assert model is None
    assert "nothing of a traced network can be changed" in str(problems[0])
