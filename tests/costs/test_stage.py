"""The stage model: limits, monotony and the published layer times."""

import csv
from dataclasses import replace

import pytest

from sim.costs.algebra import compile_expressions
from sim.costs.inputs import cluster_values, model_values, plan_values
from sim.costs.layers.block import block
from sim.costs.layers.ops import total
from sim.costs.layers.structure import BlockKind
from sim.costs.profile import load_profile
from sim.costs.run_level import run_level, symbol_values
from sim.engine.placed import stage_costs
from sim.specs import Cluster, InputError, Links, Model, Plan
from sim.specs.catalog import models
from tests.oracle import reference


def costs(model, plan, device="a100-sxm-80gb", nodes=1):
    cluster = Cluster.of(device, nodes=nodes)
    return stage_costs(model, cluster, plan.on(model, cluster), load_profile(device))


def test_weights_gradients_and_states_are_18_bytes():
    m = models["llama3-8b"]
    c = costs(m, Plan(tp=8, global_batch=1))
    held = c["parameters_only"] + c["gradients_only"] + c["optimizer_bytes_only"]
    repeated = 7 * (2 * m.layers + 1) * m.norm_parameters  # every tensor-parallel rank holds the norms
    assert held * 8 == 18 * (m.parameters + repeated)


@pytest.mark.parametrize(("zero", "bytes_per_parameter"), [(0, 18), (1, 6 + 12 / 8), (2, 2 + 16 / 8), (3, 18 / 8)])
def test_zero_shards_what_it_says(zero, bytes_per_parameter):
    m = models["llama3.2-1b"]
    c = costs(m, Plan(global_batch=8, zero=zero))
    held = c["parameters_only"] + c["gradients_only"] + c["optimizer_bytes_only"]
    assert held == pytest.approx(bytes_per_parameter * m.parameters)


def test_fsdp2_shards_fp32_parameters():
    """16 bytes a parameter; beside them root group and two blocks in 16 bit, and the head's gradient."""
    m = models["llama3-8b"]
    c = costs(m, Plan(global_batch=8, zero=3, framework="torch"))
    held = c["parameters_only"] + c["gradients_only"] + c["optimizer_bytes_only"]
    assert held == pytest.approx(16 / 8 * m.parameters)
    layer, table = next(iter(m.blocks)).parameters, m.vocab * m.hidden
    root = 2 * table + m.norm_parameters
    head = table + m.norm_parameters
    assert c["gathered_bytes_only"] == pytest.approx(2 * (2 * layer + root) + 2 * head)


@pytest.mark.parametrize(("seq", "batch"), [(4_096, 1), (8_192, 2)])
def test_fsdp2s_unreduced_gradients(seq, batch):
    """A layer's in 16 bit, and in fp32 those of the layer above it, whose activations are gone by then."""
    m = replace(models["llama3-8b"], seq=seq)
    plan = Plan(global_batch=8 * batch, micro_batch=batch, framework="torch")
    sharded, whole = (costs(m, plan.but(zero=z)) for z in (3, 0))
    layer, kept = next(iter(m.blocks)).parameters, sharded["saved_bytes"] / m.layers
    more = sharded["backward_temporary_bytes"] - whole["backward_temporary_bytes"]
    assert more == pytest.approx(6 * layer - min(4 * layer, kept))


@pytest.mark.parametrize(("zero", "held"), [(0, 2), (1, 2), (2, 0), (3, 0)])
def test_one_layers_gradients_exist_in_16_bit(zero, held):
    m = models["llama3-8b"]
    c = costs(m, Plan(tp=2, global_batch=4, zero=zero))
    layer = next(iter(m.blocks))
    assert c["product_gradients_only"] == held * (layer.split_parameters / 2 + layer.repeated_parameters)


