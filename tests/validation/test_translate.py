"""Rows as cases: the rules for blanks, what names say, and every published row."""

import json
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.catalog import folder
from sim.specs import InputError
from sim.validation.table import read_runs
from sim.validation.translate import PCIE_BYTES_PER_S, nearest_heads, released, translate, uneven
from sim.validation.validate import SCORED
from tests.oracle import reference
from tests.validation.runs import write

TABLES = (
    "bigscience_a100",
    "korthikanti_2205_05198",
    "llm_foundry_mpt",
    "megatron_ci_golden",
    "nvidia_dgxc_early2025",
    "nvidia_megatron_bridge",
    "nvidia_nemo",
    "ptdp_2104_04473",
    "simumax_b200",
    "torchtitan",
    "vtrain_multi",
    "vtrain_single",
    "zero_bubble_2401_10241",
)
CONTRADICTORY = {"nvidia_megatron_bridge": {"nvidia_megatron_bridge-0273": "plan.ep"}}
"""Rows that no plan can express, and what contradicts: 64 expert-parallel ranks on 32 devices."""


def case(tmp_path, **cells: str):
    """Return the case of one made-up row."""
    return translate(read_runs(write(tmp_path / "runs.csv", cells))[0])


def test_a_stated_row_is_taken_as_it_stands(tmp_path) -> None:
    found = case(tmp_path, gpus="16", tp="2", pp="2", dp="4", schedule="1f1b", sequence_parallel="1", vocab="50257",
                 ffn="6000", inter_node_gbytes_per_s="50", kv_heads="8", recompute="full")  # fmt: skip
    plan, model = found.plan, found.model
    assert (plan.tp, plan.pp, found.placed.dp, plan.sequence_parallel, plan.recompute) == (2, 2, 4, True, "full")
    assert (model.vocab, model.ffn, model.kv_heads, model.heads, model.attention) == (50257, 6000, 8, 16, "flash")
    assert found.cluster.nodes == 2 and found.cluster.links.inter_bytes_per_s_per_node == 50e9


def test_blanks_follow_the_rules_and_are_written_down(tmp_path) -> None:
    found = case(tmp_path, gpus="8", tp="2", heads="", recompute="", zero_stage="", gpus_per_node="")
    model, plan = found.model, found.plan
    assert (model.heads, model.kv_heads, model.ffn, model.vocab) == (16, 16, 8192, 51_200)
    assert (found.placed.dp, plan.virtual_stages, plan.sequence_parallel, plan.zero) == (4, 1, False, 1)
    text = " ".join(found.assumptions)
    for word in ("heads = 16", "ffn = 8192", "vocab = 51200", "recompute = none", "zero = 1", "gpus_per_node = 8"):
        assert word in text


@pytest.mark.parametrize(("hidden", "ffn", "taken"), [("512", "", 1344), ("512", "2048", 2048), ("2048", "5504", 5504)])
def test_a_name_says_no_width_that_a_row_states_itself(tmp_path, hidden, ffn, taken) -> None:
    found = case(tmp_path, model="gpt swiglu", hidden=hidden, ffn=ffn, heads="8", gated_mlp="1")
    assert found.model.ffn == taken


@pytest.mark.parametrize(
    ("model", "name"),
    [("Llama 3.1 405B", "llama3-405b"), ("GPT-OSS-120B (MoE)", "gpt-oss-120b"), ("DeepSeek V3", "deepseek-v3")],
)
def test_case_and_punctuation_of_a_catalog_name_do_not_matter(tmp_path, model, name) -> None:
    blank = dict.fromkeys(("layers", "hidden", "heads"), "")
    assert case(tmp_path, model=model, **blank).model == case(tmp_path, model=name, **blank).model
    with pytest.raises(InputError, match="a name of the catalog"):
        case(tmp_path, model="GPT 35B", **blank)  # not GPT3-5B


