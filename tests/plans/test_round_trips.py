"""A plan, emitted and read back: the same in every field that the target expresses."""

import json

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

import sim
from sim.plans import EXPORTERS, emitted
from sim.plans.files import job_data
from sim.plans.flags import words
from sim.plans.from_megatron import NAMES
from sim.plans.importing import read_plan
from sim.plans.plan_file import load_plan, plan_data, save_plan
from sim.plans.targets import deepspeed_overlaps, refusals
from sim.schedules import SCHEDULES
from sim.specs import Cluster, InputError, Job, Model, Offload, Plan
from sim.specs.job import read_sections
from tests.oracle import ROOT

DIMENSIONS = {"layers": 8, "hidden": 512, "heads": 8, "seq": 256, "tied_embeddings": False}
MOE = Model(name="moe", **DIMENSIONS, experts=4, experts_per_token=2, moe_ffn=512, bias=False)
DENSE = Model(name="dense", **DIMENSIONS)
CLUSTER = Cluster.of("h100-sxm-80gb", nodes=2)
SHARE = st.sampled_from([0.0, 0.25, 0.5, 1.0])

POWERS = st.sampled_from([1, 2, 4])
SETTINGS = {
    "tp": POWERS,
    "pp": POWERS,
    "virtual_stages": st.sampled_from([1, 1, 2]),
    "cp": st.sampled_from([1, 1, 2]),
    "ep": st.sampled_from([1, 1, 2]),
    "etp": st.sampled_from([1, 1, 2]),
    "zero": st.integers(0, 3),
    "micro_batch": st.sampled_from([1, 2]),
    "recompute": st.sampled_from(["none", "selective", "full"]),
    "precision": st.sampled_from(["bf16", "bf16", "fp16", "fp8", "mxfp8", "nvfp4", "fp32"]),
    "rank_order": st.sampled_from(["tp-cp-dp-pp", "tp-cp-dp-pp", "tp-cp-pp-dp"]),
}
LEFT_OUT = {
    "schedule": st.sampled_from(list(SCHEDULES)),
    "stage_layers": st.permutations([1, 3, 2, 2]).map(tuple),
    "fsdp_shard": st.sampled_from([2, 4]),
    "sequence_parallel": st.booleans(),
    "microbatch_group_size": st.sampled_from([2, 4, 8]),
    "recompute_layers": st.integers(1, 2),
    "gradient_dtype": st.sampled_from(["fp32", "bf16"]),
    "overlap_dp": st.booleans(),
    "fused_wgrad": st.booleans(),
    "tp_comm_overlap": st.booleans(),
    "token_dispatcher": st.sampled_from(("deepep", "hybridep")),
    "ep_overlap": st.booleans(),
    "cuda_graphs": st.booleans(),
    "recompute_experts": st.booleans(),
    "layer_graphs": st.booleans(),
    "compiled": st.booleans(),
    "optimizer_barrier": st.just(True),
    "offload": st.builds(Offload, optimizer=SHARE, activations=SHARE, weights=st.sampled_from([0.0, 1.0])),
}


@st.composite
def steps(draw, target, **usual):
    """Return the step of a legal plan that `target` can run."""
    given_ = {name: draw(values) for name, values in SETTINGS.items()} | usual
    given_ |= {name: draw(values) for name, values in LEFT_OUT.items() if draw(st.integers(0, 3)) == 0}
    model = draw(st.sampled_from([MOE, DENSE]))
    try:
        placed = Plan(global_batch=64, **given_).on(model, CLUSTER)
        assume(not list(refusals(model, placed, target)))
        step = sim.simulate(model, CLUSTER, placed.plan)
    except InputError:
        assume(False)
    return step


def same(step, found, expresses):
    """Compare what is derived where it was left out by what it comes to."""
    placed, again = step.placed, found.plan.on(step.model, step.cluster)
    for field in expresses:
        pairs = {"dp": (placed.dp, again.dp), "fsdp_shard": (placed.shard, again.shard)}
        ours, theirs = pairs.get(field, (getattr(placed.plan, field), getattr(again.plan, field)))
        if field == "schedule" and placed.plan.pp == 1:
            ours = "none"  # on one rank all of them run each microbatch forward and backward in turn
        if field == "microbatch_group_size" and placed.plan.schedule != "interleaved":
            continue
        if field == "stage_layers" and len(set(ours or (0,))) == 1:
            ours = None
        if (field == "fsdp_shard" and not placed.plan.zero) or (field == "tp_comm_overlap" and placed.plan.tp == 1):
            continue
        if field == "tp_comm_overlap" and again.plan.framework == "torch":
            ours = ours and placed.plan.compiled  # torchtitan needs torch.compile for it
        if (field == "token_dispatcher" and not step.model.experts) or (field == "ep_overlap" and placed.plan.ep == 1):
            continue
        if field == "recompute_experts":
            ours = ours and placed.plan.recompute == "selective" and bool(step.model.experts)
        if field == "layer_graphs":
            ours = ours and not placed.plan.cuda_graphs
        assert ours == theirs, field


@pytest.mark.slow
@given(steps("megatron"))
def test_megatron(step):
    try:
        text = emitted(step, "megatron")["plan.args"]
    except InputError as refused:
        assert refused.path == "plan.offload"  # activations of whole layers only
        return
    found = read_plan(text, "megatron", step.model, gpus=CLUSTER.gpus)
    same(step, found, EXPORTERS["megatron"].expresses)
    assert (found.not_read, found.notes) == ((), ())


