"""The answer in one sentence: the first thing on a page, and the text alternative of its figures."""

from collections.abc import Mapping, Sequence

from sim.checkpointing.advice import often
from sim.costs.run_level import OF_THE_SITE
from sim.engine.compare import Comparison
from sim.engine.replay import Replay
from sim.engine.step import Step, memory_sigma, simulate
from sim.plans import emit
from sim.report.market import answer_rental
from sim.report.numbers import (
    byte_unit,
    bytes_interval,
    days_interval,
    probability,
    seconds_interval,
    signed,
    tenths,
)
from sim.report.per_stage import HOSTED, of_stages, on_host, recomputing, runs
from sim.run import Allocation, Measures, Optimal, Run
from sim.run.losses import Losses
from sim.run.trained import Trained
from sim.specs import Cluster, InputError, Model, Plan
from sim.tuner.effects import Effect, Target
from sim.tuner.elasticity import CHANGE
from sim.tuner.fixes import fixes
from sim.tuner.robustness import FARTHEST, Robustness
from sim.tuner.tune import Tuned
from sim.units import HOUR_S, counted, digits3, grouped, lasting, many, percent, seconds, si

TEMPO = ", Tempo's layers"
FIXES = 3
"""Changes that are named where a plan does not fit."""
ORIGINS = (
    "profile ", "newer software ", "precision ", "experts ", "collectives: logs of ", f"run level: {OF_THE_SITE}",
)  # fmt: skip
"""How those of a step's assumptions begin that say whose kernels were timed, what is known of one's own cluster, and
what decides among precisions and ranks of experts."""


def answer(step: Step) -> str:
    """Return one step's answer: time, idle share, fullest rank, and whether it fits.

    For example "4.21 s a step (3.90–4.51); pipeline idle 9.1 %; pipeline rank 0 peaks at 71.0 GB allocated of 85.5."
    """
    return f"{time_and_idle(step)}; {memory_verdict(step)}."


def time_and_idle(step: Step) -> str:
    """Return the step time with its 80 % interval, and the idle share where there is a pipeline."""
    time = seconds_interval(step.step_time_s, step.step_time_interval_s).replace(" (", " a step (")
    if step.plan.pp == 1:
        return f"{time}; no pipeline"
    return f"{time}; pipeline idle {percent(step.breakdown_s['bubble'] / step.step_time_s)}"


UNUSED = (" is ignored: ", ", which wins over ")
"""What a plan's assumptions say of a value that is stated and not taken."""


def assumed_words(step: Step, run: Run | None) -> list[str]:
    """Return what of the plan counts for nothing, what is assumed of the model and where times come from, a line each,
    and how much more there is."""
    unused = [line for line in step.plan.assumed_of(step.model) if any(word in line for word in UNUSED)]
    origins = [line.partition(";")[0] for line in step.assumptions if line.startswith(ORIGINS)]
    held, more = [*unused, *step.model.assumptions, *origins], step.assumptions + (run.assumptions if run else ())
    return [*(f"assumed: {line}" for line in held), f"assumed: {len(more) - len(held)} more, which --json lists"]


TARGETS: Mapping[Target, str] = {
    "step_time": "step time", "memory": "memory over capacity", "cost": "USD per 1e9 tokens",
}  # fmt: skip


def refusal(model: Model, cluster: Cluster, plan: Plan, target: str | None = None) -> str:
    """Return why a plan cannot run on a cluster and what is near, empty where it can.

    target: a framework of `sim.emit`, which may not be able to express the plan either.
    """
    try:
        step = simulate(model, cluster, plan)
        if target is not None:
            emit(step, target)
    except InputError as error:
        return str(error)
    return ""


def critical_words(step: Step) -> str:
    """Return what the critical path consists of, the four largest first, and which rank has most of it.

    For example "Critical path: backward 61 %, forward 30 %, pipeline messages 2.0 %; changes ranks 14 times, 58 % on
    pipeline rank 3."
    """
    path, whole = step.critical_path, step.timeline.makespan
    parts = [f"{cause} {percent(ticks / whole)}" for cause, ticks in list(path.by_cause().items())[:4]]
    words = f"Critical path: {', '.join(parts)}"
    if step.plan.pp == 1:
        return words + "."
    ranks = path.by_rank(step.plan.pp)
    most = max(range(step.plan.pp), key=ranks.__getitem__)
    changes = many(path.crossings(), "time")
    return f"{words}; changes ranks {changes}, {percent(ranks[most] / whole)} on pipeline rank {most}."


