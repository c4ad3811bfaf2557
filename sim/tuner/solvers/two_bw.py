"""PipeDream-2BW's memory laws and planner for repetitive networks (arXiv 2006.09503, sections 3 and A)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from sim.specs import InputError

Scheme = Literal["2bw", "flush", "gpipe"]
RECOMPUTE_FACTOR = 4 / 3
"""A forward more beside a forward and a backward of twice its time (arXiv 2006.09503, section 3.4)."""


@dataclass(frozen=True)
class Network:
    """A network of equal blocks, as the planner sees it.

    weight_bytes: all weights, one version. activation_bytes, boundary_bytes: of one sample, what all blocks keep and
    what passes from one block to the next. stage_seconds(depth, microbatch): forward and backward of each stage,
    without recomputation. master_bytes: fp32 master copies; the paper's laws leave them out (0), in practice each
    version of the weights has its own. state_bytes: gradients and moments, kept once whatever the schedule.
    """

    blocks: int
    weight_bytes: float
    activation_bytes: float
    boundary_bytes: float
    stage_seconds: Callable[[int, int], Sequence[float]]
    master_bytes: float = 0
    state_bytes: float = 0


@dataclass(frozen=True)
class Servers:
    """The machine: GPUs, GPUs in a server, bytes/s between two of one server and of two, memory of each."""

    gpus: int
    gpus_per_server: int
    inside_bytes_per_s: float
    outside_bytes_per_s: float
    memory_bytes: float


@dataclass(frozen=True)
class Configuration:
    """A width, a depth, a microbatch (samples) and whether activations are recomputed; m microbatches per update."""

    width: int
    depth: int
    microbatch: int
    microbatches: int
    recompute: bool
    memory_bytes: float
    seconds_per_microbatch: float

    @property
    def samples_per_s(self) -> float:
        """Throughput of all pipelines."""
        return self.width * self.microbatch / self.seconds_per_microbatch


def memory_bytes(
    network: Network, scheme: Scheme, depth: int, microbatch: int, microbatches: int, recompute: bool
) -> float:
    """Return the worst worker's bytes of weights and activations (section 3.1 and A.1.2).

    versions |W| / d + kept |A_tot(b)| / d + in flight |A_in(b)|: 2BW has two versions and d in flight, GPipe one and
    m, 1F1B with flush one and d. Without recomputation all that is in flight is kept, with it one microbatch.
    """
    versions = 2 if scheme == "2bw" else 1
    in_flight = microbatches if scheme == "gpipe" else min(depth, microbatches)
    held = versions * (network.weight_bytes + network.master_bytes) + network.state_bytes
    kept = 1 if recompute else in_flight
    return (held + kept * microbatch * network.activation_bytes) / depth + (
        in_flight * microbatch * network.boundary_bytes
    )


def seconds_per_microbatch(
    network: Network, servers: Servers, width: int, depth: int, microbatch: int, microbatches: int, recompute: bool
) -> float:
    """Return max over stages of max(c compute + messages, all-reduce / m) (section 3.4).

    A boundary costs 2 |A| / bandwidth, activations and gradients; within a server if width < its GPUs, else between
    two. A stage's gradients are reduced over `width` replicas in a ring, within a server if they fit into one.
    """
    again = RECOMPUTE_FACTOR if recompute else 1
    boundary = servers.inside_bytes_per_s if width < servers.gpus_per_server else servers.outside_bytes_per_s
    ring = servers.inside_bytes_per_s if width <= servers.gpus_per_server else servers.outside_bytes_per_s
    message = 2 * microbatch * network.boundary_bytes / boundary
    reduce = 2 * (width - 1) / width * network.weight_bytes / depth / ring
    return max(
        max(again * compute + ((s > 0) + (s < depth - 1)) * message, reduce / microbatches)
        for s, compute in enumerate(network.stage_seconds(depth, microbatch))
    )


def configurations(network: Network, servers: Servers, batch: int, scheme: Scheme = "2bw") -> list[Configuration]:
    """Return the best configuration of every (width, depth) with width * depth <= GPUs that fits, fastest first.

    For each, the largest microbatch (a power of two) is taken with and without recomputation and the faster of both
    kept. 2BW needs at least as many microbatches as stages.

    Raises:
        InputError: a batch, or a number of blocks or GPUs, below 1.
    """
    for name, value in (("batch", batch), ("blocks", network.blocks), ("gpus", servers.gpus)):
        if value < 1:
            raise InputError(name, value, "1 or more")
    depths = [d for d in range(1, min(network.blocks, servers.gpus) + 1) if network.blocks % d == 0]
    found = []
    for depth in depths:
        for width in range(1, servers.gpus // depth + 1):
            largest = (_largest(network, servers, batch, scheme, width, depth, again) for again in (False, True))
            each = [c for c in largest if c]
            found += [max(each, key=lambda c: c.samples_per_s)] if each else []
    return sorted(found, key=lambda c: -c.samples_per_s)


def _largest(
    network: Network, servers: Servers, batch: int, scheme: Scheme, width: int, depth: int, recompute: bool
) -> Configuration | None:
    for microbatch in _powers(batch // width if batch % width == 0 else 0):
        m = batch // width // microbatch
        memory = memory_bytes(network, scheme, depth, microbatch, m, recompute)
        if memory <= servers.memory_bytes and (scheme != "2bw" or m >= depth):
            seconds = seconds_per_microbatch(network, servers, width, depth, microbatch, m, recompute)
            return Configuration(width, depth, microbatch, m, recompute, memory, seconds)
    return None


def _powers(of: int) -> Iterator[int]:
    """Yield the powers of two that divide a number, the largest first."""
    power = of & -of
    while power:
        yield power
        power //= 2
