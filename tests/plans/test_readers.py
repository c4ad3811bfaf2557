"""Other frameworks' settings: what is read, what is listed, what is refused."""

import json
from dataclasses import replace

import pytest

from sim.plans.from_megatron import layout_layers
from sim.plans.importing import read_plan
from sim.specs import InputError, Model

MODEL = Model(name="m", layers=8, hidden=512, heads=8, seq=256)
SCRIPT = """
# a training script
torchrun --nproc_per_node=8 pretrain_gpt.py \\
    --tensor-model-parallel-size 4 --sequence-parallel \\
    --pipeline-model-parallel-size=2 --num-layers 16 --num-layers-per-virtual-pipeline-stage 4 \\
    --micro-batch-size 2 --global-batch-size 64 --bf16 --lr 1.5e-4 --split "969,30,1" \\
    --recompute-activations --use-distributed-optimizer --overlap-grad-reduce
"""


def test_megatrons_script():
    found = read_plan(SCRIPT, "megatron")
    plan = found.plan
    assert (plan.tp, plan.pp, plan.virtual_stages, plan.schedule) == (4, 2, 2, "interleaved")
    assert (plan.recompute, plan.zero, plan.sequence_parallel, plan.overlap_dp) == ("selective", 1, True, True)
    assert found.not_read == ("torchrun", "pretrain_gpt.py", "--nproc_per_node=8", "--lr=1.5e-4", "--split=969,30,1")
    assert any("data-parallel" in note for note in found.notes)


@pytest.mark.parametrize(
    ("words", "precision", "noted"),
    [
        ("--fp8-format hybrid --fp8-recipe blockwise", "fp8", True),
        ("--fp8-format hybrid --fp8-recipe tensorwise", "fp8", True),
        ("--fp8-format hybrid --fp8-recipe delayed", "fp8", False),
        ("--fp8-format hybrid", "fp8", False),
        ("--fp8-format e4m3 --fp8-recipe mxfp8", "mxfp8", False),
        ("--fp8-recipe blockwise", "bf16", False),
    ],
)
def test_other_scaling_than_a_plans_fp8_is_noted(words, precision, noted):
    found = read_plan(f"--global-batch-size 64 --bf16 {words}", "megatron")
    assert found.plan.precision == precision
    assert any("with delayed scaling" in note for note in found.notes) is noted


@pytest.mark.parametrize(
    ("words", "beside"),
    [
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params", True),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", True),
        ("--use-torch-fsdp2", True),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim", False),
        ("--use-distributed-optimizer", False),
    ],
)
def test_fsdp_reduces_beside_the_backward_pass_whatever_megatrons_flag_says(words, beside):
    assert read_plan(f"--global-batch-size 64 {words}", "megatron").plan.overlap_dp is beside


@pytest.mark.parametrize(
    ("method", "count", "noted"), [("uniform", 4, True), ("uniform", 1, False), ("block", 4, False)]
)
def test_megatrons_pieces_of_recompute_are_noted(method, count, noted):
    words = f"--recompute-granularity full --recompute-method {method} --recompute-num-layers {count}"
    found = read_plan(f"--global-batch-size 8 --num-layers 16 {words}", "megatron")
    assert (found.plan.recompute, not found.not_read) == ("full", True)
    assert any("--recompute-num-layers 4" in note for note in found.notes) == noted


def test_megatrons_yaml_has_sections():
    text = "model_parallel: {tensor_model_parallel_size: 2, sequence_parallel: false}\nglobal_batch_size: 8\nlr: 0.1\n"
    found = read_plan(text, "megatron")
    assert (found.plan.tp, found.plan.sequence_parallel, found.not_read) == (2, False, ("lr=0.1",))


@pytest.mark.parametrize(("low", "precision"), [("fp8: e4m3\nfp8_recipe: mxfp8", "mxfp8"), ("fp4: e2m1", "nvfp4")])
def test_megatrons_arguments_may_have_the_names_behind_their_flags(low, precision):
    switches = "gradient_accumulation_fusion: false\nscatter_gather_tensors_in_pipeline: true"
    found = read_plan(f"global_batch_size: 8\nbf16: true\n{low}\n{switches}\n", "megatron")
    assert (found.plan.precision, found.plan.fused_wgrad, found.not_read) == (precision, False, ())