def test_latent_experts_do_the_models_products():
    m = Model(
        layers=2, hidden=256, heads=4, seq=128, pattern="EE", experts=8, experts_per_token=2, moe_ffn=128,
        moe_latent=64, shared_ffn=96,
    )  # fmt: skip
    ops = block(BlockKind.of(next(iter(m.blocks))), 0)
    flop = compile_expressions({"x": total(ops, "flop", "compute", "forward")})
    plan = Plan(global_batch=8, ep=4)
    cluster = Cluster.of("h100-sxm-80gb")
    values = model_values(m) | plan_values(m, plan.on(m, cluster), cluster)
    values |= cluster_values(cluster, load_profile("h100-sxm-80gb")) | symbol_values(run_level().parameters)
    assert flop(values)["x"] == pytest.approx(2 * 128 * next(iter(m.blocks)).active_products)


MIXTURE = models["mixtral-8x7b"]


def test_exchanges_hide_beside_the_other_pass_of_another_microbatch():
    """But for the first forward and the last backward of a step, which have none beside them; what is left of the
    others is what both slow each other by. A forward keeps a layer when the backward beside it lets go of one."""
    plan = Plan(ep=8, global_batch=64)
    alone, beside = (costs(MIXTURE, plan.but(ep_overlap=on)) for on in (False, True))
    both, left = (c["forward_ep"] + c["input_ep"] for c in (alone, beside))
    assert both < alone["forward_compute"]  # so that none outlasts its cover
    compute, inner = (alone[f"pair_{part}_slowed"] for part in ("compute", "inner"))
    slower = (1 + inner) * compute / (1 + compute)
    assert left == pytest.approx((1 / 8 + 7 / 8 * slower) * both)
    one_layer = alone["saved_bytes"] / MIXTURE.layers
    assert beside["backward_temporary_bytes"] - alone["backward_temporary_bytes"] == pytest.approx(one_layer)
    one = plan.but(global_batch=8)
    assert costs(MIXTURE, one.but(ep_overlap=True)) == costs(MIXTURE, one)
    assert {k: v for k, v in beside.items() if alone[k] != v}.keys() >= {"forward_ep", "input_ep"}


def test_exchanges_longer_than_their_cover_are_waited_for():
    slow = Links(inter_bytes_per_s_per_node=1e8)
    cluster = Cluster.of("a100-sxm-80gb", nodes=8, gpus_per_node=1, links=slow)
    profile = load_profile("a100-sxm-80gb")
    alone, beside = (
        stage_costs(MIXTURE, cluster, Plan(ep=8, global_batch=8 * 1024, ep_overlap=on).on(MIXTURE, cluster), profile)
        for on in (False, True)
    )
    (before, after), cover = (
        [c["forward_ep"] + c["input_ep"] for c in (alone, beside)],
        sum(alone[name] for name in ("forward_compute", "input_compute", "weight_compute")),
    )
    assert after == pytest.approx(before - cover, rel=0.02)


@pytest.mark.parametrize(
    ("plan", "said"),
    [({"pp": 2}, "false with schedule 1f1b"), ({"recompute": "full"}, "false with recompute full")],
)
def test_exchanges_hide_only_where_passes_alternate(plan, said):
    with pytest.raises(InputError, match=rf"plan.ep_overlap.*{said}"):
        costs(MIXTURE, Plan(ep=4, global_batch=64, ep_overlap=True, **plan))
    costs(MIXTURE, Plan(global_batch=64, ep_overlap=True, **plan))  # nothing is exchanged


def test_full_recompute_repeats_the_forward_pass():
    m = models["gpt3-175b"]
    none, full = (costs(m, Plan(tp=8, global_batch=1, recompute=r)) for r in ("none", "full"))
    assert full["recompute"] == pytest.approx(none["forward_compute"])
    assert full["saved_bytes"] < none["saved_bytes"] / 15


