"""Operations of every kind of layer: products as the model counts them, communication, precision."""

from dataclasses import replace
from functools import lru_cache

import pytest

from sim.costs import inputs
from sim.costs.algebra import Interpreted
from sim.costs.layers import ends
from sim.costs.layers.block import block, recomputed
from sim.costs.layers.ops import total
from sim.costs.layers.structure import Structure
from sim.costs.other_kernels import scan_times
from sim.costs.profile import load_profile
from sim.costs.run_level import RunLevel, symbol_values
from sim.engine.step import simulate
from sim.specs import Cluster, InputError, Model, Plan
from sim.specs.blocks import LETTERS
from sim.specs.catalog import models, precision

TINY = {
    "hidden": 1024, "heads": 16, "kv_heads": 8, "vocab": 32_000, "seq": 2048, "ffn": 4096, "moe_ffn": 512,
    "norm": "rmsnorm", "gated_mlp": True, "experts": 16, "experts_per_token": 2, "window": 512,
}  # fmt: skip
SHAPES = {
    "dense": Model(layers=1, pattern="T", **TINY),
    "eager": Model(layers=1, pattern="T", attention="eager", dropout=0.1, **TINY),
    "window": Model(layers=1, pattern="W", **TINY),
    "experts": Model(layers=2, pattern="XY", **TINY),
    "shared experts": Model(layers=1, pattern="X", shared_ffn=1024, **TINY),
    "latent experts": Model(layers=1, pattern="E", moe_latent=256, **TINY),
    "prediction": Model(layers=1, pattern="X", mtp_layers=1, **TINY),
    "mla": Model(layers=1, pattern="T", q_lora_rank=512, kv_lora_rank=256, rope_head_dim=32, v_head_dim=64, **TINY),
    "hybrid": Model(layers=4, pattern="M*-E", **TINY),
    "recurrent": Model(layers=2, pattern="LG", hidden=1024, heads=1, vocab=32_000, seq=64),
    "encoder": Model(layers=1, family="encoder", hidden=1024, heads=16, vocab=32_000, seq=512),
    "pair": Model(layers=2, family="encoder-decoder", encoder_layers=1, hidden=1024, heads=16, seq=512, vocab=32_000),
    "vit": Model(layers=1, family="vit", hidden=1024, heads=16, image_size=224, patch=14),
}
SPREADS = ({}, {"tp": 2}, {"tp": 4, "sequence_parallel": False}, {"tp": 4}, {"ep": 4})
CONVOLUTION = 5e-3
"""Mamba's short convolution is timed as memory traffic: its products, below this share, are not counted as FLOP."""


@lru_cache
def sums(structure):
    """Return the sums of seconds, FLOP and bytes of a structure's layers and ends, by kind and phase."""
    parts = {f"block{k}": block(kind, k) for k, kind in enumerate(structure.kinds)}
    parts |= {f"again{k}": recomputed(kind, k) for k, kind in enumerate(structure.kinds)}
    parts |= {"embedding": ends.embedding(structure), "head": ends.head(structure)}
    phases = ("forward", "backward_input", "backward_weight", "recompute")
    made = {
        f"{name} {kind} {phase} {quantity}": total(ops, quantity, kind, phase)
        for name, ops in parts.items()
        for kind in ("compute", "tp", "cp", "ep")
        for phase in phases
        for quantity in ("seconds", "flop", "bytes")
    }
    return Interpreted(made)  # most structures are asked about once or a few times


def measured(model, device="h100-sxm-80gb", nodes=8, **given):
    """Return the sums of one plan, by (part, kind, phase, quantity)."""
    cluster = Cluster.of(device, nodes=nodes)
    placed = Plan(global_batch=given.pop("global_batch", 1024), **given).on(model, cluster)
    values = (
        inputs.model_values(model)
        | inputs.cluster_values(cluster, load_profile(device))
        | inputs.plan_values(model, placed, cluster)
        | symbol_values(RunLevel())
    )
    return {tuple(k.split()): float(v) for k, v in sums(Structure.of(model))(values).items()}