@pytest.mark.parametrize(
    ("words", "layers"),
    [
        ("--decoder-first-pipeline-num-layers 3 --decoder-last-pipeline-num-layers 1", (3, 2, 2, 1)),
        ("--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split", None),
        ("--pipeline-model-parallel-layout 'Et|tt|(t)*2|tttL'", (1, 2, 2, 3)),
        ("--pipeline-model-parallel-layout 'Ett|tt|tt|ttL'", None),
    ],
)
def test_megatrons_stages(words, layers):
    count = 10 if "account" in words else 8
    text = f"--global-batch-size 8 --pipeline-model-parallel-size 4 --num-layers {count} {words}"
    if "account" in words:
        assert read_plan(text, "megatron").plan.stage_layers == (2, 3, 3, 2)
    else:
        assert read_plan(text, "megatron").plan.stage_layers == layers


ARRAYS = """
MODEL_ARGS=(--num-layers 8
    --pipeline-model-parallel-layout "Et|(t|)*6tL"
    --bf16
)
PARALLEL=(
    --pipeline-model-parallel-size 8 --global-batch-size 8 --use-distributed-optimizer)
torchrun pretrain_gpt.py --sequence-parallel "${MODEL_ARGS[@]}" ${PARALLEL[@]}
"""
FUNCTIONAL = """
# one of the release's tests: --tensor-model-parallel-size 1
ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
TEST_TYPE: regular
MODEL_ARGS:
  --num-layers: 12
  --tensor-model-parallel-size: 2
  --sequence-parallel: true
  --micro-batch-size: 4
  --global-batch-size: 32
  --recompute-granularity: selective
  --recompute-modules: [layernorm, moe_act]
  --num-experts: 8
  --moe-grouped-gemm: true
  --bf16: true
"""


def test_megatrons_arrays_of_a_shell():
    found = read_plan(ARRAYS, "megatron")
    assert (found.plan.pp, found.plan.zero, found.plan.precision, found.plan.stage_layers) == (8, 1, "bf16", None)
    assert found.not_read == ("torchrun", "pretrain_gpt.py", "${MODEL_ARGS[@]}", "${PARALLEL[@]}")


def test_megatrons_tests_have_yaml_with_dashes():
    found = read_plan(FUNCTIONAL, "megatron")
    plan = found.plan
    assert (plan.tp, plan.sequence_parallel, plan.micro_batch, plan.global_batch) == (2, True, 4, 32)
    assert (plan.recompute, plan.precision) == ("selective", "bf16")
    assert found.not_read == ("CUDA_DEVICE_MAX_CONNECTIONS=1", "TEST_TYPE=regular")
    told = "--moe-token-dispatcher-type allgather, Megatron-LM's default: predicted with alltoall"
    assert [note for note in found.notes if "moe" in note and "modules" not in note] == [told]
    with pytest.raises(InputError, match="text, a number, true or false, or a list of such"):
        read_plan({"recompute_modules": [{}]}, "megatron")


@pytest.mark.parametrize(
    ("backend", "read"),
    [("", "deepep"), (" --moe-flex-dispatcher-backend hybridep", "hybridep"), (" --moe-enable-deepep", "deepep")],
)
def test_megatrons_flexible_dispatcher_sends_a_token_once_to_a_rank(backend, read):
    flags = "--num-experts 8 --expert-model-parallel-size 4 --global-batch-size 64 --moe-grouped-gemm"
    found = read_plan(f"{flags} --moe-token-dispatcher-type flex{backend}", "megatron")
    assert (found.plan.token_dispatcher, found.plan.ep_overlap, found.not_read) == (read, False, ())
    beside = read_plan(f"{flags} --moe-token-dispatcher-type alltoall --overlap-moe-expert-parallel-comm", "megatron")
    assert (beside.plan.token_dispatcher, beside.plan.ep_overlap, beside.not_read) == ("alltoall", True, ())
    with pytest.raises(InputError, match=r"moe_flex_dispatcher_backend.*one of deepep, hybridep"):
        read_plan(f"{flags} --moe-flex-dispatcher-backend mine", "megatron")


