"""What published recipes say of runs beyond a table's columns: exchanges of experts, overlap, offload, adapters."""

from tests.validation.test_translate import case


def test_a_recipe_counts_from_the_release_that_has_it(tmp_path) -> None:
    """And where its network has experts on several ranks, in an order that pairs passes."""
    given = {"device": "gb200", "model": "Qwen3_30B_a3B", "precision": "mxfp8", "ep": 8, "gpus": 8, "global_batch": 512}
    found = {
        release: case(tmp_path, source=f"NVIDIA Megatron-Bridge {release}", **given).plan
        for release in ("25.09", "25.11", "26.04.01", "26.06")
    }
    assert [plan.token_dispatcher for plan in found.values()] == ["alltoall", "hybridep", "hybridep", "hybridep"]
    assert [plan.ep_overlap for plan in found.values()] == [False, False, False, True]
    piped = case(tmp_path, source="NVIDIA Megatron-Bridge 26.06", **given | {"pp": 2, "ep": 4, "schedule": "1f1b"}).plan
    assert (piped.token_dispatcher, piped.ep_overlap) == ("hybridep", False)
    dense = {"device": "gb200", "model": "LLAMA3_8B", "precision": "mxfp8", "gpus": 8, "global_batch": 512}
    assert case(tmp_path, source="NVIDIA Megatron-Bridge 26.06", **dense).plan.token_dispatcher == "alltoall"


def test_layers_that_a_recipe_offloads_are_offloaded_where_the_run_shards_weights(tmp_path) -> None:
    given = {
        "device": "gb200",
        "model": "LLAMA3_70B",
        "layers": 80,
        "gpus": 64,
        "global_batch": 256,
        "precision": "fp8",
    }
    sharded = {"zero_stage": 3, "fsdp_shard": 64, "dp": 64}
    found = [
        case(tmp_path, source="NVIDIA Megatron-Bridge 26.04", **given | other)
        for other in (sharded, sharded | {"device": "gb300"}, sharded | {"precision": "mxfp8"}, {"tp": 2, "dp": 32})
    ]
    assert [each.plan.offload.activations for each in found] == [0.5, 0.25, 0, 0]
    assert ["cpu_offloading" in " ".join(each.assumptions) for each in found] == [True, True, False, False]


def test_a_run_of_adapters_whose_rank_nobody_says_is_predicted_with_a_word_of_it(tmp_path) -> None:
    found = [case(tmp_path, notes=notes) for notes in ("tables; LoRA Performance", "tables")]
    assert ["LoRA" in " ".join(each.assumptions) for each in found] == [True, False]
    assert [each.model.adapter_rank for each in found] == [0, 0]


def test_a_run_may_say_its_adapters(tmp_path) -> None:
    found = case(tmp_path, notes="LoRA", adapter_rank=32, adapters_on="all")
    assert (found.model.adapter_rank, found.model.adapters_on) == (32, "all")
    assert "LoRA" not in " ".join(found.assumptions)


def test_adapters_of_nvidias_runs_are_their_recipes(tmp_path) -> None:
    given = {"device": "gb200", "model": "LLAMA3_70B", "precision": "mxfp8", "gpus": 8, "global_batch": 32, "pp": 2}
    found = [
        case(tmp_path, source="NVIDIA Megatron-Bridge 26.06", notes=notes, **given | {"schedule": "1f1b"})
        for notes in ("tables; LoRA Performance", "tables")
    ]
    assert [(each.model.adapter_rank, each.model.adapters_on) for each in found] == [(16, "qkv"), (0, "attention")]
    assert ["peft.dim 16" in " ".join(each.assumptions) for each in found] == [True, False]
