"""Orders and networks of the PipeDream papers: idle shares by hand, gains of stages that are alike."""

import pytest

from sim.specs import InputError
from sim.validation import pipedream


@pytest.mark.parametrize("stages", [2, 4, 8, 16])
def test_only_a_flush_leaves_ranks_idle(stages):
    flushing = pipedream.ordered("1f1b", stages, 2 * stages)
    assert pipedream.idle_share(flushing) >= (stages - 1) / (3 * stages)
    assert pipedream.idle_share(pipedream.ordered("pipedream", stages, 1)) == pytest.approx(0, abs=0.02)
    assert pipedream.idle_share(pipedream.ordered("2bw", stages, 2 * stages)) == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize(("schedule", "stages", "batch"), [("1f1b", 0, 8), ("2bw", 8, 4), ("nothing", 4, 8)])
def test_what_no_order_has_is_refused(schedule, stages, batch):
    with pytest.raises(InputError):
        pipedream.ordered(schedule, stages, batch)


@pytest.mark.parametrize(
    ("schedule", "stages", "batch", "path", "allowed"),
    [
        ("1f1b", 10**9, 8, "stages", "1 to 62500 with 1f1b and batch 8"),
        ("gpipe", 4, 10**9, "batch", "1 to 125000 with gpipe and stages 4"),
        ("2bw", 4, 10**9, "batch", "1 to 7812 with 2bw and stages 4"),
        ("pipedream", 1_000, 1, "stages", "1 to 176 with pipedream"),
        ("1f1b", 0, 8, "stages", "1 or more"),
    ],
)
def test_an_order_is_as_long_as_the_engine_takes(schedule, stages, batch, path, allowed):
    with pytest.raises(InputError) as caught:
        pipedream.ordered(schedule, stages, batch)
    assert (caught.value.path, caught.value.allowed) == (path, allowed)


def row(configuration, stage, replicas, parameters, output, size=1.0):
    held = {"model": "m", "configuration": configuration, "stage": stage, "replicas": replicas}
    held |= {"forward_s": 0.1 * size, "backward_s": 0.2 * size}
    return {k: str(v) for k, v in (held | {"parameter_bytes": parameters, "output_bytes": output}).items()}


def test_stages_gain_what_data_parallelism_spends_on_gradients():
    table = [row("16", 0, 16, 1e9, 0), row("15-1", 0, 15, 1e6, 1e3), row("15-1", 1, 1, 1e9, 0, 0.01)]
    slow, fast = (pipedream.gain(table, "m", "15-1", rate) for rate in (1e9, 1e15))
    assert slow > 1 > fast
    assert pipedream.most_gain(table, "m", 1e15) == pytest.approx(1.0, rel=1e-3)
    # Sixteen workers of which each waits 4 x 15 / 16 GB for a minibatch of 0.1 s forward.
    assert pipedream.most_gain(table, "m", 1e9) == pytest.approx((0.1 + 3.75) / 0.3, rel=1e-2)


def test_a_flush_costs_more_the_more_often():
    table = [row("straight", n, 1, 1e6, 1e3) for n in range(4)]
    often, seldom = (pipedream.over_flush(table, "m", "straight", 1e9, m) for m in (8, 32))
    assert often == pytest.approx(11 / 8, rel=0.01) and seldom == pytest.approx(35 / 32, rel=0.01)


def test_networks_as_the_planner_sees_them():
    model = pipedream.gpt("gpt-2.2b", 48, 1920)
    laws, practice = (pipedream.planned(model, how) for how in (False, True))
    assert (laws.master_bytes, practice.master_bytes) == (0, 4 * model.parameters)
    assert sum(laws.stage_seconds(8, 1)) == pytest.approx(sum(laws.stage_seconds(4, 1)))
    assert pipedream.faster(None, None) is None
