"""What holds for every model: parts add up, layers add up, few experts are active."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.specs import InputError, Model
from sim.specs.catalog import models as catalog
from sim.specs.resized import resized

LETTERS = st.text("TWXY", min_size=1, max_size=12) | st.text("M*-E", min_size=1, max_size=12)


@st.composite
def models(draw, pattern=LETTERS):
    letters, heads = draw(pattern), draw(st.sampled_from([1, 2, 4, 8]))
    mla = draw(st.booleans()) and not set(letters) & set("M*-E")
    experts = draw(st.integers(1, 16))
    return Model(
        layers=len(letters),
        pattern=letters,
        hidden=draw(st.integers(1, 8)) * 64,
        heads=heads,
        kv_heads=draw(st.sampled_from([n for n in (1, 2, 4, 8) if n <= heads])),
        gated_mlp=draw(st.booleans()),
        norm=draw(st.sampled_from(["layernorm", "rmsnorm"])),
        window=draw(st.integers(1, 64)),
        seq=draw(st.integers(1, 512)),
        experts=experts,
        experts_per_token=draw(st.integers(1, experts)),
        shared_ffn=draw(st.sampled_from([0, 96])),
        moe_latent=draw(st.sampled_from([0, 32])),
        qk_norm=draw(st.booleans()),
        whole_qk_norm=draw(st.booleans()),
        mtp_layers=draw(st.integers(0, 2)),
        **({"kv_lora_rank": 32, "rope_head_dim": 8, "q_lora_rank": draw(st.sampled_from([0, 16]))} if mla else {}),
    )


@given(models())
def test_parameters_are_the_sum_of_the_parts(model):
    blocks = sum(
        n * (b.split_parameters + b.repeated_parameters + b.expert_parameters) for b, n in model.blocks.items()
    )
    ends = model.embedding_parameters + model.head_parameters + model.final_norms * model.norm_parameters
    assert model.parameters == blocks + ends
    assert sum(model.blocks.values()) == model.layers + model.mtp_layers


@given(models())
def test_layers_add_up(model):
    twice = replace(model, pattern=model.pattern * 2, layers=2 * model.layers)
    thrice = replace(model, pattern=model.pattern * 3, layers=3 * model.layers)
    assert thrice.parameters - twice.parameters == twice.parameters - model.parameters
    assert thrice.flop_per_sample() - twice.flop_per_sample() == pytest.approx(
        twice.flop_per_sample() - model.flop_per_sample()
    )


@given(models())
def test_active_parameters_are_at_most_all(model):
    assert 0 < model.active_parameters <= model.parameters
    every = replace(model, experts_per_token=model.experts)
    assert every.active_parameters == every.parameters
    assert every.flop_per_sample() >= model.flop_per_sample()


@given(models())
def test_no_convention_counts_fewer_keys(model):
    for block in model.blocks:
        assert 0 <= block.keys() <= block.keys("palm")
        assert block.core_flop() <= block.core_flop("palm")


@given(models(), st.integers(1, 40))
def test_a_wrong_length_of_the_pattern_is_refused(model, layers):
    if layers != model.layers:
        with pytest.raises(InputError, match="pattern"):
            replace(model, pattern=model.pattern, layers=layers)


@given(st.integers(1, 24), st.integers(0, 8), st.integers(0, 24), st.integers(1, 6))
def test_letters_follow_from_the_counts(layers, global_every, dense_layers, moe_every):
    shape = {"layers": layers, "hidden": 64, "heads": 1}
    local = Model(window=4, global_every=global_every, **shape)
    wide = layers // global_every if global_every else 0
    assert (local.pattern.count("T"), local.pattern.count("W")) == (wide, layers - wide)
    sparse = Model(experts=4, dense_layers=dense_layers, moe_every=moe_every, **shape)
    assert sparse.pattern.startswith("T" * min(dense_layers, layers))
    assert sparse.pattern.count("X") == max(0, layers - dense_layers) // moe_every


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"pattern": "TP"}, "pattern"),
        ({"pattern": "XX"}, "experts"),
        ({"pattern": "WW"}, "window"),
        ({"experts": 4, "experts_per_token": 5}, "experts_per_token"),
        ({"kv_lora_rank": 8}, "rope_head_dim"),
        ({"encoder_layers": 3}, "encoder_layers"),
        ({"family": "encoder-decoder"}, "encoder_layers"),
        ({"family": "encoder-decoder", "encoder_layers": 3}, "encoder_layers"),
        ({"family": "vit", "patch": 15}, "patch"),
        ({"family": "vit", "seq": 196}, "seq"),
        ({"family": "vit", "classes": 10, "vocab": 1000}, "vocab"),
        ({"family": "vit", "tied_embeddings": True}, "tied_embeddings"),
        ({"family": "encoder", "mtp_layers": 1}, "mtp_layers"),
        ({"kv_heads": 3}, "kv_heads"),
        ({"seq": 2048, "max_positions": 512}, "max_positions"),
    ],
)
def test_contradictions(changes, path):
    with pytest.raises(InputError) as caught:
        Model(**({"layers": 2, "hidden": 64, "heads": 4} | changes))
    assert caught.value.path == path


def test_the_classifier_follows_from_the_classes():
    assert resized(catalog["vit-l"], {"classes": 21_843}).vocab == 21_843


def test_experts_that_no_layer_has_are_noted():
    dense = Model(layers=2, hidden=64, heads=4, experts=4, shared_ffn=64, dense_layers=2)
    assert [note for note in dense.assumptions if "ignored" in note] == [
        f"model.{name} is ignored: no layer has experts" for name in ("experts = 4", "shared_ffn = 64")
    ]
    sparse = Model(layers=2, hidden=64, heads=4, experts=4, shared_ffn=64, dense_layers=1)
    assert not any("ignored" in note for note in sparse.assumptions)
    loaded = Model(layers=2, hidden=64, heads=4, imbalance=2.0).assumptions
    assert "model.imbalance = 2.0 is ignored: no layer has experts" in loaded


def test_a_window_that_no_layer_has_is_noted():
    shape = {"layers": 2, "hidden": 64, "heads": 4, "window": 16}
    note = "model.window = 16 is ignored: no layer has a window"
    assert note in Model(family="encoder", **shape).assumptions
    assert note not in Model(**shape).assumptions


def test_norms_over_all_heads_are_noted():
    """OLMo 2: 64 queries and 32 keys have one weight each; with norms of every head 2 x 16 would."""
    shape = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "norm": "rmsnorm"}
    whole, each = (Model(qk_norm=True, whole_qk_norm=w, **shape) for w in (True, False))
    assert whole.parameters - each.parameters == 2 * (64 + 32 - 2 * 16)
    assert [sum("row sums" in text for text in m.assumptions) for m in (whole, each)] == [1, 0]
    note = "model.whole_qk_norm = True is ignored: no layer has norms of queries and keys"
    assert note in Model(whole_qk_norm=True, **shape).assumptions


def test_a_table_of_positions_grows_with_the_sequence():
    assert resized(catalog["opt-6.7b"], {"seq": 4096}).max_positions == 4096
    assert resized(catalog["opt-6.7b"], {"seq": 1024}).max_positions == 2050
