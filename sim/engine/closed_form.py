"""A training step in closed form: the estimate that scores millions of plans, and a bound that no plan beats."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from sim.costs import offload, stage
from sim.costs.algebra import Compiled, Expr, compile_expressions, maximum, minimum, symbol
from sim.costs.collectives import mean_over_last, slowest_over_mean
from sim.costs.layers.ops import COMMUNICATION
from sim.costs.layers.structure import Structure
from sim.costs.messages import messages
from sim.costs.pairs import computed, most_hidden
from sim.engine.assembly import HELD
from sim.engine.delayed import delayed_ways, least_slower
from sim.engine.ramps import Ways
from sim.schedules import CLOSED, SCHEDULES, Times

PLACES = ("first", "middle", "last", "only")
"""Where a stage can be in the pipeline."""
Forms = Callable[[Mapping[str, Expr], str], dict[str, Expr]]
"""What makes closed forms of a schedule over the outputs of the stage model."""


@lru_cache
def closed_form(structure: Structure, schedule: str, offloads: bool = False) -> Compiled:
    """Return step time and peak memory of one schedule as one compiled function.

    Outputs: `step_time_s`, an estimate that is close to the engine where messages are short; `peak_memory_bytes`
    (allocated, fullest rank), exact but where activations come from host memory for an I and wait for its W.
    """
    return _after_stage(structure, schedule, offloads, ("step_time_s", "peak_memory_bytes"))


@lru_cache
def stage_form(structure: Structure, offloads: bool = False) -> Compiled:
    """Return what one stage of a 1F1B pipeline adds to a step, by where it is (`PLACES`), as one compiled function.

    Outputs: `own_<place>`, seconds from one microbatch to the next, forward and backward, of a rank that never waits
    for a message; `through_<place>`, those by which it lengthens the way of one microbatch there and back, `message`
    for the one to another stage and back; `slowed_<place>`, by which it lengthens the first and last one's way more;
    `d_<place>`, seconds before the first forward and after the last backward (gradient reduction), but for `tied`,
    those of a table that both ends share; `o_<place>`, seconds of the optimizer; `peak_<place>`, allocated bytes with
    the symbol `in_flight` microbatches alive.
    """
    parts = ("own", "through", "slowed", "d", "o", "peak")
    outputs = ("message", "tied", *(f"{part}_{place}" for part in parts for place in PLACES))
    return _after_stage(structure, "", offloads, outputs)


CHUNK = ("forward", "backward", "weight", "ahead", "met", "late", "saved", "temporary")
ENDS = tuple(f"{end}_{what}" for end in ("embedding", "head") for what in ("forward", "backward", "weight", "saved"))
RANK = ("reduce", "optimizer", "slowed", "held", "room")
"""Outputs of `chunk_form`: of a chunk, what both ends add, and of a rank."""


@lru_cache
def chunk_form(structure: Structure, schedule: str, offloads: bool = False) -> Compiled:
    """Return what every chunk and rank of a pipeline whose chunks differ adds to a step, as one compiled function.

    Outputs: of a chunk, the seconds of its passes, embedding and head apart (`forward`, `backward` without what is in
    `weight`: W where the schedule splits it, else 0), those in which they may begin before a message (`ahead`, `met`)
    and `late` ones that no other stage waits for; `message`, seconds; bytes `saved` and `temporary`, and `head_beside`,
    the head's temporaries. Of a rank, by where it is: `reduce_<place>`, `optimizer_<place>`, `slowed_<place>`, seconds;
    `held_<place>`, bytes; `room_<place>`, those that an update needs.
    """
    outputs = ("message", "head_beside", *CHUNK, *ENDS, *(f"{part}_{at}" for part in RANK for at in PLACES[:3]))
    return _after_stage(structure, schedule, offloads, outputs, _chunk_forms)


@lru_cache
def lower_bound(structure: Structure, schedule: str, offloads: bool = False) -> Compiled:
    """Return a step time (`lower_bound_s`) that the engine never beats, as a compiled function.

    With chunks of different layers it holds no more; then two others do: `passes_s`, the same without gradient
    reduction and optimizer, for the fewest layers of each kind in any chunk; `busy_s`, the mean rank's work.
    """
    return _after_stage(structure, schedule, offloads, ("lower_bound_s", "passes_s", "busy_s"))


def _after_stage(
    structure: Structure, schedule: str, offloads: bool, outputs: tuple[str, ...], forms: Forms | None = None
) -> Compiled:
    """Return closed forms as the compiled stage model and a roll-up of its outputs, which all structures share."""
    model = stage.stage_model(structure)
    if offloads:
        model = model.beside(offload.offload_model(structure))
    rollup = _rollup(schedule, offloads, model.outputs, outputs, forms or (_forms if schedule else _stage_forms))
    return model.then(rollup, {_of_stage(name): name for name in model.outputs})


@lru_cache
def _rollup(schedule: str, offloads: bool, given: tuple[str, ...], outputs: tuple[str, ...], forms: Forms) -> Compiled:
    e = {name: symbol(_of_stage(name)) for name in given}
    e = _split(e, schedule)
    e = _with_offload(e, e, schedule) if offloads else e
    made = forms(e, schedule)
    return compile_expressions({name: made[name] for name in outputs})


def _of_stage(output: str) -> str:
    """Return the name of the symbol that stands for an output of the stage model."""
    return f"stage_{output}"


@lru_cache
def step_expressions(structure: Structure, schedule: str, offloads: bool = False) -> Mapping[str, Expr]:
    """Return step time and the allocated peaks of the first and the last rank, also of unevenly split stacks."""
    both = closed_form_expressions(structure, schedule, True, offloads)
    return {k: both[k] for k in ("step_time_s", "first_peak_bytes", "last_peak_bytes")}


@lru_cache
def step_form(structure: Structure, schedule: str, offloads: bool = False) -> Compiled:
    """Return `step_expressions` as one compiled function."""
    return compile_expressions(step_expressions(structure, schedule, offloads))


def closed_form_expressions(
    structure: Structure, schedule: str, uneven: bool = False, offloads: bool = False
) -> dict[str, Expr]:
    """Return the closed forms; `offloads`: with the terms of `costs.offload`.

    uneven: the symbols `<end>_extra_<kind>` count the layers that the first and the last chunk have beyond the others.
    """
    e = stage.expressions(structure)
    if uneven:
        e = e | _end_layers(structure, e)
    e = _split(e, schedule)
    if offloads:
        e = _with_offload(e, offload.expressions(structure), schedule)
    return _forms(e, schedule)


def _forms(e: Mapping[str, Expr], schedule: str) -> dict[str, Expr]:
    """Return the closed forms of a schedule over the outputs of the stage model."""
    if schedule not in CLOSED:
        return _bounds(e, schedule)
    pp, microbatches, chunks = symbol("pp"), symbol("microbatches"), symbol("virtual_stages")
    kind, times, several = CLOSED[schedule], _times(e), minimum(1, pp - 1)
    update, last = (
        sum(several * e[f"{x}_{place}"] + (1 - several) * e[f"{x}_only"] for x in ("reduce", "optimizer"))
        + e["tied_reduce"]
        for place in ("first", "last")
    )
    shape = _SymbolicShape(pp, microbatches, chunks, symbol("microbatch_group_size"))
    head = _beside_head(e, kind.of_last_chunk(shape, minimum, maximum))
    embedding = kind.of_first_chunk(shape, minimum) * e["saved_embedding_bytes"]
    saved_first = kind.in_flight(0, shape, minimum) * e["saved_bytes"] + embedding
    saved_last = kind.in_flight(pp - 1, shape, minimum) * e["saved_bytes"]
    first_rank = _held(e, "first") + _or_update(e, "first", saved_first + e["backward_temporary_bytes"])
    only_rank = _held(e, "only") + _or_update(e, "only", saved_first + head)
    last_rank = _held(e, "last") + _or_update(e, "last", saved_last + head)
    # The engine's clock rounds every action and message of a path by up to half a nanosecond.
    least, rounding = _least(times, e), 2e-9 * (chunks * (microbatches + pp) + 1)
    others = several * (_held_up(e, schedule, "last") + (pp - 2) * _held_up(e, schedule, "middle"))
    return {
        "step_time_s": kind.period(times) + kind.in_row(times) * e.get("row_offload", 0) + update + others,
        "lower_bound_s": kind.least_step(least, update, last) - rounding,
        "passes_s": kind.least_period(least) - rounding,
        "busy_s": _busy(least, e) - 2e-9 * chunks * microbatches,
        "peak_memory_bytes": several * maximum(first_rank, last_rank) + (1 - several) * only_rank,
        "first_peak_bytes": several * first_rank + (1 - several) * only_rank,
        "last_peak_bytes": several * last_rank + (1 - several) * only_rank,
    }


def _bounds(e: Mapping[str, Expr], schedule: str) -> dict[str, Expr]:
    """Return bounds for the closed forms of a schedule that has none: near enough to choose what the engine shall run.

    Every rank has its work and its updates to do, and the first waits as its order says (`ramps`, `chunks_alive`).
    Without flush (PipeDream, 2BW: a step is a part of the steady state) 1F1B's cycles take as long as ever. Fused pairs
    may hide all collectives inside passes where chunks differ; else a rank's own pairs say what they hide.
    """
    kind, t = SCHEDULES[schedule], _least(_times(e), e)
    pp, m, chunks, endless = symbol("pp"), symbol("microbatches"), symbol("virtual_stages"), kind.asynchronous
    most = kind.most_pairs(pp, m)
    bare = t if most == 0 else _least(_times(computed(e)), e)

    def work(t: Times, place: str) -> Expr:
        extras = {"first": t.embedding, "middle": 0, "last": t.head, "only": t.embedding + t.head}
        return m * (chunks * t.chunk + extras[place])

    v_shaped = kind.pipeline.placement == "v"
    places = ("only", "middle") if v_shaped else ("first", "middle", "last")
    passes, whole, peaks = [], [], []
    for place in places:
        there = minimum(1, pp - 2) if place == "middle" else 1
        hidden = 0 if most == 0 else most * maximum(0, most_hidden(e, place))
        tied = e["tied_reduce"] if place in ("first", "last") else 0
        update = e[f"reduce_{place}"] + e[f"optimizer_{place}"]
        update += sum(least_slower(e, place)) if kind.delayed else tied
        passes.append(there * work(bare, place))
        whole.append(there * (work(t, place) - hidden + (m if kind.pipeline.updates == "microbatch" else 1) * update))
        if place == places[0] and not endless and kind.copies == 1:
            least, way = Ways(bare, e, v_shaped), Ways(t, e, v_shaped)
            passes += [passes[0] + least.idle(), least.through_last()]
            whole += [whole[0] + way.idle(), way.through_last() - hidden + update]
        peaks.append(_endless_peak(e, schedule, place) if endless else _open_peak(e, place))
    if endless:
        loop = pp * t.chunk + t.embedding + t.head + 2 * (pp - 1) * t.send
        pair = t.chunk + minimum(t.head, t.head / 2) + minimum(0, t.embedding) + t.send - t.longer
        ways = [m * loop / pp, m * pair]
        ways += delayed_ways(t, e, loop) if kind.delayed else []
    else:
        # From the last rank to the first, if chunks go on there, messages may be short.
        ends = bare.embedding_through + bare.head_through - (0 if v_shaped else (chunks - 1) * own_ends(e))
        ways = [pp * chunks * bare.through + ends + 2 * chunks * (pp - 1) * t.send]
    rounding = 2e-9 * (chunks * (m + pp) + 1)
    least = maximum(*whole, *ways) - rounding
    return {
        "step_time_s": least,
        "lower_bound_s": least,
        "passes_s": maximum(*passes, *ways) - rounding,
        "busy_s": _busy(bare, e) - rounding,
        "peak_memory_bytes": maximum(*(peak for peak, place in zip(peaks, places, strict=True) if place != "middle")),
    }


def _busy(t: Times, e: Mapping[str, Expr]) -> Expr:
    """Return the seconds of passes that every rank has at least: an end whose copies hide takes less than nothing."""
    ends = minimum(0, t.embedding) + minimum(0, t.head)
    return t.microbatches * (t.chunks * (t.chunk - own_ends(e)) + ends)


def _endless_peak(e: Mapping[str, Expr], schedule: str, place: str) -> Expr:
    """Return the allocated bytes of a rank without flush: PipeDream's versions of its weights, or 2BW's two."""
    first, delayed = place == "first", SCHEDULES[schedule].delayed
    alive = symbol("pp") if first else 1
    versions = 2 if delayed else alive
    held = _held(e, place) + (versions - 1) * e[f"parameters_{place}"]
    held += e[f"delayed_gradients_{place}"] if delayed else 0
    saved = alive * (e["saved_bytes"] + (e["saved_embedding_bytes"] if first else 0))
    return held + _or_update(
        e, place, saved + (_beside_head(e, 1) if place == "last" else e["backward_temporary_bytes"])
    )


def _open_peak(e: Mapping[str, Expr], place: str) -> Expr:
    saved = symbol("chunks_alive") * e["saved_bytes"]
    return _held(e, place) + _or_update(e, place, saved + e["backward_temporary_bytes"])


def _chunk_forms(e: Mapping[str, Expr], schedule: str) -> dict[str, Expr]:
    """Return the outputs of `chunk_form` over the outputs of the stage model."""
    t, splits = _times(e), int(SCHEDULES[schedule].splits)
    out = {
        "message": e["send"], "ahead": e["ahead_forward"], "met": e["ahead_backward"], "late": e["late_backward"],
        "forward": t.forward, "backward": t.backward - splits * t.weight, "weight": splits * t.weight,
        "saved": e["saved_bytes"], "temporary": e["backward_temporary_bytes"],
        "head_beside": e["head_temporary_bytes"],
    }  # fmt: skip
    for end, forward, backward, weight in (
        ("embedding", t.embedding_forward, t.embedding_backward, t.embedding_weight),
        ("head", t.head_forward, t.head_backward, t.head_weight),
    ):
        out |= {f"{end}_forward": forward, f"{end}_weight": splits * weight, f"{end}_saved": e[f"saved_{end}_bytes"]}
        out[f"{end}_backward"] = backward - splits * weight
    for place in PLACES[:3]:
        out |= {
            f"reduce_{place}": e[f"reduce_{place}"] + (e["tied_reduce"] if place != "middle" else 0),
            f"optimizer_{place}": e[f"optimizer_{place}"],
            f"slowed_{place}": _held_up(e, schedule, place),
            f"held_{place}": _held(e, place),
            f"room_{place}": e.get(f"update_room_{place}", 0),
        }
    return out


def _stage_forms(e: Mapping[str, Expr], _schedule: str) -> dict[str, Expr]:
    """Return the outputs of `stage_form` over the outputs of the stage model.

    What only the rank itself waits for is in `own`: collectives at the ends of its passes, and a link that is busy all
    the time.
    """
    alive, times = symbol("in_flight"), _times(e)
    out = {"message": 2 * e["send"], "tied": e["tied_reduce"]}
    for place in PLACES:
        first, last = place in ("first", "only"), place in ("last", "only")
        own = times.chunk + (times.embedding if first else 0) + (times.head if last else 0)
        kept = e["saved_bytes"] + (e["saved_embedding_bytes"] if first else 0)
        beside = _beside_head(e, 1) if last else e["backward_temporary_bytes"]
        # Linear in the microbatches alive: what an update needs beyond those of one counts beside all of them.
        beside = _or_update(e, place, beside, kept)
        out |= {
            f"own_{place}": own,
            f"through_{place}": own - own_ends(e) - _of_ends(e, "aside", first, last),
            f"slowed_{place}": _held_up(e, "", place),
            f"d_{place}": e[f"reduce_{place}"] - _held_up(e, "", place) + own_ends(e),
            f"o_{place}": e[f"optimizer_{place}"],
            f"peak_{place}": _held(e, place) + alive * kept + beside,
        }
    return out


def _of_ends(e: Mapping[str, Expr], name: str, first: bool, last: bool) -> Expr:
    """Return what embedding and head change of a wait for copies on a stage (0: nothing is copied)."""
    ends = ["embedding"] * (first and not last) + ["head"] * last
    return sum(e.get(f"{end}_{name}", 0) for end in ends)


def _held_up(e: Mapping[str, Expr], schedule: str, place: str) -> Expr:
    """Return by how much a rank's last backwards end later for all, as `assembly` does."""
    return int(not _splits(schedule)) * (e[f"slowed_{place}"] + e.get(f"throttled_{place}", 0))