@pytest.mark.parametrize(
    ("flags", "on", "noted"),
    [
        ("--cuda-graph-impl local --cuda-graph-scope full_iteration", True, False),
        ("--cuda-graph-impl full_iteration", True, False),
        ("--cuda-graph-impl none --cuda-graph-scope full_iteration", False, False),
        ("--cuda-graph-impl transformer_engine --cuda-graph-scope attn", False, True),
        ("--cuda-graph-impl transformer_engine --cuda-graph-scope attn mlp", False, False),
        ("--enable-cuda-graph", False, False),
        ("--enable-cuda-graph --num-experts 8", False, True),
    ],
)
def test_megatrons_graphs_of_whole_steps_are_a_plans(flags, on, noted):
    found = read_plan(f"--micro-batch-size 1 --global-batch-size 8 {flags}", "megatron")
    assert (found.plan.cuda_graphs, found.not_read) == (on, ())
    assert any("predicted with kernels launched one by one" in note for note in found.notes) == noted
    assert found.plan.layer_graphs == (flags.endswith(("attn mlp", "--enable-cuda-graph")))


def test_megatrons_default_batch_is_a_micro_batch_a_rank():
    flags = "--tensor-model-parallel-size 2 --micro-batch-size 4"
    assert read_plan(flags, "megatron", gpus=16).plan.global_batch == 32
    with pytest.raises(InputError, match="a divisor of GPUs = 15"):
        read_plan(flags, "megatron", gpus=15)
    asked = "--micro-batch-size: taken as 1, and asked for by Megatron-LM"
    assert asked not in read_plan(flags, "megatron", gpus=16).notes
    assert asked in read_plan("--global-batch-size 64", "megatron").notes


EAGER = Model(name="m", layers=8, hidden=512, heads=8, seq=256, attention="eager")
EXPERTS = Model(name="m", layers=8, hidden=512, heads=8, seq=256, experts=4, experts_per_token=2, moe_ffn=512)
LATENT = replace(EXPERTS, kv_lora_rank=64, rope_head_dim=16, head_dim=64, v_head_dim=64)


@pytest.mark.parametrize(
    ("pattern", "scope", "whole"),
    [
        ("", "attn moe_router moe_preprocess", True),
        ("", "attn mlp", False),
        ("ME*EME*E", "attn moe_router moe_preprocess", False),
        ("ME*EME*E", "attn mamba moe_router moe_preprocess", True),
    ],
)
def test_megatrons_graphs_of_layers_are_of_all_their_parts(pattern, scope, whole):
    model = replace(EXPERTS, pattern=pattern or EXPERTS.pattern)
    flags = f"--cuda-graph-impl transformer_engine --cuda-graph-scope {scope} --num-experts 4 --global-batch-size 8"
    found = read_plan(flags, "megatron", model)
    assert found.plan.layer_graphs == whole
    assert any("launched one by one" in note for note in found.notes) != whole


@pytest.mark.parametrize(
    ("model", "modules", "recompute", "noted"),
    [
        (EAGER, "", "selective", ""),
        (EAGER, "core_attn", "selective", ""),
        (EAGER, "layernorm", "none", "layernorm: taken as recompute none"),
        (EAGER, "mlp core_attn", "selective", "core_attn mlp: taken as recompute selective, with eager"),
        (MODEL, "", "none", "core_attn: taken as recompute none"),
        (MODEL, "layernorm", "selective", ""),
        (EXPERTS, "moe_act layernorm", "selective", ""),
        (LATENT, "layernorm mla_up_proj moe_act", "selective", ""),
        (LATENT, "layernorm moe_act", "selective", "layernorm moe_act: taken as recompute selective"),
        (EXPERTS, "moe_act", "selective", "moe_act: taken as recompute selective, with fused attention"),
        (EXPERTS, "moe", "selective", "moe: taken as recompute selective, with fused attention"),
        (EXPERTS, "moe layernorm", "selective", ""),
        (EXPERTS, "moe moe_act layernorm", "selective", ""),
        (LATENT, "moe layernorm mla_up_proj", "selective", ""),
        (MODEL, "moe", "none", "moe: taken as recompute none"),
        (None, "", "selective", "core_attn: of eager attention"),
        (None, "layernorm", "selective", "layernorm: of fused attention"),
    ],
)  # fmt: skip
def test_megatrons_modules_of_recompute(model, modules, recompute, noted):
    words = f"--recompute-granularity selective {f'--recompute-modules {modules}' if modules else ''} --bf16"
    found = read_plan(f"--global-batch-size 8 {words}", "megatron", model)
    assert (found.plan.recompute, found.not_read) == (recompute, ())
    assert found.plan.recompute_experts == (model in (EXPERTS, LATENT) and "moe" in modules.split())
    told = [note for note in found.notes if note.startswith("--recompute-modules")]
    assert [note.removeprefix("--recompute-modules ")[: len(noted)] for note in told] == ([noted] if noted else [])