def test_pytorchs_full_recompute_stops_before_the_last_product():
    """Once the last product's input is back nothing more is needed: no product, no sum over ranks, no residual."""
    m = models["llama3-8b"]
    given = {"tp": 2, "global_batch": 4, "recompute": "full"}
    megatron, torch = (costs(m, Plan(**given, framework=f)) for f in ("megatron", "torch"))
    last = 2 * m.seq * m.ffn / 2 * m.hidden * m.layers
    assert megatron["recompute_flop"] - torch["recompute_flop"] == pytest.approx(last)
    assert torch["recompute"] < megatron["recompute"] and torch["input_tp"] < megatron["input_tp"]
    dropped = replace(m, dropout=0.1)  # its mask is the last tensor that is saved
    assert costs(dropped, Plan(**given, framework="torch"))["recompute"] == pytest.approx(
        costs(dropped, Plan(**given))["recompute"]
    )


def test_a_message_that_blocks_stops_both_its_ends():
    m = models["gpt3-175b"]
    beside, alone = (costs(m, Plan(pp=4, tp=2, global_batch=8, blocking_sends=b)) for b in (False, True))
    message = beside["send"]
    assert message > 0 and alone["send"] == 0 and beside["forward_pp"] == 0
    assert alone["forward_pp"] == alone["input_pp"] == pytest.approx(2 * message)
    assert alone["embedding_forward_pp"] == alone["head_input_pp"] == pytest.approx(-message)
    two = [costs(m, Plan(pp=2, tp=4, global_batch=8, blocking_sends=b)) for b in (False, True)]
    assert two[1]["forward_pp"] == pytest.approx(two[0]["send"]) and two[1]["head_input_pp"] == 0
    assert costs(m, Plan(tp=8, global_batch=8, blocking_sends=True)) == costs(m, Plan(tp=8, global_batch=8))


@pytest.mark.parametrize("pp", [2, 4])
def test_only_those_that_receive_a_message_in_parts_gather_it(pp):
    """Stages at an end of the pipeline only send or only receive in a pass, and the other way round in the next."""
    m, given = models["gpt3-175b"], {"pp": pp, "tp": 8, "global_batch": 8}
    going, coming = (costs(m, Plan(**given, sequence_parallel=parts), nodes=4)["send"] for parts in (True, False))
    assert coming > 1.1 * going > 0
    c = costs(m, Plan(**given, sequence_parallel=False, blocking_sends=True), nodes=4)
    ends = {
        (end, way): c[f"{way}_pp"] + c[f"{end}_{way}_pp"]
        for end in ("embedding", "head")
        for way in ("forward", "input")
    }
    assert ends["embedding", "forward"] == pytest.approx(going) == ends["head", "input"]
    assert ends["embedding", "input"] == pytest.approx(coming) == ends["head", "forward"]
    if pp > 2:
        assert c["forward_pp"] == c["input_pp"] == pytest.approx(coming + going)


def test_work_is_split_over_tensor_parallel_ranks():
    m = models["gpt3-175b"]
    one, eight = (costs(m, Plan(tp=t, global_batch=8)) for t in (1, 8))
    assert one["weight_compute"] == pytest.approx(8 * eight["weight_compute"], rel=0.15)
    assert one["forward_tp"] == 0


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_without_overlap_backward_waits_for_every_collective(sequence_parallel):
    """Megatron-LM's table: as many bytes backward as forward, so waiting costs backward what it costs forward."""
    m = models["gpt3-175b"]
    given = {"tp": 8, "global_batch": 8, "sequence_parallel": sequence_parallel}
    beside, alone = (costs(m, Plan(**given, tp_overlap=o)) for o in (True, False))
    gathered_again = 1.5 if sequence_parallel else 1.0
    assert alone["input_tp"] == pytest.approx(gathered_again * alone["forward_tp"])
    assert beside["input_tp"] < alone["input_tp"] and beside["head_input_tp"] < alone["head_input_tp"]
    changed = {k for k in alone if alone[k] != pytest.approx(beside[k])}
    assert changed <= {"input_tp", "head_input_tp", "backward_host", "forward_lead"}