def comparison_words(found: Comparison) -> str:
    """Return how much longer the second of two timelines takes, and what of its critical path makes the difference.

    For example "B takes 31.0 ms less: backward −25.0 ms, pipeline messages −6.00 ms (most on pipeline rank 3: −20.0
    ms)"; ranks are compared where both do the same.
    """
    if not found.ticks:
        return "A and B take equally long"
    words = [f"{cause} {_more(ticks)}" for cause, ticks in list(found.by_cause().items())[:3]]
    whole = f"{seconds(abs(found.ticks) * 1e-9)} {'longer' if found.ticks > 0 else 'less'}"
    rank, ticks = next(iter(found.by_rank().items()))
    where = f" (most on pipeline rank {rank}: {_more(ticks)})" if found.same_actions else ""
    return f"B takes {whole}: {', '.join(words)}{where}"


def _more(ticks: int) -> str:
    return f"{'+' if ticks >= 0 else '−'}{seconds(abs(ticks) * 1e-9)}"


def memory_verdict(step: Step) -> str:
    """Return the fullest rank's peak against the capacity, and the amount that is missing or uncertain."""
    capacity = step.cluster.memory_bytes
    unit = byte_unit(capacity)
    peak, whole = unit.text(step.peak_memory_bytes), unit.text(capacity).split(" ")[0]
    text = f"{_where(step, step.fullest.rank)} peaks at {peak} allocated of {whole}"
    if step.fits == "yes":
        return text
    if step.fits == "close":
        device = bytes_interval(step.device_memory_bytes, device_memory_interval(step))
        return f"{text} and is close: {device} with reserve and context"
    return f"{text} and does not fit: over by {overflow(step)} with reserve and context"


def fitting_words(found: Tuned) -> str:
    """Return how many of the scored configurations fit, and how many of the best are of unequal stages besides.

    For example "0 of equal stages fit, 4 of unequal stages among the best".
    """
    unequal = sum(bool(one.step.plan.stages or one.step.plan.stage_layers) for one in found.plans)
    more = f", {unequal} of unequal stages among the best" if unequal else ""
    return f"{grouped(found.feasible)} of equal stages fit{more}"


def fixing_words(step: Step) -> str:
    """Return which single changes make a plan fit that does not, the least slow three, or that none does.

    For example "Fits with one change: ZeRO-0 → ZeRO-2 (+1.3 % time), tp 1 → 2 (+7.0 % time)."
    """
    found = fixes(step)
    if fitting := [fix for fix in found if fix.step.fits == "yes"][:FIXES]:
        changes = (f"{fix.change} ({signed(100 * fix.slower, 1)} % time)" for fix in fitting)
        return f"Fits with one change: {', '.join(changes)}."
    most = max(found, key=lambda fix: fix.saved_bytes, default=None)
    told = f" ({most.change} saves {byte_unit(most.saved_bytes).text(most.saved_bytes)})" if most else ""
    return f"No single change makes it fit{told}; trainsim tune searches all plans."


def memory_words(step: Step, ranks: int = 8) -> list[str]:
    """Return a line of the fullest `ranks` ranks each: allocated, reserved and nvidia-smi figures, margin, when.

    For example "pipeline rank 0: allocated 59.8 GB, reserved 63.7 GB, nvidia-smi 65.3 GB, 20.2 GB left; peaks in 7B3".
    """
    unit = byte_unit(step.cluster.memory_bytes)
    kept = sorted(sorted(step.memory, key=lambda m: -m.peak_bytes)[:ranks], key=lambda m: m.rank)
    lines = []
    for held in kept:
        levels = step.levels(held.rank)
        left = f"{unit.text(abs(levels.margin_bytes))} {'left' if levels.margin_bytes >= 0 else 'missing'}"
        lines.append(
            f"{_where(step, held.rank)}: allocated {unit.text(levels.allocated_bytes)}, "
            f"reserved {unit.text(levels.reserved_bytes)}, nvidia-smi {unit.text(levels.nvidia_smi_bytes)}, {left}; "
            f"peaks in {step.timeline.schedule.label(held.peak_action)}"
        )
    return lines


