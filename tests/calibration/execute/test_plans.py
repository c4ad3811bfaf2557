"""Plans of every kind, executed: what the hooks saw is what was predicted.

Plans of equally many processes run one after the other in one launch. HYPOTHESIS_PROFILE=full runs all of them.
"""

from dataclasses import replace
from functools import cache

import pytest

from calibration.execute import measure
from calibration.execute.measure import Measured, Run, Setting, measure_all, processes
from calibration.execute.predict import Predicted, predict
from sim.schedules.custom import parse_order
from sim.specs import Model, Offload, Plan, StagePlan
from tests.calibration.execute.cases import DEEP, cluster, plan, profile
from tests.full import FULL

ALWAYS = {
    "one": {},
    "zbv": {"pp": 2, "virtual_stages": 2, "schedule": "zbv"},
    "tp sp full": {"tp": 2, "recompute": "full", "micro_batch": 2},
    "zero-3": {"dp": 2, "zero": 3},
    "2bw": {"pp": 2, "schedule": "2bw"},
    "stages": {
        "dp": None,
        "stages": (
            StagePlan(layers=3, micro_batch=2, recompute="full", recompute_layers=2),
            StagePlan(layers=5, micro_batch=2, offload=Offload(optimizer=1.0)),
        ),
        "micro_batch": 1,
    },
    "tempo": {"tempo": True, "micro_batch": 4},
    "one offload": {"offload": Offload(optimizer=1.0, activations=1.0)},
    "1f1b offload": {
        "pp": 2,
        "schedule": "1f1b",
        "offload": Offload(optimizer=0.3, activations=0.5),
        "precision": "bf16",
    },
}
OTHERS = {
    "stages dp": {
        "dp": None,
        "stages": (
            StagePlan(layers=3, dp=2, recompute="full", recompute_layers=2, zero=1),
            StagePlan(layers=5, dp=2, offload=Offload(optimizer=1.0)),
        ),
        "micro_batch": 1,
    },
    "tp": {"tp": 2, "sequence_parallel": False, "micro_batch": 2},
    "zb-h1 bf16": {"pp": 2, "schedule": "zb-h1", "precision": "bf16"},
    "pipedream": {"pp": 2, "schedule": "pipedream"},
    "interleaved": {"pp": 2, "virtual_stages": 2, "schedule": "interleaved"},
    "1f1b": {"pp": 2, "schedule": "1f1b"},
    "dualpipev": {"pp": 2, "virtual_stages": 2, "schedule": "dualpipev"},
    "zero-1 bf16": {"dp": 2, "zero": 1, "precision": "bf16"},
    "dp selective": {"dp": 2, "recompute": "selective"},
    "tp sp bf16": {"tp": 2, "precision": "bf16"},
    "zb-h1": {"pp": 2, "schedule": "zb-h1"},
    "zero-1 pp": {"pp": 2, "dp": 2, "zero": 1},
    "one bf16": {"precision": "bf16"},
    "one full": {"recompute": "full"},
    "one selective": {"recompute": "selective"},
    "tempo bf16": {"tempo": True, "precision": "bf16"},
    "tempo full": {"tempo": True, "recompute": "full", "micro_batch": 4},
    "tempo zero-1": {"tempo": True, "dp": 2, "zero": 1},
    "gpipe": {"pp": 2, "schedule": "gpipe"},
    "interleaved 4": {"pp": 4, "virtual_stages": 2, "schedule": "interleaved"},
    "uneven": {"pp": 2, "schedule": "1f1b", "stage_layers": (3, 5)},
    "custom": {"pp": 2, "schedule": "gpipe"},
    "dp": {"dp": 2},
    "dp overlapped": {"dp": 2, "overlap_dp": True},
    "zero-1": {"dp": 2, "zero": 1},
    "zero-2": {"dp": 2, "zero": 2},
    "zero-3 full": {"dp": 2, "zero": 3, "recompute": "full"},
    "zero-3 4": {"dp": 4, "zero": 3},
    "tp full": {"tp": 2, "sequence_parallel": False, "recompute": "full"},
    "tp sp": {"tp": 2},
    "tp sp selective": {"tp": 2, "recompute": "selective"},
    "tp selective": {"tp": 2, "sequence_parallel": False, "recompute": "selective"},
    "tp sp zb-h1": {"tp": 2, "pp": 2, "schedule": "zb-h1"},
    "tp sp zb-h1 bf16": {"tp": 2, "pp": 2, "schedule": "zb-h1", "precision": "bf16"},
    "pp full": {"pp": 2, "recompute": "full"},
    "1f1b 4": {"pp": 4, "schedule": "1f1b"},
    "looped-bfs 4": {"pp": 4, "virtual_stages": 2, "schedule": "looped-bfs"},
    "interleaved-zb 4": {"pp": 4, "virtual_stages": 2, "schedule": "interleaved-zb"},
    "zb-h1 4": {"pp": 4, "schedule": "zb-h1"},
    "zb-h2 4": {"pp": 4, "schedule": "zb-h2"},
    "zb-1p 4": {"pp": 4, "schedule": "zb-1p"},
    "zb-2p 4": {"pp": 4, "schedule": "zb-2p"},
    "zbv 4": {"pp": 4, "virtual_stages": 2, "schedule": "zbv"},
    "v-half 4": {"pp": 4, "virtual_stages": 2, "schedule": "v-half"},
    "v-min 4": {"pp": 4, "virtual_stages": 2, "schedule": "v-min"},
    "dualpipev 4": {"pp": 4, "virtual_stages": 2, "schedule": "dualpipev"},
    "2bw 4": {"pp": 4, "schedule": "2bw"},
    "pipedream 4": {"pp": 4, "schedule": "pipedream"},
    "tp pp": {"tp": 2, "pp": 2},
    "tp dp": {"tp": 2, "dp": 2, "zero": 1},
    "pp outside": {"pp": 2, "dp": 2, "rank_order": "pp-tp-cp-dp"},
    "recompute some": {"tp": 2, "recompute": "full", "recompute_layers": 3},
    "one offload full": {"offload": Offload(activations=0.25), "recompute": "full", "micro_batch": 8},
    "gpipe offload": {"pp": 2, "schedule": "gpipe", "offload": Offload(activations=1.0)},
    "interleaved offload": {"pp": 2, "virtual_stages": 2, "offload": Offload(activations=1.0)},
    "tp sp offload": {"tp": 2, "offload": Offload(optimizer=0.5, activations=0.5)},
    "zero-1 offload": {"dp": 2, "zero": 1, "offload": Offload(optimizer=1.0, activations=1.0)},
    "zero-3 offload": {"dp": 2, "zero": 3, "offload": Offload(activations=1.0)},
    "zero-3 bf16": {"dp": 2, "zero": 3, "precision": "bf16"},
    "tp full bf16": {"tp": 2, "sequence_parallel": False, "recompute": "full", "precision": "bf16"},
    "zbv 4 bf16": {"pp": 4, "virtual_stages": 2, "schedule": "zbv", "precision": "bf16"},
    "zero-1 pp bf16": {"pp": 2, "dp": 2, "zero": 1, "precision": "bf16"},
}
PLANS = ALWAYS | (OTHERS if FULL else {})
CUSTOM = "0F0,0F1,0F2,0F3,0I3,0B0,0W3,0B1,0B2\n,1F0,1F1,1F2,1F3,1B3,1B0,1I1,1B2,1W1\n"
WIDE = Model(layers=4, hidden=256, heads=4, vocab=200, seq=128)
STEPS = 4
"""Enough for losses that fall; nobody reads the times."""