@pytest.mark.parametrize(
    ("model", "name", "cells"),
    [
        ("DeepSeek-V3", "deepseek-v3", {"layers": "61", "hidden": "7168", "heads": "128", "seq": "4096"}),
        ("GPT-OSS 20B", "gpt-oss-20b", {"layers": "24", "hidden": "2880", "heads": "64", "kv_heads": "8"}),
        ("T5-11B", "t5-11b", {"layers": "48", "hidden": "1024", "heads": "128", "seq": "512"}),
    ],
)
def test_a_catalog_name_is_known_beside_its_own_width_in_any_spelling(tmp_path, model, name, cells) -> None:
    found, meant = case(tmp_path, model=model, **cells).model, case(tmp_path, model=name, **cells).model
    assert found == meant and found.parameters > 11e9 and found.head_dim > 63
    mpt = case(tmp_path, model="MPT-7b", layers="32", hidden="4096", heads="32", seq="2048").plan
    assert mpt.attention_kernel == "flash-1"  # its family's software is not the catalog's to say


@pytest.mark.parametrize(("name", "gated"), [("gpt-oss-120b", True), ("nemotron4-15b", False)])
def test_a_name_that_stands_for_all_dimensions_says_whether_the_mlp_is_gated(tmp_path, name, gated) -> None:
    blank = dict.fromkeys(("layers", "hidden", "heads"), "")
    for cell in ("0", "1", ""):
        found = case(tmp_path, model=name, gated_mlp=cell, **blank)
        assert found.model.gated_mlp is gated
        assert ("gated_mlp = " in " ".join(found.assumptions)) == (cell == str(int(not gated)))


def test_a_cut_model_is_the_catalogs_with_fewer_layers(tmp_path) -> None:
    cut = case(tmp_path, model="DeepSeek V3 cut to 8 layers", layers="8", hidden="7168", heads="128", seq="4096").model
    assert (cut.layers, cut.kv_lora_rank, cut.experts, cut.pattern) == (8, 512, 256, "TTTXXXXX")
    with pytest.raises(InputError, match="a name of the catalog"):  # not the whole model
        case(tmp_path, model="llama3-8b cut to 8 layers", **dict.fromkeys(("layers", "hidden", "heads"), ""))


@pytest.mark.parametrize(
    ("model", "layers", "stacks", "note"),
    [
        ("t5-large", "48", (24, 48), ""),
        ("t5-large", "24", (24, 48), "layers = 48 (24 are one stack's)"),
        ("t5-large", "36", (18, 36), "encoder_layers = 18 (half of the 36 layers, which are of both stacks)"),
        ("t5-large cut to 24 layers", "24", (12, 24), "encoder_layers = 12 (half of the 24 layers"),
    ],
)
def test_layers_of_an_encoder_decoder_are_of_both_stacks_or_as_its_config_counts(
    tmp_path, model, layers, stacks, note
) -> None:
    found = case(tmp_path, model=model, layers=layers, hidden="1024", heads="16", seq="512")
    assert (found.model.encoder_layers, found.model.layers) == stacks
    assert any(text.startswith(note) for text in found.assumptions)


def test_a_catalog_name_of_another_width_gives_its_habits_alone_and_says_so(tmp_path) -> None:
    found = case(tmp_path, model="DeepSeekV3", layers="61", hidden="5120", heads="40", seq="4096")
    assert (found.model.norm, found.model.kv_lora_rank, found.model.experts) == ("rmsnorm", 0, 0)
    assert any(
        text.startswith("deepseek-v3 of the catalog has another width: only its norm") for text in found.assumptions
    )


def test_patches_tell_the_size_of_the_image(tmp_path) -> None:
    blank = dict.fromkeys(("layers", "hidden", "heads"), "")
    found = case(tmp_path, model="ViT-L/16", seq="577", **blank)
    assert found.model.image_size == 384 and any("image_size = 384" in text for text in found.assumptions)
    with pytest.raises(InputError, match=r"seq: got 600; allowed: 577"):
        case(tmp_path, model="ViT-L", seq="600", **blank)


def test_blank_devices_are_one_server(tmp_path) -> None:
    found = case(tmp_path, gpus="", gpus_per_node="", tp="2", dp="")
    assert (found.cluster.gpus, found.placed.dp) == (8, 4)
    assert "gpus = 8" in " ".join(found.assumptions)