def _where(step: Step, rank: int) -> str:
    return f"pipeline rank {rank}" if step.plan.pp > 1 else "every device"


def replay_words(found: Replay) -> str:
    """Return what PyTorch's allocator makes of a rank's allocations.

    For example "allocator replayed: allocated 59.9 GB, reserved 60.9 GB (x 1.017) in 744 segments".
    """
    unit = byte_unit(found.reserved_peak_bytes)
    allocated, reserved = unit.text(found.allocated_peak_bytes), unit.text(found.reserved_peak_bytes)
    ratio = f"x {found.reserved_over_allocated:.3f}"
    return f"allocator replayed: allocated {allocated}, reserved {reserved} ({ratio}) in {len(found.segments)} segments"


def device_memory_interval(step: Step) -> tuple[float, float]:
    """Return the 80 % interval of the memory that the fullest rank's device must have, in bytes."""
    return step.profile.interval80(step.device_memory_bytes, memory_sigma(step.profile))


def overflow(step: Step) -> str:
    """Return how far device memory lies over the capacity, with the interval: `6.20 GB (4.81–7.52)`."""
    capacity = step.cluster.memory_bytes
    low, high = device_memory_interval(step)
    return bytes_interval(step.device_memory_bytes - capacity, (low - capacity, high - capacity))


def answer_tuned(tuned: Tuned) -> str:
    """Return a search's answer: the winner, its time, the margin over the next plan and over the textbook one."""
    best = tuned.best.step
    count = many(tuned.evaluated, "plan")
    parts = [f"Best of {count}: {plan_words(best.plan, best.placed.dp)}; {answer(best).removesuffix('.')}"]
    if tuned.best.p_best is not None:
        parts.append(f"best of the ranked plans with probability {probability(tuned.best.p_best)}")
    if len(tuned.plans) > 1:
        parts.append(f"the next plan takes {next_words(tuned)}")
    if tuned.baseline:
        parts.append(f"the textbook plan {gain(tuned.baseline, best)}")
    return "; ".join(parts) + "."


def next_words(tuned: Tuned) -> str:
    """Return how much longer the second plan takes than the first; on the event engine too, where that is another
    figure and ranks the plans: `0.3 % less (0.2 % longer with contention)`.
    """
    best, other = tuned.plans[:2]
    words, ranked = gain(other.step, best.step), _longer(other.ranked_s, best.ranked_s)
    same = words == ranked or tuned.objective == "memory_headroom"
    return words if same else f"{words} ({ranked} with contention)"


def robust_words(found: Robustness) -> str:
    """Return how sure the winner is the best of the ranked plans, and what would have to be wrong for another to win.

    For example "Under 200 sampled calibrations the winner takes 0.2 % more than the best on average; plan 3 wins if
    time of matrix products is 11 % lower than assumed (1.09 → 0.97, 1.20 standard deviations)."
    """
    words = (
        f"Under {found.times_s.shape[1]} sampled calibrations the winner takes {percent(found.expected_regret)} more "
        "than the best on average"
    )
    flip = found.flip
    if flip is None:
        return f"{words}; no single error within {FARTHEST} standard deviations changes it.{_odds(found)}"
    change = flip.at / flip.value - 1
    off = f"{percent(abs(change))} {'higher' if change > 0 else 'lower'} than assumed"
    shown = seconds if "_s_" in f"_{flip.parameter}_" else digits3
    far = f"{shown(flip.value)} → {shown(flip.at)}, {digits3(abs(flip.sigmas))} standard deviations"
    return f"{words}; plan {flip.rival} wins if the {flip.title} is {off} ({far}).{_odds(found)}"


