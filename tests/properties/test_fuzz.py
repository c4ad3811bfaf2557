"""Damaged files: each loads or is refused with one `InputError`; nothing else happens, and soon."""

import gc
import json
import math
import os
import shutil
import sys
import time
import tracemalloc
from collections import Counter
from pathlib import Path
from random import Random

import jsonschema
import pytest
import yaml

from sim.catalog import folder
from sim.cli.device import device_text
from sim.costs.profile import load_profile
from sim.engine.step import simulate
from sim.specs import InputError, Job, Model
from sim.specs.catalog import device
from sim.specs.check import check_job
from sim.specs.files import UNPRINTABLE, load_mapping
from sim.specs.schema import file_schema
from tests.full import FULL
from tests.oracle import ROOT
from tests.pace import slower
from tests.properties.mutations import damaged

CHUNKS = 20 if FULL else 10
FILES = 100_000 if FULL else 400
MAX_FILE_S = 1.0
TRIES = 3
"""A file is slow if it is so as often as this in a row: the collection of garbage of other tests is none of its own."""

MAX_FILE_BYTES = 128 * 2**20
TRACED = 25
"""One file in so many is loaded under the memory tracer, which is slow."""

MAX_SIMULATED = 12 if FULL else 1
SMALL_STEP = 2_000

JOBS = ROOT / "notebooks" / "jobs"
CONFIG = JOBS / "llama3-70b" / "config.json"
INLINE = {
    "model": {"name": "m", "layers": 8, "hidden": 512, "heads": 8, "kv_heads": 4, "vocab": 32000, "seq": 1024},
    "cluster": {
        "device": "l4",
        "nodes": 2,
        "gpus_per_node": 4,
        "links": {"intra_bytes_per_s": 3.2e10, "latency_s": 1e-5},
    },
    "plan": {
        "tp": 2,
        "pp": 2,
        "global_batch": 64,
        "micro_batch": 2,
        "zero": 1,
        "recompute": "full",
        "schedule": "1f1b",
    },
    "tune": {"global_batch": 64, "knobs": {"tp": [1, 2], "recompute": ["none", "full"]}, "objective": "cost"},
}
MOE = {
    "model": {
        "layers": 6, "hidden": 256, "heads": 8, "norm": "rmsnorm", "gated_mlp": True, "vocab": 1000, "seq": 512,
        "experts": 8, "experts_per_token": 2, "moe_ffn": 128, "shared_ffn": 128, "dense_layers": 1, "mtp_layers": 1,
        "head_dim": 32, "q_lora_rank": 64, "kv_lora_rank": 32, "rope_head_dim": 16, "v_head_dim": 32,
        "capacity_factor": 1.25, "imbalance": 1.1, "window": 128, "global_every": 2,
    },
    "cluster": {
        "groups": [
            {"device": "h100-sxm-80gb", "nodes": 1},
            {"device": "a100-sxm-80gb", "nodes": 1, "usd_per_gpu_hour": 1.5, "memory_bytes": 8e10},
        ],
    },
    "plan": {
        "tp": 2, "pp": 2, "cp": 2, "ep": 2, "etp": 1, "zero": 1, "fsdp_shard": 4, "rank_order": "tp-cp-dp-pp",
        "stage_layers": [2, 4], "schedule": "zb-h1", "global_batch": 32, "compiled": True, "gradient_dtype": "bf16",
        "software_year": 2026.58,
        "offload": {"optimizer": 0.5, "activations": 0.3, "weights": 0.2, "gradients": 0.4},
    },
    "training": {"tokens": 1e9, "goodput": 0.9, "pue": 1.2},
}  # fmt: skip
HYBRID = {
    "model": {
        "layers": 6, "hidden": 256, "heads": 8, "pattern": "M*-EM*", "experts": 4, "moe_ffn": 64, "moe_latent": 128,
        "ssm_state": 16, "ssm_heads": 8, "ssm_head_dim": 64, "ssm_groups": 2, "ssm_conv": 4, "ssm_chunk": 64,
        "norm": "rmsnorm", "vocab": 1000, "seq": 512, "tied_embeddings": False, "bias": False, "positions": "none",
    },
    "cluster": {
        "device": "b200", "nodes": 4, "gpus_per_node": 4, "domain_gpus": 8,
        "links": {"oversubscription": 2.0, "rail_nodes": 2, "inter_bytes_per_s_per_node": 5e10},
    },
    "plan": {"tp": 2, "ep": 4, "precision": "mxfp8", "global_batch": 64, "micro_batch": 2, "recompute": "selective"},
    "training": {"steps": 1000, "utilisation": 0.8, "usd_per_gpu_hour": 4.0},
}  # fmt: skip
PAIR = {
    "model": {
        "family": "encoder-decoder", "layers": 4, "encoder_layers": 2, "hidden": 64, "heads": 4, "encoder_seq": 256,
        "positions": "relative", "vocab": 1000, "seq": 128,
    },
    "cluster": {"device": "mine.yaml", "nodes": 1, "gpus_per_node": 2},
    "plan": {"global_batch": 8},
}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v3", "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4,
    "intermediate_size": 512, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
    "first_k_dense_replace": 1, "q_lora_rank": 64, "kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16,
    "v_head_dim": 32, "vocab_size": 1000, "max_position_embeddings": 512, "num_nextn_predict_layers": 1,
}  # fmt: skip
NEMOTRON = {
    "model_type": "nemotron_h", "hybrid_override_pattern": "M-M*E", "num_hidden_layers": 5, "hidden_size": 64,
    "num_attention_heads": 4, "head_dim": 16, "num_key_value_heads": 2, "mamba_num_heads": 8, "n_groups": 2,
    "n_routed_experts": 8, "ssm_state_size": 16, "moe_intermediate_size": 64, "intermediate_size": 128,
}  # fmt: skip
GEMMA3 = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text", "num_hidden_layers": 6, "hidden_size": 64, "intermediate_size": 128,
        "sliding_window": 64,
    },
}  # fmt: skip
T5 = {
    "model_type": "t5",
    "num_layers": 2,
    "d_model": 64,
    "num_heads": 4,
    "d_ff": 128,
    "feed_forward_proj": "gated-gelu",
}
MINE = device_text("mine", device("l4"), "mine.yaml")
GPT2 = {"model_type": "gpt2", "n_layer": 4, "n_embd": 256, "n_head": 4, "n_positions": 512, "vocab_size": 50257}


