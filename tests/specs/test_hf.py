"""Reading Hugging Face configs."""

import json
from dataclasses import replace

import pytest

from sim.specs import InputError, Model
from sim.specs.catalog import models
from sim.specs.model_file import read_model
from tests.oracle import ROOT

LLAMA = ROOT / "notebooks" / "jobs" / "llama3-70b" / "config.json"


def test_llama_config_is_the_catalog_model():
    read = replace(Model.from_hf(LLAMA), name="llama3-70b")
    assert read.parameters == models["llama3-70b"].parameters
    assert (read.seq, read.kv_heads, read.gated_mlp, read.norm) == (8192, 8, True, "rmsnorm")


def test_gpt2_config(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(
        json.dumps({"model_type": "gpt2", "n_layer": 48, "n_embd": 1600, "n_head": 25, "n_positions": 1024})
    )
    assert Model.from_hf(file).parameters == models["gpt2-xl"].parameters


def test_sequence_may_be_given():
    assert Model.from_hf(LLAMA, seq=4096).seq == 4096


def test_long_context_is_cut_and_said(tmp_path):
    config = json.loads(LLAMA.read_text()) | {"max_position_embeddings": 131_072}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    read = Model.from_hf(file)
    assert read.seq == 8192
    assert any("131072" in text for text in read.assumptions)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"model_type": "mamba"}, "model_type"),
        ({"hidden_size": None}, "hidden"),
        ({"num_key_value_heads": 7}, "kv_heads"),
    ],
)
def test_bad_config(tmp_path, change, path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(LLAMA.read_text()) | change))
    with pytest.raises(InputError, match=path):
        Model.from_hf(file)


def test_another_sequence_keeps_the_table_of_positions(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "gpt2", "n_layer": 48, "n_embd": 1600, "n_head": 25}))
    shorter = Model.from_hf(file, seq=512)
    assert (shorter.seq, shorter.max_positions) == (512, 1024)
    assert shorter.parameters == models["gpt2-xl"].parameters
    longer, (job, _) = Model.from_hf(file, seq=4096), read_model({"base": "config.json", "seq": 4096}, tmp_path)
    assert longer.parameters == job.parameters == shorter.parameters + (4096 - 1024) * 1600
    file.write_text(
        json.dumps({"model_type": "gpt2", "n_layer": 48, "n_embd": 1600, "n_head": 25, "n_positions": "1k"})
    )
    with pytest.raises(InputError, match="got '1k'"):
        Model.from_hf(file, seq=4096)