def _held(e: Mapping[str, Expr], place: str) -> Expr:
    """Return the bytes that a rank holds all through the step."""
    return sum(e[f"{x}_{place}"] for x in HELD) + e["boundary_buffer_bytes"] + e["workspace_bytes"]


def _or_update(e: Mapping[str, Expr], place: str, passing: Expr, beside: Expr = 0) -> Expr:
    """Return the bytes `passing` that passes need, or what the room for an update's copies exceeds `beside` by."""
    room = f"update_room_{place}"
    return maximum(passing, e[room] - beside) if room in e else passing


def _beside_head(e: Mapping[str, Expr], alive: Expr) -> Expr:
    """Return temporaries of the last rank with `alive` microbatches of the head: the head's come and go before those
    of the blocks below it."""
    return maximum(
        e["backward_temporary_bytes"] + (alive - 1) * e["saved_head_bytes"],
        alive * e["saved_head_bytes"] + e["head_temporary_bytes"],
    )


def own_ends(e: Mapping[str, Expr]) -> Expr:
    """Return the seconds at the ends of a forward and a backward that only their own rank waits for."""
    return e["ahead_forward"] + e["ahead_backward"] + e["late_backward"]


def _times(e: Mapping[str, Expr]) -> Times:
    """Return the times of a chunk's passes with what both ends add."""
    ends = {
        f"{end}_{way}": seconds(e, f"{end}_")
        + e[f"{end}_{way}_dp"]
        + sum(e.get(f"{end}_{way}_{part}", 0) for part in ("host", "offload"))
        for end in ("embedding", "head")
        for way, seconds in (("forward", stage.forward_seconds), ("backward", stage.backward_seconds))
    }
    return Times(
        forward=stage.forward_seconds(e) + e["forward_dp"] + e["forward_host"],
        backward=stage.backward_seconds(e) + e["recompute"] + e["backward_dp"] + e["backward_host"],
        **ends,
        weight=e["weight_compute"], embedding_weight=e["embedding_weight_compute"],
        head_weight=e["head_weight_compute"],
        send=e["send"] - own_ends(e) / 2,
        slowest=(1 - symbol("blocking_sends")) * slowest_over_mean(*messages(e)),
        ranks=symbol("pp"), chunks=symbol("virtual_stages"), microbatches=symbol("microbatches"),
        maximum=maximum, minimum=minimum, group=symbol("microbatch_group_size"),
    )  # fmt: skip