def forward_flop(model, found):
    """Return the forward FLOP of a whole model on one rank for one microbatch."""
    layers = sum(n * found[f"block{k}", "compute", "forward", "flop"] for k, n in enumerate(model.blocks.values()))
    return layers + sum(found[end, "compute", "forward", "flop"] for end in ("embedding", "head"))


def test_every_letter_is_tried():
    assert set(LETTERS) == {b.letter for m in SHAPES.values() for b in m.blocks}


@pytest.mark.parametrize("name", sorted(models))
def test_catalog_models_do_their_flop(name):
    model = models[name]
    assert forward_flop(model, measured(model)) == pytest.approx(model.flop_per_sample() / 3, rel=CONVOLUTION)


def possible(name, spread):
    whole = SHAPES[name].seq % spread.get("tp", 1) == 0 or spread.get("sequence_parallel") is False
    return not (SHAPES[name].recurrent and "tp" in spread) and whole and (SHAPES[name].experts or "ep" not in spread)


@pytest.mark.parametrize(("name", "spread"), [(n, s) for n in SHAPES for s in SPREADS if possible(n, s)])
def test_ranks_together_do_the_models_flop(name, spread):
    model = SHAPES[name]
    found, tp = measured(model, **spread), spread.get("tp", 1)
    for k, b in enumerate(model.blocks):
        # MLA's way down is repeated on every rank without sequence parallelism.
        repeated = model.hidden * (model.q_lora_rank + model.kv_lora_rank + model.rope_head_dim)
        again = (tp - 1) * repeated if b.mixer == "mla" and spread.get("sequence_parallel") is False else 0
        products, core = b.seq * 2 * (b.active_products + again), b.seq * b.core_flop()
        forward, dgrad, wgrad = (
            tp * found[f"block{k}", "compute", phase, "flop"]
            for phase in ("forward", "backward_input", "backward_weight")
        )
        near = CONVOLUTION if b.mixer == "mamba" else 1e-9
        factor = 2 if b.mixer == "mamba" or (model.attention == "eager" and b.mixer == "attention") else 2.5
        assert forward == pytest.approx(products + core, rel=near)
        assert wgrad == pytest.approx(products, rel=near)
        assert dgrad == pytest.approx(products + factor * core, rel=near)


def test_context_parallel_ranks_share_tokens_and_keys():
    one, two = (measured(SHAPES["dense"], cp=n) for n in (1, 2))
    for phase in ("forward", "backward_input", "backward_weight"):
        assert one["block0", "compute", phase, "flop"] == 2 * two["block0", "compute", phase, "flop"]
    assert two["block0", "cp", "backward_input", "seconds"] > two["block0", "cp", "forward", "seconds"] > 0


def test_context_parallel_ranks_exchange_what_cross_attention_reads():
    """Keys and values of the decoder's tokens and of the encoder's, from all ranks; backward twice."""
    model = replace(SHAPES["pair"], encoder_seq=256)
    found = measured(model, cp=2)
    both = 2 * (model.seq + model.encoder_seq) * 2 * model.kv_width
    assert [found["block1", "cp", phase, "bytes"] for phase in ("forward", "backward_input")] == [both, 2 * both]


def test_context_parallel_ranks_exchange_heads_of_state_spaces():
    """All tokens of some heads for the scan, in the width of the in-projection, and one's own tokens back."""
    model, size = SHAPES["hybrid"], 2
    found = measured(model, cp=size)
    inner, states = model.ssm_width, 2 * model.ssm_groups * model.ssm_state
    sent = 2 * model.seq // size * (2 * inner + states + model.ssm_heads + inner)
    for phase in ("forward", "backward_input"):
        assert found["block0", "cp", phase, "bytes"] == sent
        assert found["block0", "cp", phase, "seconds"] > 0


