"""What compute hides of ZeRO's and data parallelism's collectives beside it, piece by piece, in closed form.

Streams slow each other as in the contention model of four streams (`costs.contention`; Mist, arXiv 2503.19050); pieces
follow each other as in FSDP (arXiv 2304.11277): a layer's weights are gathered while the layer before it runs, its
gradients are reduced while the next one runs. The event engine lets the same collectives run (`sim.engine.lower`).
"""

from collections.abc import Mapping
from typing import NamedTuple

from sim.costs.algebra import Expr, maximum, minimum, symbol
from sim.costs.layers.ops import COMMUNICATION


class Cover(NamedTuple):
    """What collectives run beside, in seconds: compute, and collectives that the pass waits for."""

    compute: Expr
    inner: Expr


COMPUTED = "forward_compute", "input_compute", "weight_compute", "recompute"
"""The times of a layer's kernels in both passes."""

COVERED = (
    *(f"{phase}_{x}" for phase in ("forward", "input") for x in ("compute", *COMMUNICATION)),
    "weight_compute", "recompute", "forward_host", "backward_host",
)  # fmt: skip
"""The times that `covers` reads."""


def covers(times: Mapping[str, Expr]) -> tuple[Cover, Cover]:
    """Return a forward and a backward pass with what it repeats and what issuing kernels adds, as `Cover`."""
    inner = (sum(times[f"{phase}_{x}"] for x in COMMUNICATION) for phase in ("forward", "input"))
    own = times["forward_compute"], times["input_compute"] + times["weight_compute"] + times["recompute"]
    hosts = (times[f"{way}_host"] for way in ("forward", "backward"))
    forward, backward = (Cover(c + host, i) for c, host, i in zip(own, hosts, inner, strict=True))
    return forward, backward


def hidden_behind(time: Expr, cover: Cover, pieces: Expr) -> Expr:
    """Return what stays exposed of `time` in `pieces` parts, each started as soon as its part of `cover` begins.

    The first part (or the last) is beside nothing; of the others what outlasts the cover is exposed. Side by side both
    slow down: `slowed_beside` is paid.
    """
    n = maximum(pieces, 1)
    return time / n + (1 - 1 / n) * (outlasts(time, cover) + slowed_beside(time, cover.compute))


class Turns(NamedTuple):
    """How the chunks of a rank take turns: how many there are, passes of one in turn, and for how many a rank waits
    between the turns."""

    chunks: Expr
    passes: Expr
    waits: Expr


def beside_last(time: Expr, cover: Cover, whole: Cover, pieces: Expr, turns: Turns) -> tuple[Expr, Expr]:
    """Return what stays exposed of `time` in `pieces` parts, each started as its layer is done in the last pass of its
    chunk in a step, and by how much these passes are slower (a part of it).

    cover: one pass of every chunk, for parts to run beside; whole: of those in turns between them, which hide what is
    left of the chunks before. The same of the first passes, which wait for their parts.
    """
    n, chunks = maximum(pieces, 1), turns.chunks
    most, alone = 1 - 1 / n, 1 - 1 / maximum(n / chunks, 1)
    one, other = (Cover(*(part / chunks for part in all_of)) for all_of in (cover, whole))
    between = (chunks - 1) * ((turns.passes - 1) * _hidden(other) + turns.waits * sum(other))
    left = maximum(most * outlasts(time, cover) - between, alone * outlasts(time / chunks, one))
    every = most * slowed_beside(time, cover.compute + (chunks - 1) * (turns.passes - 1) * other.compute)
    slower = minimum(every, alone * slowed_beside(time, cover.compute))
    return time / n + left + every, slower + minimum(left, alone * held_up(outlasts(time, cover), cover))


def in_turn(pp: Expr, between: bool) -> Turns:
    """Return how the chunks of each of `pp` ranks take turns; between: of ranks between the first and the last.

    They take `microbatch_group_size` microbatches each or all of them, in a V about as many as there are ranks; of two
    copies of the model, each takes half. From a chunk's pass to that of the chunk before it (a forward: behind it) it
    is a way round all ranks; to that of the other copy one pass less. Where such copies put off weight gradients, ranks
    between make those of both one right after the other, and the others have an input's pass between them.
    """
    splits, copies = symbol("splits"), symbol("copies")
    each = maximum(symbol("microbatch_group_size"), (1 - symbol("turns")) * symbol("microbatches"))
    passes = maximum(1, minimum(each, symbol("microbatches")) / copies)
    apart = 1 - splits * (copies - 1) if between else 1
    waits = maximum(0, pp - passes - (1 - splits) * (copies - 1))
    return Turns(symbol("virtual_stages") * copies, 1 + apart * (passes - 1), apart * waits)