def _least(t: Times, e: Mapping[str, Expr]) -> Times:
    """Return times for a bound: of messages only the mean is known, and between some ranks they may be shorter."""
    longer, blocking = mean_over_last(*messages(e)), symbol("blocking_sends")
    waits, spared = 2 * blocking * maximum(0, longer), e.get("backward_spared", 0)
    ends = {f"{end}_backward": e.get(f"{end}_backward_spared", 0) for end in ("embedding", "head")}
    least = {"forward": t.forward - waits, "backward": t.backward - waits - spared, "longer": (1 - blocking) * longer}
    return replace(t, **least, **{name: getattr(t, name) - less for name, less in ends.items()})


def _split(e: Mapping[str, Expr], schedule: str) -> dict[str, Expr]:
    """Return costs where backwards run in two parts, each with its own collectives beside it; the least where a
    schedule also runs whole ones."""
    if not _splits(schedule):
        return dict(e)
    first = minimum(e["input_dp"], e["backward_dp"] - e["weight_dp"]) if SCHEDULES[schedule].joins else e["input_dp"]
    weight = e["weight_compute"] + e["weight_dp"] + e["weight_host"]
    split = {f"{end}backward_host": e[f"{end}input_host"] for end in ("", "head_")}
    split["head_weight_compute"] = e["head_weight_compute"] + e["head_weight_host"]
    return dict(e) | split | {"weight_compute": weight, "backward_dp": first, "late_backward": 0}


