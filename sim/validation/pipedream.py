"""What PipeDream (arXiv 1806.03377) and PipeDream-2BW (arXiv 2006.09503) are measured by: their orders and networks."""

from collections.abc import Mapping, Sequence
from functools import cache
from math import isqrt

from sim.engine.path import run_path
from sim.engine.steady import steady_state
from sim.engine.step import Step, simulate
from sim.engine.timeline import Durations, Timeline
from sim.schedules import IllegalScheduleError, Kind, Shape, build
from sim.specs import Cluster, InputError, Links, Model, Plan
from sim.specs.rules import MAX_MICROBATCH_STAGES
from sim.tuner.solvers.rates import pipedream_run, pipedream_seconds, read_stages
from sim.tuner.solvers.two_bw import Network

UNITS = {Kind.F: 2, Kind.B: 4, Kind.OPTIMIZER: 1}
"""Ticks: a backward twice as long as a forward, an update of half a forward."""
UPDATES = 16
"""So many updates of every stage show the steady state."""

CLUSTER_A, CLUSTER_B = 10e9 / 8, 25e9 / 8
"""Bytes/s of a server's network: 4 x 4 V100 at 10 Gb/s, 2 x 8 V100 at 25 Gb/s."""
WORKERS = 16
Table = Sequence[Mapping[str, str]]


def ordered(schedule: str, stages: int, batch: int) -> Timeline:
    """Return a schedule's run in ticks (`UNITS`): one batch of microbatches with a flush, many without.

    Raises:
        InputError: there is no such schedule, or not of so many stages and microbatches (stages x microbatches: at most
            `MAX_MICROBATCH_STAGES`).
    """
    _bounded(schedule, stages, batch)
    without = {"pipedream": Shape(stages, UPDATES * stages), "2bw": Shape(stages, UPDATES * batch, group=batch)}
    try:
        return run_path(build(schedule, without.get(schedule, Shape(stages, batch))), Durations.uniform(stages, UNITS))
    except IllegalScheduleError as error:
        named = {"ranks": "stages", "microbatches": "stages" if schedule == "pipedream" else "batch"}
        raise InputError(named.get(error.field, error.field), error.value, error.allowed) from None


def _bounded(schedule: str, stages: int, batch: int) -> None:
    """Refuse more microbatches times stages than the engine takes, naming the setting that is to blame."""
    if schedule == "pipedream":
        most = isqrt(MAX_MICROBATCH_STAGES // UPDATES)
        if stages > most:
            raise InputError("stages", stages, f"1 to {most} with pipedream")
        return
    updates = UPDATES if schedule == "2bw" else 1
    if min(stages, batch) > 0 and updates * stages * batch > MAX_MICROBATCH_STAGES:
        (other, less), (name, value) = sorted({"stages": stages, "batch": batch}.items(), key=lambda item: item[1])
        most = max(1, MAX_MICROBATCH_STAGES // (updates * less))
        raise InputError(name, value, f"1 to {most} with {schedule} and {other} {less}")


def idle_share(timeline: Timeline) -> float:
    """Return the idle share: of a flushing order's batch, or of the busiest rank once one without flush is full."""
    flushes = not {"pipedream", "2bw"} & {timeline.schedule.name}
    return timeline.bubble_fraction() if flushes else steady_state(timeline).bubble


def minibatch_seconds(table: Table, model: str, configuration: str, bytes_per_s: float, share: float = 1.0) -> float:
    """Return the seconds per minibatch of a network's stages at `share` of the measured minibatch."""
    return pipedream_seconds([stage.of_batch(share) for stage in read_stages(table, model, configuration)], bytes_per_s)


def gain(table: Table, model: str, configuration: str, bytes_per_s: float, share: float = 1.0) -> float:
    """Return how many times as fast a configuration is as one stage on all workers, data parallelism."""
    whole, staged = (minibatch_seconds(table, model, c, bytes_per_s, share) for c in (str(WORKERS), configuration))
    return whole / staged


def most_gain(table: Table, model: str, bytes_per_s: float) -> float:
    """Return what all workers would gain over data parallelism if summing gradients cost nothing."""
    (stage,) = read_stages(table, model, str(WORKERS))
    return pipedream_seconds([stage], bytes_per_s) * WORKERS / (stage.forward_s + stage.backward_s)


def over_flush(table: Table, model: str, configuration: str, bytes_per_s: float, minibatches: int) -> float:
    """Return how many times as fast it is as the same stages under GPipe with a flush after so many minibatches."""
    stages = read_stages(table, model, configuration)
    flushing = pipedream_run(stages, bytes_per_s, minibatches=minibatches, name="gpipe")
    return flushing.makespan * 1e-9 / minibatches / pipedream_seconds(stages, bytes_per_s)


def gpt(name: str, layers: int, hidden: int) -> Model:
    """Return a GPT of the 2BW paper's kind: 512 tokens, 50,257 words, 32 heads, attention that is not fused."""
    return Model(
        name=name, layers=layers, hidden=hidden, heads=32, vocab=50257, seq=512, dropout=0.1, attention="eager"
    )


def servers(nodes: int) -> Cluster:
    """Return p3.16xlarge servers: eight V100 of 16 GB, NVLink, 25 Gb/s."""
    return Cluster.of("v100-sxm-16gb", nodes=nodes, links=Links(inter_bytes_per_s_per_node=CLUSTER_B))


def faster(new: Step | None, old: Step | None) -> float | None:
    """Return how many times as fast a step is as another, None where one of them does not fit."""
    return old.step_time_s / new.step_time_s if old and new else None


def planned(model: Model, practice: bool) -> Network:
    """Return a GPT as the 2BW planner sees it, on V100s in fp16.

    practice: fp32 masters, gradients and Adam's moments too; the papers' laws count weights and activations alone.
    """
    n, rows = model.parameters, model.seq * model.hidden
    per_layer = 34 * rows + 5 * model.heads * model.seq**2  # bytes of a sample: arXiv 2205.05198, equation 1
    masters, state = (4.0 * n, 10.0 * n) if practice else (0.0, 0.0)
    return Network(
        model.layers,
        2.0 * n,
        per_layer * model.layers,
        2.0 * rows,
        lambda depth, microbatch: [_alone_s(model, microbatch) / depth] * depth,
        masters,
        state,
    )


@cache
def _alone_s(model: Model, microbatch: int) -> float:
    """Return the seconds that one GPU computes for a microbatch of the whole model."""
    alone = Cluster.of("v100-sxm-16gb", nodes=1, gpus_per_node=1)
    plan = Plan(global_batch=microbatch, micro_batch=microbatch, precision="fp16", core_modules=False)
    return simulate(model, alone, plan).breakdown_s["compute"]