def outlasts(time: Expr, cover: Cover) -> Expr:
    """Return what is left of collectives of `time` seconds when a pass ends that they have run beside all along.

    Beside compute they progress as the contention model has it (`slowed_beside`). Collectives that the pass waits for
    hide others on other links (`dp_apart`); on the same links one takes from the other what it gains.
    """
    return maximum(0, time - _hidden(cover))


def _hidden(cover: Cover) -> Expr:
    """Return the seconds of collectives that run beside a pass, alone."""
    compute, collective = slowdowns()
    return cover.compute * (1 + compute) / (1 + collective) + symbol("dp_apart") * cover.inner


def beyond(time: Expr, cover: Cover) -> Cover:
    """Return what is left of a cover for further collectives when some of `time` seconds have run beside it."""
    compute, collective = slowdowns()
    used = time * (1 + collective) / (1 + compute)
    later = maximum(0, time - cover.compute * (1 + compute) / (1 + collective))
    return Cover(maximum(0, cover.compute - used), maximum(0, cover.inner - later))


def held_up(left: Expr, cover: Cover) -> Expr:
    """Return by how many seconds the `left` ones of collectives delay those that the pass waits for, on the same links:
    each takes half the link, so that the pass, and its message, ends later by as much as has run."""
    return minimum(left, (1 - symbol("dp_apart")) * cover.inner)


def slowed_beside(time: Expr, cover: Expr) -> Expr:
    """Return how much longer compute of `cover` seconds takes beside collectives of `time` seconds.

    By the device's contention matrix (`costs.contention.two_streams`), or where it has none by `overlap_slowdown`, of
    the shorter one.
    """
    compute, collective = slowdowns()
    return minimum(compute * cover, time * (1 + collective) * compute / (1 + compute))


def slowdowns() -> tuple[Expr, Expr]:
    """Return how much slower compute is beside collectives, and these beside compute."""
    known = symbol("contention_known")
    compute, collective = (
        known * symbol(name) + (1 - known) * symbol("overlap_slowdown")
        for name in ("compute_by_collective", "collective_by_compute")
    )
    return compute, collective


def ends_of_passes(gather: Expr, scatter: Expr, forward: Cover, backward: Cover, pieces: Expr) -> dict[str, Expr]:
    """Return what of the exposed seconds of collectives (`hidden_behind`) only their own rank waits for.

    ahead_*: before a pass has what it needs, since two layers' weights can be gathered before a message arrives. What a
    rank that has waited for a message still waits for are the weights of the layers after these two, where they take
    longer to gather than the layers to run. late_backward: after the message of a backward has left, whose gradients
    are still to be reduced: the last layer's, and what is left of the others'. Gathers and reductions under way at once
    share the link, so that a gather is as late as if as much were reduced beside it.
    """
    n = maximum(pieces, 1)
    second = 1 - 1 / n - maximum(0, 1 - 2 / n)
    gathered = outlasts(gather + minimum(gather, scatter), backward)
    left = outlasts(gather + scatter, backward) - gathered
    return {
        "ahead_forward": gather / n + second * outlasts(gather, forward),
        "ahead_backward": gather / n + second * gathered,
        "late_backward": scatter / n + (1 - 1 / n) * (left - held_up(left, backward)),
    }


def overlapped(time: Expr, cover: Cover, pieces: Expr) -> Expr:
    """Return what stays exposed of `time`: what `cover` does not hide, or all of it without `overlap_dp`."""
    overlap_dp = symbol("overlap_dp")
    return overlap_dp * hidden_behind(time, cover, pieces) + (1 - overlap_dp) * time


def beside_another(times: Mapping[str, Expr]) -> dict[str, Expr]:
    """Return what passes wait for of the experts' exchanges where these run beside the other pass of another
    microbatch, with the plan's `ep_overlap`.

    A forward and a backward that alternate hide what either exchanges (Megatron-Core's `combined_1f1b`), half of the
    rest counting for each; those that fill and drain a pipeline, of as many microbatches as ranks, hide nothing.
    """
    names = "forward_ep", "input_ep"
    cover = Cover(sum(times[name] for name in COMPUTED), 0)
    both = sum(times[name] for name in names)
    if both == 0:
        return {}
    left = outlasts(both, cover) + slowed_beside(both, cover.compute)
    share = symbol("ep_overlap") * alternating()
    return {name: (1 - share) * times[name] + share * left / len(names) for name in names}


def alternating() -> Expr:
    """Return the share of a rank's passes between which those of two microbatches alternate."""
    return 1 - minimum(1, symbol("pp") / symbol("microbatches"))