@pytest.mark.parametrize(("backend", "recompute"), [("unfused", "selective"), ("fused", "none")])
def test_megatrons_attention_backend_says_what_recomputes(backend, recompute):
    found = read_plan(f"--global-batch-size 8 --recompute-activations --attention-backend {backend}", "megatron")
    assert found.plan.recompute == recompute


@pytest.mark.parametrize(("words", "kind"), [("", "in-place"), ("--cross-entropy-fusion-impl te", "fused")])
def test_megatrons_own_fusion_of_the_loss_keeps_its_logits(words, kind):
    found = read_plan(f"--global-batch-size 8 --cross-entropy-loss-fusion {words}", "megatron")
    assert (found.plan.cross_entropy, found.not_read) == (kind, ())


@pytest.mark.parametrize(
    ("source", "text", "noted"),
    [
        ("megatron", "--global-batch-size 8 --num-layers 16 --seq-length 4096", ["16: m has 8", "4096: m has 256"]),
        ("megatron", "--global-batch-size 8 --num-layers 8 --seq-length $SEQ", []),
        ("torchtitan", "--training.global_batch_size=8 --training.seq_len=2048", ["2048: m has 256"]),
    ],
)
def test_other_sizes_than_the_models_are_noted(source, text, noted):
    found = [note for note in read_plan(text, source, MODEL, gpus=8).notes if " m has " in note]
    assert [note.partition(" ")[2] for note in found] == [f"{words}, which is taken" for words in noted]


def test_megatrons_messages_are_whole_without_sequence_parallelism():
    flags = "--global-batch-size 8 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"
    assert not read_plan(flags, "megatron").plan.scatter_gather
    assert read_plan(f"{flags} --sequence-parallel", "megatron").plan.scatter_gather