def test_blank_devices_are_those_of_the_stated_degrees(tmp_path) -> None:
    found = case(tmp_path, gpus="", tp="2", dp="8")
    assert (found.cluster.nodes, found.placed.gpus, found.placed.dp) == (2, 16, 8)
    assert "gpus = 16 (tp x pp x cp x dp)" in found.assumptions
    assert case(tmp_path, gpus="", gpus_per_node="", dp="2").cluster.gpus == 2


@pytest.mark.parametrize(
    ("name", "shard", "framework", "loss"),
    [("x", "8", "torch", "autograd"), ("x", "", "megatron", "in-place"), ("MPT-x", "8", "torch", "fused")],
)
def test_rows_of_fsdp_follow_pytorchs_memory_law(tmp_path, name, shard, framework, loss) -> None:
    plan = case(tmp_path, model=name, gpus="8", fsdp_shard=shard, zero_stage="3" if shard else "1").plan
    assert (plan.framework, plan.cross_entropy) == (framework, loss)


def test_a_sharded_optimizer_in_fp16_is_an_engine_that_waits(tmp_path) -> None:
    cells = {"attention": "eager", "precision": "fp16", "zero_stage": "1"}
    found = case(tmp_path, **cells)
    assert not any(getattr(found.plan, n) for n in ("overlap_dp", "tp_overlap", "fused_wgrad"))
    assert found.plan.blocking_sends and found.plan.scatter_gather
    assert "DeepSpeed" in " ".join(found.assumptions)
    for other in ({"precision": "bf16"}, {"zero_stage": "0"}, {"attention": "flash"}):
        assert case(tmp_path, **(cells | other)).plan.tp_overlap


@pytest.mark.parametrize(("vocab", "waits"), [("250880", True), ("51200", False)])
def test_networks_with_blooms_vocabulary_ran_on_deepspeed(tmp_path, vocab, waits) -> None:
    cells = {"model": "GPT 200B", "attention": "eager", "precision": "fp16", "zero_stage": "0"}
    found = case(tmp_path, vocab=vocab, **cells)
    assert (found.plan.blocking_sends, found.plan.tp_overlap) == (waits, not waits)
    assert ("Megatron-DeepSpeed" in " ".join(found.assumptions)) == waits


@pytest.mark.parametrize(
    ("cells", "gradients"),
    [
        ({"precision": "fp16", "attention": "eager", "zero_stage": "0"}, "bf16"),
        ({"precision": "fp16"}, "bf16"),
        ({"precision": "bf16", "attention": "eager"}, "fp32"),
        ({"precision": "fp16", "attention": "eager", "zero_stage": "1"}, "fp32"),
        ({"precision": "fp16", "zero_stage": "3"}, "fp32"),
        ({"precision": "fp16", "fsdp_shard": "8", "zero_stage": "3"}, "fp32"),
    ],
)
def test_megatron_sums_the_gradients_of_fp16_in_16_bit(tmp_path, cells, gradients) -> None:
    found = case(tmp_path, **cells)
    assert found.plan.gradient_dtype == gradients
    assert ("gradients of 16 bit" in " ".join(found.assumptions)) == (gradients == "bf16")