@pytest.mark.parametrize(
    ("seq", "tokens_per_s"), [(4096, 12.06e6), (8192, 12.62e6), (16_384, 12.92e6), (65_536, 11.07e6)]
)
def test_a_scan_takes_the_measured_time(seq, tokens_per_s):
    """Forward of state-spaces/mamba's kernels on an H100, 128 heads of 64 columns, one group, states of 128 (vllm pull
    request 27299, comment of 2025-10-25, column "Original")."""
    size = {"ssm_heads": 128, "ssm_head_dim": 64, "ssm_groups": 1, "ssm_state": 128, "ssm_chunk": 256}
    model = Model(layers=1, pattern="M", hidden=4096, heads=32, vocab=1024, seq=seq, **size)
    operations = simulate(model, Cluster.of("h100-sxm-80gb", nodes=1), Plan(global_batch=8)).operations
    took = {op.name: op.seconds for op in operations if op.name.startswith("scan")}
    assert took["scan forward"] == pytest.approx(seq / tokens_per_s, rel=0.13)
    assert 2 < took["scan backward"] / took["scan forward"] < 4


@pytest.mark.parametrize(("device", "same"), [("a100-sxm-80gb", True), ("h200-sxm-141gb", True), ("gb300", False)])
def test_a_scan_leaves_newer_matrix_units_idle(device, same):
    """Its products are as fast as attention's, on Blackwell forward no faster per SM and clock than on Hopper; backward
    it takes as long as on an H200."""
    model = Model(layers=1, pattern="M", hidden=4096, heads=32, vocab=1024, seq=8192)
    step = simulate(model, Cluster.of(device, nodes=1), Plan(global_batch=8))
    said = [text for text in step.assumptions if text.startswith("scans of state spaces")]
    assert (said == []) == same
    times = scan_times(Cluster.of(device, nodes=1))
    assert set(times) == {"scan_forward", "scan_backward", "scan_traffic"}
    assert (set(times.values()) == {1.0}) == same
    if not same:
        hopper = simulate(model, Cluster.of("h100-sxm-80gb", nodes=1), Plan(global_batch=8))
        took, on_hopper = ({op.name: op.seconds for op in s.operations} for s in (step, hopper))
        assert 0.6 < took["scan forward"] / on_hopper["scan forward"] < 0.9  # of a GB200 over an H200: 0.75
        assert 0.8 < took["scan backward"] / on_hopper["scan backward"] < 1  # whose memory is slower than an H200's


@pytest.mark.parametrize(
    ("given", "copies"),
    [({"micro_batch": 1}, 0), ({"micro_batch": 2}, 2), ({"micro_batch": 2, "framework": "torch"}, 0)],
)
def test_scans_of_several_samples_are_turned_before_and_behind(given, copies):
    """[token, sample] to [sample, token], of what the in-projection gives and of what the scan does."""
    model = Model(layers=1, pattern="M", hidden=4096, heads=32, vocab=1024, seq=8192)
    step = simulate(model, Cluster.of("h100-sxm-80gb", nodes=1), Plan(**{"global_batch": 16} | given))
    found = {op.name: op for op in step.operations if op.name.startswith("scan layout")}
    assert set(found) == ({"scan layout", "scan layout dgrad"} if copies else set())
    for op in found.values():
        assert op.launches == copies
        assert op.bytes == 2 * 2 * 2 * 8192 * (
            3 * model.ssm_width + 2 * model.ssm_groups * model.ssm_state + model.ssm_heads
        )


def test_a_sequence_shorter_than_a_chunk_is_one():
    size = {"ssm_heads": 8, "ssm_head_dim": 64, "ssm_groups": 1, "ssm_state": 16, "seq": 128}
    model = Model(layers=1, pattern="M", hidden=256, heads=4, vocab=1024, **size)
    short, whole, half = (
        simulate(replace(model, ssm_chunk=chunk), Cluster.of("h100-sxm-80gb", nodes=1), Plan(global_batch=8))
        for chunk in (65_536, 128, 64)
    )
    assert short.operations == whole.operations != half.operations and short.mfu == whole.mfu


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_one_rank_does_not_communicate(name):
    found = measured(SHAPES[name])
    assert not any(v for (_, kind, _, what), v in found.items() if kind != "compute" and what == "seconds")
    assert all(v >= 0 for v in found.values())
    assert all(found[f"block{k}", "compute", "forward", "bytes"] > 0 for k in range(len(SHAPES[name].blocks)))