def _odds(found: Robustness) -> str:
    """Return why another plan than the first one is the fastest in most draws, empty where none is."""
    most = max(range(len(found.p_best)), key=found.p_best.__getitem__)
    if found.p_best[most] <= found.p_best[0]:
        return ""
    share, first = probability(found.p_best[most]), probability(found.p_best[0])
    return (
        f" Plan {most + 1} is the fastest in more draws ({share}) than plan 1 ({first}): the order is by the predicted "
        "(median) time, and plans whose times spread more, or that have no close rival, win more draws."
    )


def effect_words(found: Sequence[Effect], change: float = CHANGE, target: Target = "step_time") -> str:
    """Return what the three parameters with the largest effect would do for a target, each better by `change`.

    For example "Step time with 10 % better hardware: FLOP/s of matrix products −7.1 %, links inside a node −0.8 %."
    """
    parts = [f"{e.title} {signed(100 * e.better, 1)}\u00a0%" for e in found[:3]]
    what = "of each" if target == "memory" else "hardware"
    return (
        f"{TARGETS[target][0].upper()}{TARGETS[target][1:]} with {percent(change)} better {what}: {', '.join(parts)}."
    )


def gain(step: Step, best: Step) -> str:
    """Return how much longer `step` takes than `best`: `13 % longer`."""
    return _longer(step.step_time_s, best.step_time_s)


def _longer(seconds_: float, best_s: float) -> str:
    change = seconds_ / best_s - 1
    size = percent(abs(change)) if abs(change) >= 5e-4 else "less than 0.1\u00a0%"
    return f"{size} {'longer' if change >= 0 else 'less'}"


def plan_words(plan: Plan, dp: int) -> str:
    """Return a plan's degrees in words: `tp 8, pp 4, dp 4, virtual stages 2, micro-batch 1, ...`.

    What differs from stage to stage stands in their order: `pp 4, unequal stages: layers 8x3 6, tp 1, ...`.
    """
    if plan.stages:
        return f"pp {plan.pp}{', unequal stages' if plan.pp > 1 else ''}: {_stage_words(plan)}"
    stages = f", virtual stages {plan.virtual_stages}" if plan.virtual_stages > 1 else ""
    spread = "".join(f", {axis} {getattr(plan, axis)}" for axis in ("cp", "ep") if getattr(plan, axis) > 1)
    return (
        f"tp {plan.tp}, pp {plan.pp}, dp {dp}{spread}{stages}, micro-batch {plan.micro_batch}, "
        f"ZeRO-{plan.zero}, recompute {plan.recompute}{_some_layers(plan)}"
        f"{TEMPO if plan.tempo else ''}"
    )


def _some_layers(plan: Plan) -> str:
    return f" in {many(plan.recompute_layers, 'layer')}" if plan.recompute_layers else ""


def _stage_words(plan: Plan) -> str:
    """Return unequal stages in words: `layers 8x3 6, tp 1, dp 2x3 1, micro-batch 2, ZeRO-1, recompute full 3 0x3`."""
    knobs = {"tp": "tp", "dp": "dp", "micro_batch": "micro-batch"}
    parts = [f"layers {runs(plan.split_stages)}", *(f"{word} {of_stages(plan, n)}" for n, word in knobs.items())]
    zero = of_stages(plan, "zero")
    parts.append(f"ZeRO{' ' if isinstance(zero, str) else '-'}{zero}")
    kept = {what: on_host(plan, what) for what in HOSTED}
    parts += [f"recompute {recomputing(plan)}"] * (recomputing(plan) != "none")
    words = ", ".join(parts + [f"{what} on host {share} %" for what, share in kept.items() if share != "0"])
    return words + (TEMPO if plan.tempo else "")


def answer_run(run: Run) -> str:
    """Return what a whole run takes, one sentence.

    For example "15.0 trillion tokens: 54.2 days (48.1–61.0), 2.30 million GPU-hours, 9.10 million USD, 1.90 GWh." Where
    it is known what keeps it from training: "93.1 % of the time trains (failures 5.2 %, data 1.7 %)."
    """
    return f"{counted(run.tokens)} tokens: {measures_words(run)}.{_lost(run.goodput, run.losses)}"