@pytest.mark.parametrize(
    ("source", "year"),
    [
        ("NVIDIA Megatron-Bridge 26.08", 2026 + 7 / 12),
        ("NVIDIA NeMo 24.07 (Sep 2024)", 2024.5),
        ("a stack 26.04.01", 2026.25 + 0.01 / 12),
        ("a stack 25.01-py3", 2025.0),
        ("a stack 25.12.", 2025 + 11 / 12),
        ("a stack v0.25.11", None),
        ("a stack-25.11", None),
        ("25.11", None),
        ("a stack 25.13", None),
        ("a stack 25.00", None),
        ("a stack 30.01", None),
        ("a stack 25.110", None),
        ("a stack 25.11.1.2", None),
        ("a stack 2025.11", None),
        ("PTD-P (arXiv 2104.04473)", None),
        ("Korthikanti 2205.05198", None),
        ("torchtitan-2024-12", 2024 + 11 / 12),
        ("a stack-2024.12", None),
        ("a stack 2024-12", None),
        ("a stack-2024-13", None),
        ("SimuMax B200 v1.2", None),
        ("NVIDIA dgxc-benchmarking early 2025", 2025 + 1 / 6),
        ("a stack, late 2026: fp8", 2026 + 5 / 6),
        ("an early 2025th try", None),
        ("mid 2025", None),
    ],
)
def test_a_calendar_version_dates_the_software(tmp_path, source, year) -> None:
    assert released(source) == (None if year is None else pytest.approx(year, abs=1e-9))
    found = case(tmp_path, source=source)
    assert found.plan.software_year == released(source)
    assert ("software_year" in " ".join(found.assumptions)) == (year is not None)


def test_newer_software_takes_the_profile_of_newer_libraries(tmp_path) -> None:
    """A profile that was asked for stays, and a device without a newer one has its own."""
    for name in ("h100-sxm-80gb", "gb200"):
        for source, profile in (("a stack 24.06", name), ("a stack 24.07", f"{name}-2026")):
            found = case(tmp_path, source=source, device=name)
            assert found.cluster.profile == profile
            assert ("cluster.profile" in " ".join(found.assumptions)) == (profile != name)
    assert case(tmp_path, source="a stack 26.08", device="a100-sxm-80gb").cluster.profile == "a100-sxm-80gb"


def test_nvidias_tables_leave_out_what_its_recipes_say(tmp_path) -> None:
    cells = {"tp": "2", "sequence_parallel": "", "device": "gb200"}
    for source, precision, said in (("NVIDIA x", "fp8", True), ("NVIDIA x", "nvfp4", False), ("x", "fp8", False)):
        found = case(tmp_path, source=source, precision=precision, **cells)
        assert (found.plan.sequence_parallel, found.plan.tp_comm_overlap) == ("NVIDIA" in source, said)
        assert (found.plan.gradient_dtype == "bf16") == ("NVIDIA" in source)
    stated = case(tmp_path, source="NVIDIA x", **(cells | {"sequence_parallel": "0", "precision": "fp8"})).plan
    assert not stated.sequence_parallel and not stated.tp_comm_overlap and stated.gradient_dtype == "bf16"
    whole = case(tmp_path, source="NVIDIA x", precision="fp32", device="cpu", tp="1", dp="8")
    assert whole.plan.gradient_dtype == "fp32"


def test_releases_are_in_their_order() -> None:
    names = ["25.09", "25.11", "26.02", "26.02.01", "26.04", "26.04.01", "26.06", "26.06.01", "26.06.02", "26.08"]
    years = [released(f"a stack {name}") for name in names]
    assert years == sorted(set(years))


def test_a_device_is_known_in_any_spelling(tmp_path) -> None:
    assert case(tmp_path, device="H100 SXM 80GB").cluster == case(tmp_path, device="h100-sxm-80gb").cluster


def test_blank_degrees_of_experts_are_told(tmp_path) -> None:
    cells = {"model": "DeepSeek V3 cut to 8 layers", "layers": "8", "hidden": "7168", "heads": "128", "seq": "4096"}
    told = case(tmp_path, **cells, ep="8").assumptions
    assert "etp = 1 (not stated)" in told
    assert not any(text.startswith("ep =") for text in told)
    assert not any("etp" in text for text in case(tmp_path).assumptions)


def test_a_name_fills_blanks_of_the_network_that_it_means(tmp_path) -> None:
    cells = {"model": "GPT 6.2B", "layers": "30", "hidden": "4096", "heads": "32"}
    found = case(tmp_path, **cells).model
    assert found.vocab == 32_000 and f"{found.parameters / 1e9:.1f}" == "6.2"
    assert case(tmp_path, **cells, vocab="51200").model.vocab == 51_200
    assert case(tmp_path, **cells | {"layers": "32"}).model.vocab == 51_200


