"""One training step: terms that add up, engines that agree, closed forms, published runs."""

import math
from dataclasses import replace
from functools import cache
from itertools import product
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sim.costs import inputs
from sim.costs.algebra import Interpreted
from sim.costs.layers.ops import COMMUNICATION
from sim.costs.layers.structure import Structure
from sim.costs.run_level import symbol_values
from sim.engine.assembly import step_schedule
from sim.engine.closed_form import closed_form, lower_bound
from sim.engine.noise import Noise
from sim.engine.ramps import RAMP, Ramp
from sim.engine.step import simulate
from sim.schedules import CLOSED, SCHEDULES, Action, Kind
from sim.specs import Cluster, InputError, Links, Model, Offload, Plan
from sim.specs.catalog import models


def test_breakdown_sums_to_the_step(gpt3, h100s, interleaved):
    step = simulate(gpt3, h100s, interleaved)
    assert sum(step.breakdown_s.values()) == pytest.approx(step.step_time_s, rel=1e-12)
    assert min(step.breakdown_s.values()) > -1e-9
    assert step.breakdown_s["cp"] == step.breakdown_s["offload"] == 0


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "dualpipe"])
@pytest.mark.parametrize("zero", [2, 3])
def test_waiting_for_shards_counts_as_data_parallelism_in_whole_and_split_backwards(gpt3, h100s, schedule, zero):
    step = simulate(gpt3, h100s, Plan(tp=8, pp=8, micro_batch=1, global_batch=128, zero=zero, schedule=schedule))
    passes = ("forward_compute", "input_compute", "weight_compute")
    least, most = ({f"{end}{n}" for n in passes for end in ends} for ends in ([""], ["", "embedding_", "head_"]))
    once, ends = (sum(float(np.max(step.costs[n])) for n in names) for names in (least, most))
    m = step.placed.microbatches
    assert once * m * (1 - 1e-6) <= step.breakdown_s["compute"] <= ends * m * (1 + 1e-6)


@pytest.mark.parametrize("attention", ["flash", "eager"])
def test_fused_attention_of_an_older_kernel_takes_its_factor_and_nothing_else_changes(gpt3, h100s, attention):
    model, plan = replace(gpt3, attention=attention), Plan(tp=8, pp=16, micro_batch=1, global_batch=128)
    new, old = (simulate(model, h100s, replace(plan, attention_kernel=k)) for k in ("flash", "flash-1"))
    fused = [k for k in new.kernels if k.op == "attention"]
    more = {n: old.costs[n] - new.costs[n] for n in new.costs if np.any(old.costs[n] != new.costs[n])}
    assert bool(more) == bool(fused) == (attention == "flash")
    assert all(np.all(d >= 0) for d in more.values())


@pytest.mark.parametrize(
    ("device", "own", "slower"),
    [("h100-sxm-80gb", "flash-2", 1.0), ("h200-sxm-141gb", "cudnn", 1.5), ("b200", "cudnn", 1.5)],
)
def test_kernels_of_fused_attention_are_told_from_what_the_profile_holds(device, own, slower):
    """H100's public rates are FlashAttention-2's, those of an H200's PyTorch and of B200s are cuDNN's."""
    model, plan, where = models["llama3-8b"], Plan(zero=3, global_batch=64, micro_batch=1), Cluster.of(device, nodes=1)

    def attention_s(kernel: str) -> float:
        step = simulate(model, where, plan.but(attention_kernel=kernel, zero=3))
        return sum(op.seconds for op in step.operations if op.name in ("attention forward", "attention backward"))

    took = {kernel: attention_s(kernel) for kernel in ("flash", "flash-1", "flash-2", "cudnn")}
    assert took["flash"] == took[own]
    assert took["flash-2"] / took["flash"] == pytest.approx(slower)
    assert took["flash-1"] / took["flash-2"] == pytest.approx(1.8)
    assert took["flash-2"] / took["cudnn"] == pytest.approx(1.5)


def test_no_cudnn_attention_before_hopper(gpt3):
    with pytest.raises(InputError, match=r"^plan.attention_kernel: got 'cudnn'; allowed: flash, flash-1 or flash-2 on"):
        simulate(
            gpt3, Cluster.of("a100-sxm-80gb", nodes=16), Plan(tp=8, pp=16, global_batch=128, attention_kernel="cudnn")
        )