def measures_words(run: Measures) -> str:
    """Return what a run takes: `54.2 days (48.1–61.0), 2.30 million GPU-hours, 9.10 million USD, 1.90 GWh`."""
    cost = "cost not known (no cluster.usd_per_gpu_hour)" if run.cost_usd is None else f"{counted(run.cost_usd)} USD"
    days, energy = days_interval(run.days, run.days_interval), si(run.energy_kwh * 1e3, "Wh")
    return f"{days}, {counted(run.gpu_hours)} GPU-hours, {cost}, {energy}"


def run_words(run: Run | None) -> list[str]:
    """Return what a whole run takes, what it rented where it did, and what it takes beside others; nothing without."""
    return [answer_run(run), *rental_words(run), *shared_words(run)] if run else []


def shared_words(run: Run) -> list[str]:
    """Return what becomes of a run beside other jobs; nothing where its job names none."""
    found = run.shared
    if not found:
        return []
    took = f" in {lasting(found.others_jct_h * HOUR_S)} on average" if found.others_jct_h is not None else ""
    return [
        f"Beside other jobs, by {found.policy}: {measures_words(found)}; it holds its devices "
        f"{tenths(found.held_fraction)} of the days, and {grouped(found.others_ended)} others end meanwhile{took}."
    ]


def rental_words(run: Run) -> list[str]:
    """Return what a run rented and the least that could have cost; nothing where its price is one number."""
    return list(answer_rental(run.rental, run.optimum)) if run.rental else []


def _lost(goodput: float, parts: Mapping[str, float]) -> str:
    """Return how much of the time trains and what takes the rest, as shares; nothing where nothing does."""
    some = [f"{what} {tenths(x)}" for what, x in sorted(parts.items(), key=lambda p: -p[1]) if x >= 5e-4]
    return f" {tenths(goodput)} of the time trains ({', '.join(some)})." if some else ""


def losses_words(lost: Losses | None) -> list[str]:
    """Return a line each on how data arrives and when state is saved, as far as that is known."""
    lines = []
    if lost and lost.data:
        mean = " in the mean, as the first epoch fills the caches" if lost.fills_caches else ""
        paced = f" A step takes {seconds(lost.step_time_s)} with it{mean}." if lost.shares["data"] >= 5e-4 else ""
        nodes = (
            f" Rates are per node; {many(lost.readers, 'node')} read {digits3(lost.samples_per_s)} samples/s in all."
        )
        lines.append(f"Data: {lost.data.why}{nodes if lost.readers > 1 else ''}{paced}")
    if lost and lost.saving:
        lines.append(f"Checkpoints: {'; '.join(lost.saving.advice.why)}.")
    return lines


def answer_trained(found: Trained) -> str:
    """Return what a stretch of training was, one sentence or two.

    For example "885 steps in 1.00 h, 3 checkpoints, one every 300 steps. 97.0 % of the time trains (data 3.0 %)."
    """
    parts = [f"{many(found.steps, 'step')} in {lasting(found.seconds)}"]
    if found.steps_between_checkpoints:
        parts.append(f"{many(found.checkpoints, 'checkpoint')}, one {often(found.steps_between_checkpoints)}")
    if found.failures:
        parts.append(many(found.failures, "failure"))
    lost = {what: s / found.seconds for what, s in found.parts_s.items() if what != "training"}
    return f"{', '.join(parts)}.{_lost(found.goodput, lost)}"


def answer_optimal(found: Optimal, name: str) -> list[str]:
    """Return the lines that say what a budget buys for the model `name`, and what it is best spent on."""
    low, high = found.given_tokens_interval
    spread = f" ({counted(low)}–{counted(high)})" if low < high else ""
    return [
        f"{found.budget.flop:.3g} FLOP: {name} trains on {counted(found.given.tokens)} tokens{spread}, "
        f"{_worth(found.given)}.",
        f"Compute-optimal: {counted(found.best.parameters)} parameters on {counted(found.best.tokens)} tokens, "
        f"{_worth(found.best)}.",
        f"{name} is the best size at {counted(found.balanced.tokens)} tokens ({found.balanced.flop:.3g} FLOP), "
        f"{_worth(found.balanced)}.",
        f"Law: {found.law.title}; C = 6 N D.",
    ]


def _worth(held: Allocation) -> str:
    return f"{digits3(held.tokens_per_parameter)} a parameter, predicted loss {digits3(held.loss)}"