REFUSED = [
    ("megatron", "--tensor-model-parallel-size 2", "--global_batch_size"),
    ("megatron", "--global-batch-size 8 --recompute-activations --recompute-modules core_attn mlps",
     "--recompute_modules"),
    ("megatron", "--global-batch-size 8 --moe-token-dispatcher-type all", "--moe_token_dispatcher_type"),
    ("megatron", "--global-batch-size 8 --num-layers 8 --num-layers-per-virtual-pipeline-stage 2 "
     "--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 2",
     "--num_layers_per_virtual_pipeline_stage"),
    ("megatron", "--global-batch-size 8 --tensor-model-parallel-size two", "--tensor_model_parallel_size"),
    ("megatron", "--global-batch-size 8 --global-batch-size 9", "--global_batch_size"),
    ("megatron", "--global-batch-size $GBS", "--global_batch_size"),
    ("megatron", "--global-batch-size 8 --bf16 --fp16", "--fp16"),
    ("megatron", "--global-batch-size 8 --fp8-format hybrid", "--fp8_format"),
    ("megatron", "--global-batch-size 8 --bf16 --fp4-format e2m1 --fp4-recipe mxfp4", "--fp4_recipe"),
    ("megatron", "--global-batch-size 8 --recompute-granularity full", "--recompute_method"),
    ("megatron", "--global-batch-size 8 --recompute-method block", "--recompute_method"),
    ("megatron", "--global-batch-size 8 --recompute-granularity some", "--recompute_granularity"),
    ("megatron", "--global-batch-size 8 --num-layers-per-virtual-pipeline-stage 2", "--num_layers"),
    ("megatron", "--global-batch-size 8 --decoder-first-pipeline-num-layers 2", "--num_layers"),
    (
        "megatron",
        "--global-batch-size 8 --num-virtual-stages-per-pipeline-rank 2 --pipeline-model-parallel-layout EttL",
        "--pipeline_model_parallel_layout",
    ),
    ("megatron", "--global-batch-size 8 --pipeline-model-parallel-layout EtxL", "--pipeline_model_parallel_layout"),
    ("megatron", "--global-batch-size 8 --use-distributed-optimizer --num-distributed-optimizer-instances 2",
     "--num_distributed_optimizer_instances"),
    ("megatron", "--global-batch-size 8 'open", "settings"),
    ("megatron", '["--global-batch-size", 8]', "settings"),
    ("megatron", "[" * 100_000, "settings"),
    ("megatron", "{" * 100_000, "settings"),
    ("megatron", "--a " * 300_000, "settings"),
    ("megatron", "--a " * 6_000, "settings"),
    ("torchtitan", "--parallelism.data_parallel_shard_degree=0", "--parallelism.data_parallel_shard_degree"),
    (
        "torchtitan",
        "--training.local_batch_size=8 --training.num_tokens_per_train_step=8",
        "--training.local_batch_size",
    ),
    ("torchtitan", "--training.num_tokens_per_microbatch_per_dp_rank=8", "--training.max_context_length"),
    (
        "torchtitan",
        "--parallelism.pipeline_parallel_degree=2 --parallelism.pipeline_parallel_schedule=Magic",
        "--parallelism.pipeline_parallel_schedule",
    ),
    (
        "torchtitan",
        "--parallelism.pipeline_parallel_degree=2 --parallelism.pipeline_parallel_schedule_csv=x.csv",
        "--parallelism.pipeline_parallel_schedule_csv",
    ),
    ("torchtitan", "activation-checkpoint:full activation-checkpoint:none", "activation-checkpoint"),
    ("torchtitan", "--training.local_batch_size=8", "--training"),
    *(("torchtitan", f"--training.global_batch_size=8 --parallelism.pipeline_parallel_degree=2 "
       f"--parallelism.module_fqns_per_model_part='{parts}'", "--parallelism.module_fqns_per_model_part")
      for parts in ('["layers.0", "layers.1"]', '[["tok_embeddings"], ["norm"]]', '[["layers.0"], {"layers.1": 1}]')),
    ("megatron", "--micro-batch-size=1 --global-batch-size=8 --\x1b[2Jx", "settings"),
    ("torchtitan", "[training]\nlocal_batch_size = 8\n", "settings"),
    ("torchtitan", "def f():\n    return Trainer.Config(TrainingConfig())\n", "config"),
    ("torchtitan", "def f(config):\n    if True:\n        config.training.seq_len = 1\n", "configuration"),
    ("torchtitan", "def f(config):\n    config.training.seq_len *= 2\n", "configuration"),
    ("torchtitan", "def f(config):\n    config.training = replace(config.training, seq_len=1)\n", "config.training"),
    ("torchtitan", "def f(config):\n    config.training.local_batch_size = 2 * n\n", "--training.local_batch_size"),
    ("torchtitan", "def f(config):\n    config.activation_checkpoint = MemoryBudgetAC.Config()\n",
     "config.activation_checkpoint"),
    ("torchtitan", "def f(config):\n    config.training.steps = 1\ndef g(config):\n    config.training.steps = 2\n",
     "configuration"),
    ("deepspeed", "{}", "train_batch_size"),
    ("deepspeed", '{"train_batch_size": "auto"}', "train_batch_size"),
    ("deepspeed", '{"gradient_accumulation_steps": 2}', "train_batch_size"),
    ("deepspeed", '{"train_micro_batch_size_per_gpu": 2}', "train_batch_size"),
    ("deepspeed", '{"train_batch_size": 2}', "train_micro_batch_size_per_gpu"),
    ("deepspeed", '{"train_batch_size": 9, "train_micro_batch_size_per_gpu": 1, "tensor_parallel": {"autotp_size": 2}}',
     "tensor_parallel.autotp_size"),
    ("deepspeed", '{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 3}', "train_micro_batch_size_per_gpu"),
    ("deepspeed", '{"train_batch_size": 9, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1}',
     "gradient_accumulation_steps"),
    ("deepspeed", '{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "zero_optimization": 1}',
     "zero_optimization"),
    ("deepspeed", '{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 4}}',
     "zero_optimization.stage"),
    ("deepspeed", '{"train_batch_size": 8, "train_batch_size": 9}', "train_batch_size"),
    ("deepspeed", "[1]", "settings"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "text", "path"), REFUSED, ids=lambda value: str(value)[:60])