def test_stated_values_are_not_called_assumptions(tmp_path) -> None:
    text = " ".join(case(tmp_path, vocab="50304", ffn="8192").assumptions)
    assert "vocab" not in text and "ffn" not in text and "recompute" not in text


def test_blank_dimensions_come_from_the_catalog_by_name(tmp_path) -> None:
    found = case(tmp_path, model="Nemotron4 15B", layers="", hidden="", heads="", seq="4096", tp="2")
    assert (found.model.name, found.model.hidden, found.model.kv_heads, found.model.seq) == (
        "nemotron4-15b",
        6144,
        8,
        4096,
    )
    with pytest.raises(InputError, match="a name of the catalog"):
        case(tmp_path, model="some model", hidden="")


def test_a_catalog_name_keeps_its_other_facts_under_stated_dimensions(tmp_path) -> None:
    cut = case(tmp_path, model="llama3-70b cut to 12 layers", layers="12", hidden="8192", heads="64").model
    assert (cut.layers, cut.norm, cut.tied_embeddings, cut.ffn) == (12, "rmsnorm", False, 28672)


def test_a_family_name_counts_only_without_a_catalog_entry(tmp_path) -> None:
    assert case(tmp_path, model="GPT").model.dropout == 0.1
    assert case(tmp_path, model="MPT-1b").model.bias is False
    assert case(tmp_path, model="MPT-1b").plan.attention_kernel == "flash-1"
    llama = case(tmp_path, model="llama2-7b").model
    assert (llama.dropout, llama.norm, llama.kv_heads, llama.ffn) == (0.0, "rmsnorm", 16, 8192)


def test_megatron_recipes_say_what_the_columns_do_not(tmp_path) -> None:
    held = case(tmp_path, model="gpt/gpt3_mcore_te_tp1_pp4_untie_embeddings_and_outputs").model
    assert (held.tied_embeddings, held.attention) == (False, "eager")
    assert case(tmp_path, model="gpt/gpt3_mcore_te_tp1_pp1_resume_torch_dist").model.attention == "flash"
    alone = case(tmp_path, model="gpt/gpt3_mcore_reruns_resume_check_grads", global_batch="4", dp="8")
    assert alone.cluster.gpus == 1 and alone.placed.dp == 1


def test_sharding_follows_from_fsdp(tmp_path) -> None:
    assert case(tmp_path, zero_stage="", fsdp_shard="8").plan.zero == 3
    assert case(tmp_path, zero_stage="2", fsdp_shard="8").plan.zero == 2
    assert case(tmp_path, zero_stage="", fsdp_shard="0").plan.zero == 1
    beyond = case(tmp_path, zero_stage="3", fsdp_shard="16")
    assert any(note.startswith("fsdp_shard = 8 (all ranks") for note in beyond.assumptions)


def test_devices_that_fill_no_servers_are_equally_many_on_each(tmp_path) -> None:
    held = case(tmp_path, gpus="12", gpus_per_node="8", global_batch="48", tp="1", pp="1", dp="")
    assert (held.cluster.nodes, held.cluster.gpus_per_node, held.placed.dp) == (2, 6, 12)
    assert "gpus_per_node = 6 (12 devices on servers of 8, equally many on each)" in held.assumptions


def test_pcie_slows_a_device_that_usually_has_fast_links(tmp_path) -> None:
    assert case(tmp_path, intra_node="pcie").cluster.links.intra_bytes_per_s == PCIE_BYTES_PER_S
    ignored = case(tmp_path, intra_node="nvlink", device="l4").assumptions
    assert "intra_node = nvlink is not counted: the links of l4 are PCIe's" in ignored
    own = case(tmp_path, intra_node="pcie", device="a100-pcie-80gb").cluster.hardware.intra_bytes_per_s.value
    assert case(tmp_path, intra_node="pcie", device="a100-pcie-80gb").cluster.links.intra_bytes_per_s == min(
        own, PCIE_BYTES_PER_S
    )