def _shipped(kind: str, name: str) -> str:
    return (folder(kind) / name).read_text("utf-8")


SEEDS: list[tuple[str, str, str]] = [
    *(("job", "job.yaml", file.read_text("utf-8")) for file in sorted(JOBS.glob("*.yaml"))),
    ("job", "job.yaml", yaml.safe_dump(INLINE)),
    ("job", "job.yaml", json.dumps(INLINE)),
    ("job", "job.json", json.dumps(INLINE, indent=1)),
    ("job", "job.json", json.dumps({k: v for k, v in INLINE.items() if k != "tune"})),
    *(("job", "job.json", json.dumps(job, indent=1)) for job in (MOE, HYBRID, PAIR)),
    *(("job", "job.yaml", yaml.safe_dump(job)) for job in (MOE, HYBRID)),
    *(("config", "config.json", json.dumps(raw)) for raw in (DEEPSEEK, NEMOTRON, GEMMA3, T5)),
    ("device", "device.yaml", MINE),
    ("config", "config.json", CONFIG.read_text("utf-8")),
    ("config", "config.json", json.dumps(GPT2)),
    ("device", "device.json", _shipped("devices", "l4.json")),
    ("device", "device.yaml", yaml.safe_dump(json.loads(_shipped("devices", "h100-sxm-80gb.json")))),
    ("profile", "profile.json", _shipped("profiles", "l4/profile.json")),
]
"""(kind, file name, a valid text)"""


BESIDE = (CONFIG.parent.name, "mine.yaml")


def beside(folder: Path) -> None:
    """Put what the jobs name into `folder`."""
    shutil.copytree(CONFIG.parent, folder / CONFIG.parent.name)
    (folder / "mine.yaml").write_text(MINE, "utf-8")


def load(kind: str, file: Path) -> Job | None:
    """Load a file as the commands do; a plan is placed, nothing is simulated."""
    if kind == "config":
        Model.from_hf(file)
    elif kind == "device":
        device(str(file))
    elif kind == "profile":
        load_profile(str(file.parent))
    else:
        job = Job.load(file)
        for member in job.cluster.members:
            load_profile(member.profile)
        if job.plan:
            job.plan.on(job.model, job.cluster)
        return job
    return None