def test_refusals(source, text, path):
    with pytest.raises(InputError) as caught:
        read_plan(text, source)
    assert caught.value.path == path
    assert len(str(caught.value)) < 2_000


def test_a_layout_does_not_explode():
    with pytest.raises(InputError, match="at most"):
        layout_layers("((((t*99999)*99999)*99999)*99999)", "layout")
    assert layout_layers("Et*3|(tt|)*29,m|L", "layout") == [3, *[2] * 29, 0, 0]


def test_torchtitans_collectives_in_pieces():
    flags = "--training.local_batch_size=2 --training.global_batch_size=64 --parallelism.tensor_parallel_degree=2"
    said = f"{flags} --compile.enable --compile.enable_async_tensor_parallel"
    assert read_plan(said, "torchtitan").plan.tp_comm_overlap and not read_plan(said, "torchtitan").not_read
    whole = f"{said} --parallelism.no-enable-sequence-parallel"
    assert not read_plan(whole, "torchtitan").plan.tp_comm_overlap
    with pytest.raises(InputError, match=r"enable_async_tensor_parallel.*without torch.compile"):
        read_plan(f"{flags} --compile.enable_async_tensor_parallel", "torchtitan")


def test_torchtitan_leaves_the_rest_to_its_defaults():
    found = read_plan(
        ["--training.local_batch_size=2", "--training.global_batch_size=64", "--metrics.log_freq", "1"], "torchtitan"
    )
    assert (found.plan.zero, found.plan.dp, found.plan.micro_batch, found.plan.recompute) == (3, None, 2, "selective")
    assert found.not_read == ("--metrics.log_freq=1",)
    assert "recompute selective: torchtitan's default where no checkpointing is chosen" in found.notes


REGISTRY = """
def llama3_8b() -> Trainer.Config:
    model_spec = model_registry("8B")
    compile_config = CompileConfig(enable=True, components=["loss"])
    config = Trainer.Config(
        model_spec=model_spec,
        optimizer=default_adamw(lr=3e-4),
        training=TrainingConfig(local_batch_size=4, seq_len=8192, steps=1000),
        parallelism=ParallelismConfig(tensor_parallel_degree=8, pipeline_parallel_degree=4),
        activation_checkpoint=FullAC.Config(preserve_rng_state=False),
        compile=compile_config,
    )
    config.training.global_batch_size = 64
    config.training.local_batch_size = 8
    return config
"""


def test_torchtitans_constructors_are_read():
    found = read_plan(REGISTRY, "torchtitan", Model(name="m", layers=32, hidden=512, heads=8))
    plan = found.plan
    assert (plan.tp, plan.pp, plan.global_batch, plan.recompute, plan.compiled) == (8, 4, 64, "full", False)
    assert plan.stage_layers == (8, 9, 8, 7)  # embedding and head count as a layer each
    assert found.not_read == (
        "--model_spec=model_registry('8B')",
        "--optimizer=default_adamw(lr=0.0003)",
        "--training.steps=1000",
        "--activation_checkpoint.preserve_rng_state=False",
    )
    assert any("8, 9, 8, 7" in note for note in found.notes)


def test_a_configuration_that_starts_from_another_says_so():
    text = "def f():\n    config = llama3_8b()\n    config.training.global_batch_size = 64\n    return config\n"
    assert read_plan(text, "torchtitan").not_read == ("config = llama3_8b()",)


def test_torchtitan_splits_only_what_it_can():
    flags = "--parallelism.pipeline_parallel_degree=4 --training.global_batch_size=8"
    with pytest.raises(InputError, match="so many that there are 4 stages"):
        read_plan(f"{flags} --parallelism.pipeline_parallel_layers_per_stage=2", "torchtitan", MODEL)
    with pytest.raises(InputError, match="stages of 9 layers or more"):
        read_plan(f"{flags} --parallelism.pipeline_parallel_last_stage_less_layers=9", "torchtitan", MODEL)
    assert read_plan(flags, "torchtitan", MODEL).plan.stage_layers == (2, 3, 2, 1)