@pytest.mark.parametrize(
    "change", [{}, {"zero": 0}, {"zero": 2}, {"zero": 3, "virtual_stages": 1, "pp": 1}, {"overlap_dp": False}]
)
def test_closed_forms_of_overlap_are_near_the_event_engine(gpt3, h100s, interleaved, change):
    """The compiled path is charged what stays exposed; the event engine lets the collectives run."""
    path, events = (simulate(gpt3, h100s, interleaved.but(**change), engine) for engine in ("path", "events"))
    assert events.step_time_s == pytest.approx(path.step_time_s, rel=0.055)
    assert events.peak_memory_bytes == path.peak_memory_bytes
    assert sum(events.breakdown_s.values()) == pytest.approx(events.step_time_s)
    assert min(events.breakdown_s.values()) >= 0


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("engine", ["path", "events"])
def test_every_schedule_makes_steps(gpt3, h100s, name, engine):
    """The same work in another order: no faster than the work of a rank, no slower than without any overlap."""
    chunks = SCHEDULES[name].chunks // SCHEDULES[name].copies
    plan = Plan(tp=8, pp=4, virtual_stages=chunks, schedule=name, global_batch=64, zero=0)
    step = simulate(gpt3, h100s, plan, engine)
    flushed = simulate(gpt3, h100s, Plan(tp=8, pp=4, schedule="gpipe", global_batch=64, zero=0), engine)
    assert sum(step.breakdown_s.values()) == pytest.approx(step.step_time_s)
    assert min(step.breakdown_s.values()) >= 0
    if name != "pipedream":  # reduces the gradients of every microbatch
        assert flushed.breakdown_s["compute"] * 0.95 < step.step_time_s < 1.25 * flushed.step_time_s
    copies = sum(m.fixed["parameters"] for m in step.memory) / sum(m.fixed["parameters"] for m in flushed.memory)
    assert copies == pytest.approx({"dualpipe": 2, "chimera": 2, "2bw": 2, "pipedream": 2.5}.get(name, 1), rel=0.03)