@pytest.mark.parametrize("name", [n for n in SHAPES if possible(n, {"tp": 2})])
def test_tensor_parallel_ranks_communicate_in_both_passes(name):
    model = SHAPES[name]
    for sharded in (True, False):
        found = measured(model, tp=2, sequence_parallel=sharded)
        for k, b in enumerate(model.blocks):
            talks = not (b.letter == "E" and sharded)  # each rank's experts take its own part of the tokens
            for phase in ("forward", "backward_input"):
                assert (found[f"block{k}", "tp", phase, "seconds"] > 0) == talks


def test_expert_parallelism_keeps_the_work_and_moves_rows():
    model = SHAPES["experts"]
    one, four = (measured(model, ep=n) for n in (1, 4))
    key = ("block0", "compute", "forward", "flop")
    assert one[key] == pytest.approx(four[key])
    assert one["block0", "ep", "forward", "seconds"] == 0 < four["block0", "ep", "forward", "seconds"]
    split = measured(model, tp=2, ep=4, etp=2)
    assert split[key] * 2 == pytest.approx(one[key])


@pytest.mark.parametrize("change", [{"capacity_factor": 1.5}, {"imbalance": 1.5}])
def test_load_scales_expert_rows_only(change):
    model = SHAPES["experts"]
    even, uneven = (measured(m, ep=4) for m in (model, replace(model, **change)))
    b = next(iter(model.blocks))
    routed = b.seq * 2 * model.experts_per_token * 3 * model.hidden * model.moe_ffn
    key = ("block0", "compute", "forward", "flop")
    assert uneven[key] - even[key] == pytest.approx(0.5 * routed)
    sent = ("block0", "ep", "forward", "bytes")
    assert uneven[sent] == pytest.approx(1.5 * even[sent])


def test_no_rank_has_more_rows_than_there_are():
    model = SHAPES["experts"]
    for ep in (1, 2, 4):
        most, even = (measured(replace(model, imbalance=n), ep=ep) for n in (1_000.0, float(ep)))
        assert most == even


def test_latent_experts_send_narrow_rows():
    wide, narrow = (measured(replace(SHAPES["latent experts"], moe_latent=n), ep=8) for n in (0, 256))
    key = ("block0", "ep", "forward", "bytes")
    assert wide[key] == pytest.approx(4 * narrow[key])


@pytest.mark.parametrize("name", ["dense", "experts", "mla", "hybrid", "pair"])
def test_full_recompute_repeats_forward_and_its_collectives(name):
    spread = {"tp": 2, "ep": 2} if SHAPES[name].experts else {"tp": 2}
    none, full = (measured(SHAPES[name], recompute=r, **spread) for r in ("none", "full"))
    for k in range(len(SHAPES[name].blocks)):
        for kind in ("compute", "tp", "ep"):
            assert none[f"again{k}", kind, "recompute", "seconds"] == 0
            assert full[f"again{k}", kind, "recompute", "seconds"] == pytest.approx(
                full[f"block{k}", kind, "forward", "seconds"]
            )


@pytest.mark.parametrize(("name", "whole"), [("dense", 0), ("eager", 1)])
def test_torchs_selective_recompute_repeats_stored_scores(name, whole):
    """Every second product of weights, and of the core what no fused kernel does: its batched products too."""
    model = SHAPES[name]
    found = measured(model, recompute="selective", framework="torch")
    b = next(iter(model.blocks))
    core = b.seq * b.core_flop()
    products = found["block0", "compute", "forward", "flop"] - core
    assert found["again0", "compute", "recompute", "flop"] == pytest.approx(products / 2 + whole * core)