@pytest.mark.parametrize(
    ("cells", "word"),
    [
        ({"global_batch": ""}, "global_batch"),
        ({"device": "tpu-v4"}, "device"),
        ({"global_batch": "3"}, "global_batch"),
        ({"precision": "int2"}, "precision"),
        ({"gpus": "13", "global_batch": "26"}, "gpus: got 13; allowed: a multiple of gpus_per_node = 8"),
    ],
)
def test_what_cannot_be_said_is_refused(tmp_path, cells: dict[str, str], word: str) -> None:
    with pytest.raises(InputError, match=word):
        case(tmp_path, **cells)


@pytest.mark.parametrize(
    "cells", [{"pp": "64", "dp": "1", "gpus": "64", "vpp": "1000000"}, {"hidden": "100000000", "heads": ""}]
)
def test_numbers_far_too_large_are_refused_at_once(tmp_path, cells: dict[str, str]) -> None:
    begin = process_time()
    with pytest.raises(InputError, match=r"virtual_stages: got 1000000|hidden: got 100000000"):
        case(tmp_path, **cells)
    assert process_time() - begin < 2  # one by one they took half a minute and gigabytes, and 7 s


def test_uneven_stages_by_hand() -> None:
    assert uneven(22, 8) == (2, 3, 3, 3, 3, 3, 3, 2)  # zero-bubble's 1.5B model
    assert uneven(126, 8) == (15, 16, 16, 16, 16, 16, 16, 15)  # Llama 3 405B (arXiv 2407.21783, section 3.3.2)
    assert uneven(6, 8) == (0, 1, 1, 1, 1, 1, 1, 0)
    assert uneven(7, 2) == (4, 3)


@given(st.integers(1, 200), st.integers(1, 64))
def test_uneven_stages_add_up_and_differ_by_one(layers: int, chunks: int) -> None:
    parts = uneven(layers, chunks)
    assert sum(parts) == layers and len(parts) == chunks and max(parts) - min(parts) <= 1


@given(st.sampled_from([768, 2048, 6144, 13824, 14336, 14400]), st.sampled_from([1, 2, 4, 8]))
def test_heads_divide_the_width_and_are_divided_by_tp(hidden: int, tp: int) -> None:
    heads = nearest_heads(hidden, tp)
    assert hidden % heads == 0 and heads % tp == 0
    assert heads == hidden // 128 or hidden % 128 or (hidden // 128) % tp


@pytest.mark.parametrize("name", TABLES)
def test_every_published_row_is_expressed(name: str) -> None:
    rows = [row for row in read_runs(reference("runs") / f"{name}.csv") if row.uses & {*SCORED, "parity"}]
    cases, skipped = [], {}
    for row in rows:
        try:
            cases.append(translate(row))
        except InputError as error:
            skipped[row.id] = error.path
    assert rows
    # What the run-level sets are fitted to is software of no stated date, but for one table.
    dated = {c.row.source for c in cases if "time" in c.row.uses and c.plan.software_year}
    assert dated <= {"torchtitan-2024-12"}
    assert skipped == CONTRADICTORY.get(name, {})
    assert len(skipped) < 0.02 * len(rows)
    # The "check_grads" recipe of Megatron's tests runs on one device, whatever the table says (aliases.json).
    stated = [c for c in cases if c.row.gpus is not None and "check_grads" not in c.row.model]
    assert all((c.row.gpus, c.row.dp or c.placed.dp) == (c.placed.gpus, c.placed.dp) for c in stated)


def test_no_table_is_left_out() -> None:
    assert {path.stem for path in reference("runs").glob("*.csv")} == set(TABLES)


def test_aliases_have_sources_and_known_parts() -> None:
    held = json.loads(folder("aliases.json").read_text())
    assert len(held["models"]["source"]) > 10
    for fact in held["terms"]:
        assert ("starts" in fact) + ("has" in fact or "from" in fact) == 1
        parts = {"from", "since", "starts", "has", "lacks", "where", "says", "blank", "row", "model", "plan", "source"}
        assert len(fact["source"]) > 10 and set(fact) <= parts