def test_placement_is_the_schedules(gpt3, h100s):
    for name, kind in SCHEDULES.items():
        plan = Plan(tp=8, pp=4, virtual_stages=kind.chunks // kind.copies, schedule=name, global_batch=64)
        assert plan.rank_of == step_schedule(plan.on(gpt3, h100s), {"send": 0.0, **flat_costs()}).rank_of
        assert plan.copies == kind.copies


def flat_costs():
    """Return costs of one second wherever a searched order asks for them."""
    parts = ("forward_compute", "input_compute", "weight_compute")
    zeros = [f"{phase}_{c}" for phase in ("forward", "input") for c in COMMUNICATION]
    zeros += [f"{way}_dp" for way in ("forward", "backward", "input", "weight")]
    zeros += ["forward_host", "recompute", "backward_host"]
    costs = dict.fromkeys(parts, 1.0) | dict.fromkeys(zeros, 0.0)
    return costs | {f"{end}_{name}": 0.0 for end in ("embedding", "head") for name in costs}


@given(st.integers(20, 160), st.integers(1, 60))
def test_more_memory_is_never_slower_and_never_fits_less(gigabytes, more):
    fits = []
    for size in (gigabytes, gigabytes + more):
        cluster = Cluster.of("h100-sxm-80gb", memory_bytes=size * 1e9)
        step = simulate(models["llama2-7b"], cluster, Plan(tp=2, global_batch=16, zero=1))
        fits.append(({"no": 0, "close": 1, "yes": 2}[step.fits], -step.step_time_s))
    assert fits[0] <= fits[1]
    assert fits[0][1] == fits[1][1]


def test_a_barrier_is_a_knob(gpt3, h100s):
    """Without one a zero-bubble step takes its longest rank span."""
    plan = Plan(tp=8, pp=4, schedule="zb-h2", global_batch=64, zero=0)
    free, held = (simulate(gpt3, h100s, plan.but(optimizer_barrier=b)) for b in (False, True))
    assert simulate(gpt3, h100s, plan).step_time_s == free.step_time_s
    assert free.timeline.period == free.timeline.spans().max() < held.timeline.makespan
    assert free.step_time_s < 0.98 * held.step_time_s


def test_slow_devices_and_jitter(gpt3, h100s, interleaved):
    for engine in ("path", "events"):
        calm = simulate(gpt3, h100s, interleaved, engine).step_time_s

        def run(engine=engine, **noise):
            return simulate(gpt3, h100s, interleaved, engine, noise=Noise(**noise)).step_time_s

        assert run() == calm
        assert 1.05 < run(slow={(2, 1): 1.3}) / calm < 1.3
        assert run(slow={(2, 1): 1.3}) == run(slow={(0, 1): 1.3})
        assert run(jitter=0.05) == run(jitter=0.05) != run(jitter=0.05, seed=1)
        assert calm < run(jitter=0.05) < 1.1 * calm


def test_replicas_without_flush_meet_at_every_update():
    """Each waits for the slowest of all, microbatch by microbatch: on either engine."""
    model = Model(name="small", layers=24, hidden=2048, heads=16, vocab=50_304, seq=2048)
    cluster, plan = Cluster.of("h100-sxm-80gb", nodes=2), Plan(pp=4, global_batch=64, schedule="pipedream")
    path, events = (simulate(model, cluster, plan, e, noise=Noise(jitter=0.1)) for e in ("path", "events"))
    assert path.step_time_s == pytest.approx(events.step_time_s, rel=0.02)


@pytest.mark.parametrize(("engine", "schedule", "seed"), [("path", "2bw", 3), ("events", "pipedream", 2)])
def test_no_term_of_a_step_with_jitter_is_negative(engine, schedule, seed):
    model = Model(name="tiny", layers=4, hidden=2048, heads=8, vocab=50_257, seq=16)  # its update takes the most
    cluster = Cluster.of("h100-sxm-80gb", gpus_per_node=2)
    plan = Plan(pp=2, global_batch=2, schedule=schedule)
    step = simulate(model, cluster, plan, engine, noise=Noise(jitter=0.3, seed=seed))
    assert min(step.breakdown_s.values()) >= 0
    assert sum(step.breakdown_s.values()) == pytest.approx(step.step_time_s, rel=1e-12)


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        ({"jitter": -1}, "noise.jitter: got -1; allowed: 0 to 1"),
        ({"replicas": 0}, "noise.replicas: got 0; allowed: 1 to 64"),
        ({"seed": -1}, "noise.seed: got -1; allowed: 0 or more"),
        (
            {"slow": {(0, 0): 1e300}},
            "noise.slow: got 1e+300; allowed: factors that leave at most 1e+09 s of operations",
        ),
        ({"jitter": "a"}, "noise.jitter: got 'a'; allowed: a number"),
        ({"slow": 3}, "noise.slow: got 3; allowed: a mapping of (replica, pipeline rank) to a factor"),
        ({"slow": {1: 2}}, "noise.slow: got 1; allowed: keys (replica, pipeline rank)"),
        ({"slow": {(0, 0): 0}}, "noise.slow[(0, 0)]: got 0; allowed: a factor above 0"),
        ({"slow": {(99, 0): 2}}, "noise.slow: got [99, 0]; allowed: replicas 0 to 3, ranks 0 to 3"),
    ],
)
def test_noise_is_checked(gpt3, h100s, interleaved, noise, message):
    with pytest.raises(InputError) as caught:
        simulate(gpt3, h100s, interleaved, noise=Noise(**noise))
    assert str(caught.value) == message


def test_a_step_beyond_the_clock_is_refused():
    model = Model(layers=200, hidden=200_000, heads=200, vocab=50_000, seq=8192)
    with pytest.raises(InputError, match=r"step: got '1.8e\+09 s of operations'; allowed: at most 1e\+09 s"):
        simulate(model, Cluster.of("l4", nodes=1, gpus_per_node=1), Plan(global_batch=20_000))