def test_deepspeed_lists_what_is_no_part_of_a_plan():
    config = {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}, "reduce_bucket_size": 5e8},
        "bf16": {"enabled": True},
    }
    found = read_plan(json.dumps(config), "deepspeed")
    assert (found.plan.dp, found.plan.zero, found.plan.offload.weights, found.plan.overlap_dp) == (8, 3, 1.0, True)
    assert found.not_read == ("optimizer.type", "optimizer.params.lr", "zero_optimization.reduce_bucket_size")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 2}, (32, 2, None)),
        ({"train_batch_size": 32, "gradient_accumulation_steps": 2}, (32, 2, 8)),
        ({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}, (64, 2, 8)),
        ({"train_batch_size": 32}, (32, 4, 8)),
        ({"train_micro_batch_size_per_gpu": 2}, (16, 2, 8)),
        ({"train_micro_batch_size_per_gpu": 2, "tensor_parallel": {"autotp_size": 2}}, (8, 2, 4)),
        ({"train_batch_size": 32, "tensor_parallel": {"autotp_size": 2}}, (16, 4, 4)),
        ({"train_micro_batch_size_per_gpu": 2, "pipeline": {"stages": 4}}, (4, 2, 2)),
    ],
)
def test_deepspeed_makes_its_batch_sizes_of_one_another(given, expected):
    plan = read_plan(given, "deepspeed", gpus=8).plan
    assert (plan.global_batch, plan.micro_batch, plan.dp) == expected


def test_deepspeeds_batch_must_be_whole():
    with pytest.raises(InputError, match=r"^train_batch_size: got 12; allowed: a multiple of 8 on 8 GPUs"):
        read_plan({"train_batch_size": 12}, "deepspeed", gpus=8)


BATCH = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2}


def test_deepspeeds_old_name_of_bf16_counts_where_the_new_one_is_missing():
    old, new = {"bfloat16": {"enabled": True}}, {"bf16": {"enabled": False}}
    assert read_plan(BATCH | old, "deepspeed").plan.precision == "bf16"
    found = read_plan(BATCH | old | new, "deepspeed")
    assert (found.plan.precision, found.not_read) == ("fp32", ("bfloat16.enabled",))
    with pytest.raises(InputError, match=r"^bfloat16\.enabled: "):
        read_plan(BATCH | old | {"fp16": {"enabled": True}}, "deepspeed")


@pytest.mark.parametrize(
    ("settings", "beside"),
    [
        ({"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}, "stage": 1}, False),
        ({"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}, "stage": 2}, True),
        ({"bf16": {"enabled": True}, "stage": 1}, True),
        ({"bf16": {"enabled": True}, "stage": 1, "pipeline": {"stages": 2}}, False),
        ({"stage": 0}, False),
        ({"stage": 1}, True),
    ],
)
def test_deepspeed_overlaps_in_zeros_own_optimizers_without_a_pipeline(settings, beside):
    given = dict(settings)
    zero = {"zero_optimization": {"stage": given.pop("stage"), "overlap_comm": True}}
    found = read_plan(BATCH | zero | given, "deepspeed")
    assert found.plan.overlap_dp == beside
    assert any("overlap_comm" in note for note in found.notes) != beside
    assert found.plan.blocking_sends == ("pipeline" in settings)
    assert any(note.startswith("framework: left at its default") for note in found.notes)


def test_an_order_that_has_no_name_is_refused():
    flags = "--parallelism.pipeline_parallel_degree=2 --parallelism.pipeline_parallel_schedule_csv=x.csv"
    with pytest.raises(InputError, match="another order"):
        read_plan(flags, "torchtitan", MODEL, order="0F0,0F1,0B1,0B0\n1F0,1B0,1F1,1B1\n")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("torchtitan", "--parallelism.pipeline_parallel_degree 2 --parallelism.data_parallel_shard_degree 1"),
        ("torchtitan", "--parallelism.data_parallel_shard_degree 1 --parallelism.pipeline_parallel_schedule_csv=o.csv"),
        ("megatron", "--global-batch-size 8"),
        ("deepspeed", '{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1}'),
    ],
)
def test_an_order_that_the_settings_do_not_name_is_refused(source, text):
    """It would be passed over: the plan runs the schedule that they name."""
    assert read_plan(text, source, MODEL).plan.pp in (1, 2)
    with pytest.raises(InputError, match=r"^order: got"):
        read_plan(text, source, MODEL, order="0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