def _splits(schedule: str) -> bool:
    return bool(schedule) and SCHEDULES[schedule].splits


def _with_offload(e: Mapping[str, Expr], moved: Mapping[str, Expr], schedule: str) -> dict[str, Expr]:
    """Return the costs of a step with what it waits for copies (either part of a backward for its own), less what is in
    host memory."""
    joins = (splits := _splits(schedule)) and SCHEDULES[schedule].joins
    whole = {end: moved[f"{end}backward_offload"] for end in offload.ENDS}
    first = {end: moved[f"{end}input_offload"] if splits else whole[end] for end in offload.ENDS}
    aside, alone = moved["input_aside" if splits else "backward_aside"], 1 - minimum(1, symbol("pp") - 1)
    if joins:  # the least of both ways
        least = {
            end: minimum(*(ways[""] + (ways[end] if end else 0) for ways in (whole, _summed(moved)))) for end in whole
        }
        first = {end: least[end] - (least[""] if end else moved["weight_offload"]) for end in least}
        aside = maximum(aside, moved["backward_aside"])
    out = {
        "forward_host": e["forward_host"] + moved["forward_offload"],
        "backward_host": e["backward_host"] + first[""],
        "weight_compute": e["weight_compute"] + (moved["weight_offload"] if splits else 0),
        "saved_bytes": e["saved_bytes"] - moved["moved_bytes"],
        "ahead_forward": e["ahead_forward"] + moved["forward_aside"],
        "late_backward": (0 if splits else moved["late_backward"]) + aside,
        "row_offload": sum(moved[name] + alone * moved[f"head_{name}"] for name in ("forward_row", "backward_row"))
        - (moved["backward_spared"] + alone * moved["head_backward_spared"])
        + (1 - alone) * (1 - symbol("turns")) * maximum(0, moved["head_backward_row"]) / symbol("virtual_stages"),
    }
    for end in offload.ENDS:
        out |= {
            f"{end}aside": moved[f"{end}forward_aside"] + moved[f"{end}backward_aside"],
            f"{end}forward_offload": moved[f"{end}forward_offload"],
            f"{end}backward_offload": first[end],
            f"{end}backward_spared": moved[f"{end}backward_spared"],
        }
        if end and splits and not joins:
            out[f"{end}weight_compute"] = e[f"{end}weight_compute"] + moved[f"{end}weight_offload"]
    for end in PLACES:
        room = moved["staged_bytes"]
        out |= {
            f"update_room_{end}": maximum(0, moved[f"staged_update_{end}"] - room),
            f"optimizer_{end}": e[f"optimizer_{end}"] + moved[f"optimizer_offload_{end}"],
            f"optimizer_offload_{end}": moved[f"optimizer_offload_{end}"],
            f"optimizer_bytes_{end}": e[f"optimizer_bytes_{end}"] - moved[f"moved_optimizer_{end}"] + room,
            f"parameters_{end}": e[f"parameters_{end}"] - moved[f"moved_weights_{end}"],
            f"gradients_{end}": e[f"gradients_{end}"] - moved[f"moved_gradients_{end}"],
            f"throttled_{end}": moved[f"throttled_{end}"],
        }
    return dict(e) | out


def _summed(moved: Mapping[str, Expr]) -> dict[str, Expr]:
    """Return what both parts of a backward wait for copies, plain and more at the ends."""
    return {end: moved[f"{end}input_offload"] + moved[f"{end}weight_offload"] for end in offload.ENDS}


def _end_layers(structure: Structure, e: Mapping[str, Expr]) -> dict[str, Expr]:
    """Return the times of both ends with the layers that they have beyond the other chunks (fewer: negative)."""
    ones = [stage.layer(structure, k) for k in range(len(structure.kinds))]
    parts = [f"{phase}_{x}" for phase in ("forward", "input") for x in ("compute", *COMMUNICATION)]
    out = {}
    for end, name in (("first", "embedding"), ("last", "head")):
        extra = [symbol(f"{end}_extra_{k}") for k in range(len(ones))]
        for part in (*parts, "weight_compute"):
            again = "recompute" if part == "input_compute" else None
            more = (n * (one[part] + (one[again] if again else 0)) for n, one in zip(extra, ones, strict=True))
            out[f"{name}_{part}"] = e[f"{name}_{part}"] + sum(more)
    return out


@dataclass(frozen=True)
class _SymbolicShape:
    ranks: Expr
    microbatches: Expr
    chunks: Expr
    group: Expr