def test_guests_join_a_step(gpt3, h100s, interleaved):
    """Data that is half a second late delays the step by that, less what the first forward waits for weights anyway."""

    def late(world):
        release = world.hold(world.operations(0, Action(0, Kind.F, 0))[0])
        yield world.env.timeout(500_000_000)
        release()

    calm, held = (simulate(gpt3, h100s, interleaved, "events", guests=g).timeline.makespan for g in ((), (late,)))
    assert 3.5e8 < held - calm < 5e8
    with pytest.raises(InputError, match="engine: got 'path'; allowed: events, where processes from outside join"):
        simulate(gpt3, h100s, interleaved, guests=(late,))


def test_estimates_have_wider_intervals(gpt3, interleaved):
    """Runs of A100 were among those fitted; H200 rests on scaled samples, T4 on scaled ones known to be poor."""
    widths = []
    for device in ("a100-sxm-80gb", "h200-sxm-141gb", "t4"):
        step = simulate(gpt3, Cluster.of(device, nodes=16), interleaved)
        low, high = step.step_time_interval_s
        widths.append(high / low)
        assert math.sqrt(low * high) == pytest.approx(step.step_time_s)
        assert step.mfu_interval[1] / step.mfu_interval[0] == pytest.approx(high / low)
    assert 1.15 < widths[0] < widths[1] < widths[2]


def test_utilisation_is_flop_over_peak(gpt3, h100s, interleaved):
    step = simulate(gpt3, h100s, interleaved)
    flop = 128 * 2048 * gpt3.flop_per_token()
    assert step.mfu == pytest.approx(flop / step.step_time_s / 128 / 989.4e12)
    full = simulate(gpt3, h100s, replace(interleaved, recompute="full"))
    assert full.hfu / full.mfu == pytest.approx(4 / 3, rel=0.01)  # one forward pass more (the head is not repeated)


def test_more_compute_is_never_faster():
    """One pass hides communication once: a longer sequence cannot shorten the step (ZeRO-2, slow network)."""
    links = Links(inter_bytes_per_s_per_node=2.4e8)
    cluster = Cluster.of("v100-sxm-32gb", nodes=3, gpus_per_node=2, links=links)

    def time(seq):
        model = Model(layers=24, hidden=1280, heads=16, vocab=50257, gated_mlp=True, norm="rmsnorm", seq=seq)
        return simulate(model, cluster, Plan(tp=2, global_batch=6, micro_batch=2, zero=2)).step_time_s

    assert time(2048) < time(4096) < time(8192) < time(16384)


def test_groups_that_straddle_nodes_pay_for_the_network():
    model = Model(layers=48, hidden=6144, heads=48, seq=3072)
    cluster = Cluster.of("h100-sxm-80gb", nodes=3)
    six, eight = (simulate(model, cluster, Plan(tp=t, global_batch=12)).breakdown["tp"] for t in (6, 8))
    assert six > 2 * eight


def test_memory_starts_and_ends_with_the_states(gpt3, h100s, interleaved):
    for memory in simulate(gpt3, h100s, interleaved).memory:
        states = sum(memory.fixed.values()) + 96 * 2**20  # and cuBLAS workspaces
        assert memory.total[-1] == pytest.approx(states)
        assert sum(memory.composition().values()) == pytest.approx(memory.peak_bytes)
        assert memory.composition()["temporaries"] >= 96 * 2**20


def test_fits_is_yes_close_or_no(gpt3, interleaved):
    def answer(memory_bytes):
        return simulate(gpt3, Cluster.of("h100-sxm-80gb", nodes=16, memory_bytes=memory_bytes), interleaved).fits

    need = simulate(gpt3, Cluster.of("h100-sxm-80gb", nodes=16), interleaved).device_memory_bytes
    assert [answer(need * f) for f in (1.3, 1.0, 0.7)] == ["yes", "close", "no"]


def test_faster_network_never_hurts(gpt3, interleaved):
    def time(rate):
        links = Links(inter_bytes_per_s_per_node=rate)
        return simulate(gpt3, Cluster.of("h100-sxm-80gb", nodes=16, links=links), interleaved).step_time_s

    assert time(800e9) < time(400e9) < time(50e9)


def test_broken_plan_is_refused(gpt3, h100s):
    with pytest.raises(InputError, match=r"plan\.pp: got 3"):
        simulate(gpt3, h100s, Plan(tp=8, pp=3, global_batch=1024))