class Watch:
    """Hears of files written and programs started while it is on (PEP 578); hooks cannot be taken off again."""

    FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect", "exec", "os.remove")

    def __init__(self) -> None:
        self.on = False
        self.heard: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, details: tuple[object, ...]) -> None:
        if not self.on:
            return
        writes = event == "open" and bool(int(str(details[2] or 0)) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        if writes or event in self.FORBIDDEN or event in ("os.mkdir", "os.rename"):
            self.heard.append(f"{event} {details}")


@pytest.fixture(scope="module")
def watch(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undamaged")
    beside(folder)
    for kind, name, text in SEEDS:  # what is loaded once for all files does not count against one
        (folder / name).write_text(text, "utf-8")
        load(kind, folder / name)
    gc.collect()
    gc.freeze()  # what other tests have left is not gone through again while files load
    return Watch()


@pytest.mark.parametrize("seed", SEEDS, ids=lambda s: f"{s[0]}-{s[1]}")
def test_undamaged_files_load(tmp_path, seed):
    kind, name, text = seed
    (tmp_path / name).write_text(text, "utf-8")
    beside(tmp_path)
    load(kind, tmp_path / name)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_damaged_files(tmp_path, monkeypatch, watch, chunk):
    monkeypatch.chdir(tmp_path)
    beside(tmp_path)
    random, count = Random(chunk), Counter()
    schema = jsonschema.Draft202012Validator(file_schema(Job))
    for number in range(10 * FILES // CHUNKS):
        if number >= FILES // CHUNKS and count["simulated"] == MAX_SIMULATED:
            break
        kind, name, text = random.choice(SEEDS)
        file = tmp_path / name
        raw = damaged(random, text)
        file.write_bytes(raw)
        where = f"chunk {chunk}, file {number}: {name} {raw[:200]!r}"
        job, error = _watched(kind, file, watch, where, traced=number % TRACED == 0)
        count["loaded" if error is None else "refused"] += 1
        assert {p.name for p in tmp_path.iterdir()} == {name, *BESIDE}, where
        if error is not None:
            assert not UNPRINTABLE.search(str(error)), where
            assert "\n" not in str(error), where
            assert len(str(error)) < 2_000, where
        elif job:
            assert schema.is_valid(load_mapping(file)), where
            if count["simulated"] < MAX_SIMULATED:
                count["simulated"] += _simulated(job, where)
        if kind == "job" and number % 5 == 0:
            _agrees(file, error, where)
        file.unlink()
    assert count["loaded"] > FILES / CHUNKS / 50
    assert count["refused"] > FILES / CHUNKS / 3
    assert count["simulated"] == MAX_SIMULATED


def _watched(kind: str, file: Path, watch: Watch, where: str, traced: bool) -> tuple[Job | None, InputError | None]:
    most = (5 if traced else 1) * MAX_FILE_S
    for _ in range(TRIES):
        job, error, spent = _timed(kind, file, watch, where, traced)
        if spent < most or spent < most * slower():
            return job, error
    pytest.fail(f"{where}: {spent:.1f} s")


def _timed(
    kind: str, file: Path, watch: Watch, where: str, traced: bool
) -> tuple[Job | None, InputError | None, float]:
    """Return what loading a file gives or raises, and the CPU seconds that it takes."""
    job, error = None, None
    if traced:
        tracemalloc.start()
    begin = time.process_time()
    watch.on = True
    try:
        job = load(kind, file)
    except InputError as refused:
        error = refused
    except Exception as other:  # any other class is what this test looks for
        pytest.fail(f"{where}: {type(other).__name__}: {other}")
    finally:
        watch.on = False
        spent = time.process_time() - begin
        peak = tracemalloc.get_traced_memory()[1] if traced else 0
        tracemalloc.stop()
    assert not watch.heard, f"{where}: {watch.heard}"
    assert peak < MAX_FILE_BYTES, f"{where}: {peak} bytes"
    return job, error, spent


def _simulated(job: Job, where: str) -> int:
    """Simulate a small step: a finite positive time, or an `InputError`; return how many were simulated."""
    if not job.plan:
        return 0
    placed = job.plan.on(job.model, job.cluster)
    if placed.microbatches * placed.stages > SMALL_STEP:
        return 0
    try:
        step = simulate(job.model, job.cluster, job.plan)
    except InputError:
        return 1
    for value in (step.step_time_s, step.mfu, step.peak_memory_bytes, step.tokens_per_s_per_gpu):
        assert math.isfinite(value), where
        assert value > 0, where
    return 1


def _agrees(file: Path, error: InputError | None, where: str) -> None:
    """Checking says that something is wrong exactly where loading does."""
    try:
        raw = load_mapping(file)
    except InputError:
        return
    _, problems = check_job(raw, file.parent)
    assert bool(problems) == (error is not None) or (error is not None and "profile" in error.path), where


BOMBS = {
    "aliases.yaml": b"a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
    "dense.yaml": b"a: [" + b"b," * 16_000 + b"]",
    "flow.yaml": b"a: [" + b"{}," * 10_000 + b"]",
    "keys.yaml": b"".join(b"k%d:\n" % n for n in range(4_500)),
    "simple.yaml": b"[a: " * 300 + b"]" * 300,
    "brackets.yaml": b"[" * 32_000,
    "big.yaml": b"x: " + b"a" * 10 * 2**20,
    "values.json": b'{"model": [' + b"0," * 500_000 + b"0]}",
    "keys.json": b'{"plan": {' + b",".join(b'"k%d": 1' % n for n in range(49_000)) + b"}}",
    "knobs.json": b'{"tune": {"global_batch": 8, "knobs": {"tp": [' + b"0," * 49_000 + b"0]}}}",
    "long.json": b'{"' + b"k" * 1_000_000 + b'": 1}',
    "text.json": b'{"model": "' + b"\\u0041" * 150_000 + b'"}',
    "profile.json": b'{"schema_version": 1, "models": [' + b"0," * 49_000 + b"0]}",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_bombs(tmp_path, watch, name):
    file = tmp_path / name
    file.write_bytes(BOMBS[name])
    for traced in (False, True):
        job, error = _watched("profile" if name == "profile.json" else "job", file, watch, name, traced=traced)
        assert job is None
        assert error is not None
        assert len(str(error)) < 2_000