MEMORY = 0.03
"""Of the measured peak: what the simulator leaves out of tokens, losses and statistics is that much of a tiny model."""
HOST = 2e-3
"""A share may end between two elements; on the CPU a norm's statistics are in 16 bit where its input is."""
SHARDED = 0.1
"""With FSDP2: the simulator's copies of gathered weights and gradients are those of 16-bit training on GPUs."""


def tolerance(given: Plan) -> float:
    """Return how far gradients may be from those of one process in the same precision, of the largest.

    In bf16 (8 bits) two stages round both gradients of a tied table before they are added, and tensor-parallel ranks
    every partial sum of hidden states, through all layers; data parallelism and shards add up in fp32. Tempo's layers
    make gradients of rounded outputs.
    """
    if given.precision == "fp32":
        return 1e-5
    if given.tempo:
        return 2**-5
    return 2**-6 if given.tp > 1 else 2**-8 if given.pp > 1 else 1e-5


def model(name: str) -> Model:
    """Return the network of a plan: where stages update at different times they share no table.

    Of a larger one the pieces in which Tempo's layers make gradients are a small part.
    """
    if name.startswith("tempo"):
        return WIDE
    return replace(DEEP, tied_embeddings=False) if name.startswith(("pipedream", "2bw")) else DEEP


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """Predictions and measurements by name; a launch runs all plans of as many processes."""
    base = tmp_path_factory.mktemp("profiles")
    folders = {"fp32": profile(base / "core"), "bf16": profile(base / "core-16", dtype="")}
    made = {}
    for name, given in PLANS.items():
        batch = 4 if name in ALWAYS or name == "custom" else 8
        made[name] = plan(**{"global_batch": batch, "micro_batch": 1, **given})

    @cache
    def launch(ranks: int) -> dict[str, tuple[Predicted, Measured]]:
        names = [name for name, each in made.items() if processes(each) == ranks]
        orders = {name: parse_order(CUSTOM) if name == "custom" else None for name in names}
        said = [
            predict(model(name), cluster(folders[made[name].precision], ranks), made[name], order=orders[name])
            for name in names
        ]
        runs = [Run(model(name), made[name], p.csv) for name, p in zip(names, said, strict=True)]
        return dict(zip(names, zip(said, measure_all(runs, Setting(steps=STEPS)), strict=True), strict=True))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "LEAST_STEPS", STEPS)
        yield lambda name: launch(processes(made[name]))[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_what_is_executed_is_what_was_predicted(executed, name):
    predicted, measured = executed(name)
    assert measured.order == predicted.order
    assert measured.max_gradient_error < tolerance(plan(**PLANS[name]))
    assert measured.traffic == predicted.traffic
    assert measured.bytes_sent == predicted.bytes_sent
    assert measured.host_bytes == pytest.approx(predicted.host_bytes, rel=HOST)
    band = SHARDED if PLANS[name].get("zero", 0) > 1 else MEMORY
    assert measured.peak_memory_bytes == pytest.approx(predicted.peak_memory_bytes, rel=band)
    assert measured.interval_s[0] <= measured.median_s <= measured.interval_s[1]
    assert measured.losses[-1] < measured.losses[0]


def test_every_process_of_a_pipeline_told_its_order(executed):
    assert [len(executed(name)[1].order) for name in ("one", "1f1b offload", "stages", "2bw")] == [0, 2, 2, 2]
    assert executed("1f1b offload")[1].order[1][:3] == ("1F0", "1B0", "1F1")


def test_losses_do_not_depend_on_the_plan(executed):
    wanted = executed("one")[1].losses
    for name in ("zbv", "tp sp full", "one offload"):
        assert executed(name)[1].losses == pytest.approx(wanted, rel=1e-4)


def test_what_is_offloaded_is_in_host_memory_and_not_on_the_device(executed):
    plain, away = (executed(name)[1] for name in ("one", "one offload"))
    moments = 8 * DEEP.parameters
    assert plain.host_bytes == (0.0,)
    assert away.host_bytes[0] > moments
    assert plain.peak_memory_bytes[0] - away.peak_memory_bytes[0] > moments / 2  # room for three of eight layers' stays