@st.composite
def steps(draw, usual):
    """Draw a legal step: catalog models on their usual servers, or any shape on any network."""
    if usual:
        model = models[draw(st.sampled_from(["gpt3-175b", "llama3-70b", "llama2-7b", "gpt2-xl", "gpt-22b"]))]
        links = None
    else:
        model = Model(
            layers=draw(st.sampled_from([4, 8, 24])),
            hidden=draw(st.sampled_from([256, 1024])),
            heads=8,
            vocab=draw(st.sampled_from([128, 50_000, 1_000_000])),
            seq=draw(st.sampled_from([128, 2048])),
            norm=draw(st.sampled_from(["layernorm", "rmsnorm"])),
            attention=draw(st.sampled_from(["eager", "flash"])),
        )
        links = Links(inter_bytes_per_s_per_node=draw(st.sampled_from([1e7, 1e9, 1e11])))
    device, nodes = draw(st.sampled_from(["a100-sxm-80gb", "h100-sxm-80gb", "l4"])), draw(st.sampled_from([1, 4, 16]))
    cluster = Cluster.of(device, nodes=nodes, links=links)
    share = st.sampled_from([0.0, 0.0, 0.3, 1.0])
    tp, pp, v = (draw(st.sampled_from(s)) for s in ([1, 2, 4, 8], [1, 2, 4, 8], [1, 2, 4]))
    plan = Plan(
        tp=tp,
        pp=pp,
        virtual_stages=v,
        global_batch=draw(st.sampled_from([8, 16, 64, 256])),
        micro_batch=draw(st.sampled_from([1, 2, 4])),
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        framework=draw(st.sampled_from(["megatron", "torch"])),
        cross_entropy=draw(st.sampled_from([None, "fused"])),
        zero=draw(st.sampled_from([0, 1, 2, 3])),
        sequence_parallel=(sp := draw(st.booleans()) and tp > 1),
        overlap_dp=draw(st.booleans()),
        tp_overlap=draw(st.booleans()),
        tp_comm_overlap=draw(st.booleans()) and sp,
        ep_overlap=draw(st.booleans()),
        cuda_graphs=draw(st.booleans()),
        blocking_sends=draw(st.booleans()),
        schedule="gpipe" if pp > 1 and v == 1 and draw(st.booleans()) else None,
        offload=Offload(**{name: draw(share) for name in ("optimizer", "activations", "weights", "gradients")}),
    )
    try:
        return simulate(model, cluster, plan)
    except InputError:
        assume(False)


@cache
def walked(form, *key):
    """Return a closed form that is walked at every call: to compile each one takes seconds."""
    with patch("sim.engine.closed_form.compile_expressions", Interpreted):
        return form.__wrapped__(*key)


def closed(step, form):
    """Return the outputs of a closed form for the plan of a step."""
    schedule = "1f1b" if step.plan.schedule == "none" else step.plan.schedule
    compiled = walked(form, Structure.of(step.model), schedule, step.plan.offload.used)
    values = inputs.model_values(step.model) | inputs.cluster_values(step.cluster, step.profile)
    plan = inputs.plan_values(step.model, step.placed, step.cluster) | symbol_values(step.level.parameters)
    plan |= {k: np.mean(v) for k, v in plan.items() if "layers_" in k}
    if schedule not in CLOSED:
        plan |= dict(zip(RAMP, Ramp.of(step.timeline.schedule), strict=True))
    out = compiled(values | plan)
    return {name: float(value) for name, value in out.items()}