@given(steps("megatron"))
def test_megatron_in_any_form(step):
    assume(not step.plan.offload.used)
    text = emitted(step, "megatron")["plan.args"]
    listed = words(text, "text")
    named = dict(from_megatron_values(listed))
    forms = (text, listed, named, json.dumps(listed), json.dumps(named), yaml.safe_dump(named))
    assert len({read_plan(form, "megatron", gpus=CLUSTER.gpus).plan for form in forms}) == 1


def from_megatron_values(listed):
    """Yield the arguments by name, as Megatron-LM's own namespace holds them."""
    heads = [n for n, word in enumerate(listed) if word.startswith("--")]
    for head, end in zip(heads, [*heads[1:], len(listed)], strict=True):
        after = [int(word) if word.isdigit() else word for word in listed[head + 1 : end]]
        yield listed[head][2:].replace("-", "_"), after if len(after) > 1 else after[0] if after else True


FEW = {"etp": 1, "rank_order": "tp-cp-dp-pp", "precision": "bf16"}


@pytest.mark.slow
@pytest.mark.parametrize("target", ["torchtitan", "torchtitan-0.3"])
@given(data=st.data())
def test_torchtitan(target, data):
    step = data.draw(steps(target, **FEW))
    files = emitted(step, target)
    csv = files.get("plan.csv")
    if csv and SCHEDULES[step.plan.schedule].searched:
        return  # an order made for this model's durations has no name
    by_flags = target == "torchtitan-0.3" and "module_fqns_per_model_part" not in files["plan.py"]
    assert ("plan.flags" in files) == by_flags
    for name in files.keys() - {"plan.csv"}:
        found = read_plan(files[name], "torchtitan", step.model, order=csv)
        same(step, found, EXPORTERS[target].expresses)
        assert found.not_read == ()


def test_torchtitans_stages_of_any_lengths():
    """A list of modules' names; the flags cannot say it, the Python configuration does."""
    step = sim.simulate(DENSE, CLUSTER, Plan(pp=4, stage_layers=(1, 3, 1, 3), global_batch=64))
    assert " config.parallelism.module_fqns_per_model_part = " in emitted(step, "torchtitan-0.3")["plan.py"]
    files = emitted(step, "torchtitan")
    assert list(files) == ["plan.py"]
    assert "config.parallelism.pipeline_parallel_module_fqns_per_model_part = [['tok_embeddings'," in files["plan.py"]
    assert "[['tok_embeddings', 'layers.0'], ['layers.1', 'layers.2', 'layers.3']," in files["plan.py"]
    assert "'layers.7', 'norm', 'lm_head']]" in files["plan.py"]
    assert read_plan(files["plan.py"], "torchtitan", DENSE).plan.stage_layers == (1, 3, 1, 3)
    for before, after in (("layers.1'", "layers.2'"), ("['layers.4']", "'layers.4'"), ("'norm'", "open('x')")):
        with pytest.raises(InputError, match="module_fqns_per_model_part"):
            read_plan(files["plan.py"].replace(before, after), "torchtitan", DENSE)


@pytest.mark.parametrize(
    "text",
    ["config." + "a." * 50_000 + "b = 1", "config.a = " + "(" * 900, "config.a = " + "-" * 5_000 + "1", "config.a ="],
)
def test_a_configuration_that_is_none_is_refused(text):
    with pytest.raises(InputError, match="config"):
        read_plan(text, "torchtitan", DENSE)


ALONE = {"cp": 1, "virtual_stages": 1, "rank_order": "tp-cp-dp-pp", "sequence_parallel": False}


@pytest.mark.slow
@given(steps("deepspeed", **ALONE))
def test_deepspeed(step):
    found = read_plan(emitted(step, "deepspeed")["plan.json"], "deepspeed", gpus=CLUSTER.gpus)
    same(step, found, [field for field in EXPORTERS["deepspeed"].expresses if field not in ("overlap_dp", "offload")])
    assert found.plan.overlap_dp == (step.plan.overlap_dp and deepspeed_overlaps(step.plan))
    for name in ("optimizer", "activations", "weights"):
        assert getattr(found.plan.offload, name) == getattr(step.plan.offload, name)
    assert found.not_read == ()


@pytest.mark.slow
@given(step=steps("any"))
def test_plan_file(tmp_path_factory, step):
    path = save_plan(step, tmp_path_factory.mktemp("plans") / "plan.json")
    found = load_plan(path)
    assert plan_data(sim.simulate(found.job.model, found.job.cluster, found.job.plan)) == json.loads(path.read_text())
    assert sim.Job.load(path).plan == found.job.plan


def test_the_readers_module_has_its_names():
    assert set(NAMES) <= set(EXPORTERS["megatron"].expresses)


@pytest.mark.parametrize("name", ["llama3-70b-run", "llama3-70b-whole"])
def test_what_surrounds_the_steps_is_read_back_as_it_was_stated(name, tmp_path):
    """What was left out is assumed, and told, again: it does not become a statement that others contradict."""
    job = Job.load(ROOT / "notebooks" / "jobs" / f"{name}.yaml")
    data = json.loads(json.dumps(job_data(job.model, job.cluster, job.plan, job.around)))
    made, problems = read_sections(data, tmp_path)
    assert not problems
    for section, stated in job.around.sections.items():
        assert made[section] == stated
        assert getattr(made[section], "assumptions", ()) == getattr(stated, "assumptions", ())