@pytest.mark.parametrize("change", [{"tp_overlap": False}, {"tp_comm_overlap": True}])
def test_overlap_is_of_no_matter_without_tensor_parallelism(change):
    m = models["llama3-8b"]
    assert costs(m, Plan(global_batch=8, **change)) == costs(m, Plan(global_batch=8))


def test_what_runs_in_pieces_leaves_one_of_them_and_what_it_slows():
    """The four collectives of a forward layer, all shorter than their products, and the two that wait backward; of
    both all pieces but one run side by side."""
    m, tp = models["gpt3-175b"], 4
    alone, pieces = (costs(m, Plan(tp=tp, global_batch=8, tp_comm_overlap=on)) for on in (False, True))
    left = 1 / tp + (1 - 1 / tp) * run_level().parameters.overlap_slowdown
    assert pieces["forward_tp"] == pytest.approx(left * alone["forward_tp"])
    waits = alone["forward_tp"] / 2
    assert alone["input_tp"] - pieces["input_tp"] == pytest.approx((1 - left) * waits)
    again = [costs(m, Plan(tp=tp, global_batch=8, recompute="full", tp_comm_overlap=on)) for on in (False, True)]
    assert again[1]["input_tp"] < again[0]["input_tp"]


def test_pieces_are_of_what_sequence_parallelism_moves_around_plain_layers():
    whole = Plan(tp=2, global_batch=8, sequence_parallel=False, tp_comm_overlap=True)
    with pytest.raises(InputError, match=r"plan.tp_comm_overlap.*false without sequence_parallel"):
        costs(models["llama3-8b"], whole)
    latent = Model(layers=4, hidden=2048, heads=16, kv_lora_rank=256, rope_head_dim=32, head_dim=128)
    plain = replace(latent, kv_lora_rank=0, rope_head_dim=0)
    saved = []
    for model in (latent, plain):
        off, on = (costs(model, Plan(tp=2, global_batch=8, tp_comm_overlap=on))["forward_tp"] for on in (False, True))
        saved.append(off - on)
    assert 0 < saved[0] < saved[1]  # its MLP alone


def test_zero_3_gathers_in_every_pass():
    m = models["llama3-8b"]
    one, three = (costs(m, Plan(global_batch=16, zero=z, overlap_dp=False), nodes=2) for z in (1, 3))
    assert one["forward_dp"] == one["backward_dp"] == 0
    assert three["forward_dp"] > 0
    assert three["backward_dp"] > three["forward_dp"]
    assert three["reduce_only"] < one["reduce_only"]


def test_llama_has_no_dropout_or_tied_table():
    m = models["llama3-8b"]
    c = costs(m, Plan(tp=2, pp=4, global_batch=4))
    assert c["saved_embedding_bytes"] == 0
    assert c["tied_reduce"] == 0


def test_layer_times_of_korthikanti_table_4():
    """Forward and backward of one 22B layer on 8 A100, with none, selective and full recompute: within 15 %."""
    rows = [
        r for r in csv.DictReader(reference("runs/korthikanti_2205_05198.csv").open()) if r["use_for"] == "layer_time"
    ]
    base = Model(layers=1, hidden=6144, heads=64, vocab=51_200, seq=2048, attention="eager", dropout=0.1)
    assert len(rows) == 5
    for row in rows:
        plan = Plan(
            tp=8,
            global_batch=4,
            micro_batch=4,
            recompute=row["recompute"],
            sequence_parallel=row["sequence_parallel"] == "1",
        )
        c = costs(replace(base, name=row["model"]), plan)
        names = ("forward_compute", "forward_tp", "input_compute", "input_tp", "weight_compute", "recompute")
        assert sum(c[n] for n in names) == pytest.approx(float(row["step_time_s"]), rel=0.15)