@pytest.mark.parametrize(("device", "recipe"), [("h100-sxm-80gb", "fp8"), ("b200", "mxfp8"), ("b200", "nvfp4")])
def test_low_precision_is_faster_for_large_products_only_in_layers(device, recipe):
    model = models["llama3-70b"]
    usual, low = (measured(model, device, precision=p, tp=8, micro_batch=4) for p in ("bf16", recipe))
    for phase in ("forward", "backward_input", "backward_weight"):
        assert low["block0", "compute", phase, "seconds"] < usual["block0", "compute", phase, "seconds"]
        assert low["head", "compute", phase, "seconds"] == usual["head", "compute", phase, "seconds"]
        assert low["block0", "compute", phase, "flop"] == usual["block0", "compute", phase, "flop"]


def test_a_short_window_costs_fused_attention_as_much_as_a_short_sequence():
    """Per FLOP: blocks of queries pass whole blocks of keys."""
    per_flop = {}
    for window, seq in ((128, 2048), (2048, 2048), (512, 512)):
        model = replace(SHAPES["window"], window=window, seq=seq)
        step = simulate(model, Cluster.of("h200-sxm-141gb", nodes=1), Plan(global_batch=64, micro_batch=8))
        op = next(op for op in step.operations if op.name == "attention forward")
        per_flop[window, seq] = op.seconds / op.flop
    assert per_flop[128, 2048] > 1.5 * per_flop[2048, 2048]
    assert per_flop[512, 512] > 1.2 * per_flop[2048, 2048]


def test_casts_to_blocks_of_32_take_longer_than_what_they_move():
    recipe = precision("mxfp8")
    assert recipe.cast_rate is not None and precision("fp8").cast_rate is None
    on = load_profile("b200-2026").model_of(("elementwise", "any")).parameters["bandwidth"]
    moved = recipe.cast_bytes_per_element.value * 8192**2
    assert moved / (recipe.cast_rate.value * on) == pytest.approx(52.3e-6, rel=0.02)


@pytest.mark.parametrize("recipe", ["fp8", "mxfp8", "nvfp4"])
def test_a_device_without_such_units_refuses(recipe):
    with pytest.raises(InputError, match=r"plan\.precision.*bf16"):
        measured(SHAPES["dense"], "a100-sxm-80gb", precision=recipe)


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_compiling_moves_fewer_bytes(name):
    plain, fused = (measured(SHAPES[name], compiled=c, recurrent_kernel="default") for c in (False, True))
    for k in range(len(SHAPES[name].blocks)):
        key = (f"block{k}", "compute", "forward")
        assert fused[*key, "bytes"] < plain[*key, "bytes"]
        assert fused[*key, "seconds"] < plain[*key, "seconds"]
        assert fused[*key, "flop"] == plain[*key, "flop"]


@pytest.mark.parametrize("tp", [1, 4])
def test_norms_of_queries_and_keys_move_every_heads_rows(tp):
    """x read and y written, dy and x read and dx written, of 16 heads' queries and 8 heads' keys over the ranks."""
    usual, normed = (measured(replace(SHAPES["dense"], qk_norm=q), tp=tp) for q in (False, True))
    element = 2 * SHAPES["dense"].tokens_per_sample * (16 + 8) * 64 / tp
    for phase, moves in (("forward", 2), ("backward_input", 3)):
        more, longer = (normed[k] - usual[k] for k in (("block0", "compute", phase, q) for q in ("bytes", "seconds")))
        assert more == pytest.approx(moves * element)
        assert longer > 0
    whole = measured(replace(SHAPES["dense"], qk_norm=True, whole_qk_norm=True), tp=tp)
    assert {k: v for k, v in whole.items() if k[-1] == "bytes"} == {k: v for k, v in normed.items() if k[-1] == "bytes"}