@pytest.mark.slow
@given(steps(usual=True))
def test_closed_form_is_close_on_usual_clusters(step):
    out = closed(step, closed_form)
    assert out["peak_memory_bytes"] == pytest.approx(step.peak_memory_bytes, rel=1e-9)
    assert out["step_time_s"] == pytest.approx(step.timeline.makespan * 1e-9, rel=0.12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "pp"), [*product(("1f1b", "gpipe", "zb-h1", "zb-1p"), (1, 2, 4)), ("2bw", 2), ("2bw", 4)]
)
def test_no_engine_beats_the_bound_where_copies_hide_beside_embedding_and_head(schedule, pp):
    """Each end then costs less than nothing, as the passes of other ranks wait for copies alone."""
    model = Model(layers=4, hidden=256, heads=8, vocab=50_000, seq=2048, attention="eager")
    cluster = Cluster.of("a100-sxm-80gb", nodes=1)
    for batch, activations in product((8, 24, 64), (0.3, 1.0)):
        plan = Plan(pp=pp, schedule=schedule, global_batch=batch, offload=Offload(activations=activations))
        step = simulate(model, cluster, plan)
        took_s = step.timeline.makespan * 1e-9
        assert closed(step, lower_bound)["lower_bound_s"] <= took_s * (1 + 1e-12)
        if pp == 1 and schedule in ("1f1b", "gpipe"):
            assert closed(step, closed_form)["step_time_s"] == pytest.approx(took_s, rel=1e-6)


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zb-h1", "zb-1p", "zbv", "interleaved", "looped-bfs"])
def test_the_bound_counts_the_mean_message_where_few_leave_a_node(name):
    chunks = 2 if name in ("interleaved", "looped-bfs", "zbv") else 1
    pairs, one = (Cluster.of("a100-sxm-80gb", nodes=n, gpus_per_node=16 // n) for n in (8, 1))
    plan = Plan(tp=1, pp=16, virtual_stages=chunks, schedule=name, global_batch=32)
    model = Model(layers=32, hidden=1024, heads=8, vocab=50_000, seq=2048)
    step, fast = (simulate(model, cluster, plan) for cluster in (pairs, one))
    bounds = [closed(each, lower_bound)["lower_bound_s"] for each in (step, fast)]
    assert bounds[0] <= step.timeline.makespan * 1e-9
    assert bounds[1] < bounds[0]
    if name in ("1f1b", "gpipe"):
        assert bounds[0] == pytest.approx(step.timeline.makespan * 1e-9, rel=0.01)


@pytest.mark.parametrize(
    ("device", "nodes", "size", "given"),
    [
        ("a100-sxm-80gb", 2, {"vocab": 32_000}, {"pp": 8, "global_batch": 4}),  # the last message stays in its node
        ("h100-sxm-80gb", 1, {"layers": 4}, {"pp": 2, "global_batch": 24, "schedule": "zb-h1"}),  # and updates sooner
        ("l4", 1, {}, {"pp": 2, "cp": 2, "virtual_stages": 2, "global_batch": 1, "schedule": "looped-bfs", "zero": 2}),
    ],
)
def test_the_bound_holds_where_messages_and_updates_of_ranks_differ(device, nodes, size, given):
    usual = {"layers": 16, "vocab": 128_000, "max_positions": 65_536, "tied_embeddings": False}
    model = Model(hidden=2048, heads=16, seq=2048, **usual | size)
    links = Links(inter_bytes_per_s_per_node=3e8)
    step = simulate(model, Cluster.of(device, nodes=nodes, gpus_per_node=4, links=links), Plan(**given))
    assert closed(step, lower_bound)["lower_bound_s"] <= step.timeline.period * 1e-9


@pytest.mark.slow
@given(steps(usual=False))
def test_no_engine_beats_the_lower_bound(step):
    """The tuner's certificate rests on it, whatever dominates: embedding, head, messages, few microbatches."""
    assert closed(step, lower_bound)["lower_bound_s"] <= step.timeline.makespan * 1e-9 * (1 + 1e-12)
    assert closed(step, closed_form)["peak_memory_bytes"] == pytest.approx(step.peak_memory_bytes, rel=1e-9)


def test_the_head_is_called_once_and_a_layer_as_often_as_there_are_layers():
    """By FLOP alone: 12 h^2 of each layer's products against h V of the head's."""
    model = Model(layers=48, hidden=4096, heads=32, vocab=51_200, seq=2048)
    step = simulate(model, Cluster.of("h100-sxm-80gb"), Plan(tp=1, dp=8, global_batch=8))
    products = [k for k in step.kernels if (k.op, k.direction) == ("gemm", "forward")]
    head = sum(k.share for k in products if k.inputs["n"] == model.vocab) / sum(k.share for k in products)
    assert head == pytest.approx(51_200 / (51_200 + 48 * 12 * 4096), rel=0.15)
