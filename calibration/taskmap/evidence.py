"""Measures what choosing schedules by their costs gives and takes, for the notebook about kernels.

    python -m calibration.taskmap.evidence --out notebooks/data/kernels.json [--shapes 10]

Per contraction and size every schedule is measured, so that one sees where the costs put the fastest; none of these
sizes is one of those that the costs are learned from. It takes about twelve minutes on one core.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from math import prod
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Annotated

import torch
import typer
from torch import Tensor, nn

from calibration.host import cpu_name
from calibration.taskmap.contraction import IMAGE, PRODUCTS, Contraction, convolution
from calibration.taskmap.cost import Costs
from calibration.taskmap.library import Library
from calibration.taskmap.native import compiled
from calibration.taskmap.networks import Convolutional, Transformer, TunedConv2d, TunedLinear, tuned
from calibration.taskmap.processor import Processor
from calibration.taskmap.results import Learned, Network, Results, Search, Shape, write_results
from calibration.taskmap.space import KernelSchedule, schedules
from calibration.taskmap.tune import PROBES, Bench, fastest, learned, shortest, tune
from sim.specs.fields import InputError

COMMAND = "python -m calibration.taskmap.evidence --out notebooks/data/kernels.json"
IMAGES = ((3, 1, 1, (2, 64, 28, 28, 64)), (1, 1, 0, (1, 256, 14, 14, 64)), (7, 2, 3, (4, 3, 64, 64, 32)))
"""Convolutions: kernel, stride, padding and the sizes of the contraction; layers of ResNets."""

NETWORKS = (
    ("convolutional, 4 images of 32 x 32", Convolutional, (4, 3, 32, 32)),
    ("transformer, 2 x 128 tokens", Transformer, (2, 128, 256)),
)
PATIENCE_S = 60.0
"""How long a search at random goes on."""

Told = Callable[[str], object]


def drawn(number: int, seed: int) -> Iterator[dict[str, int]]:
    """Yield sizes of products from 4 MFLOP to 0.6 GFLOP, drawn log-uniformly, every second one in whole 64s."""
    draw = Random(seed)
    made = 0
    while made < number:
        step = 64 if made % 2 else 1
        sizes = {name: step * max(1, round(2 ** draw.uniform(4, 11) / step)) for name in "mnk"}
        if 4e6 < 2 * prod(sizes.values()) < 6e8:
            made += 1
            yield sizes


def anywhere(machine: Processor, draw: Random) -> KernelSchedule:
    """Return a schedule drawn from all that the template allows: tiles of any size, whether they fit or not.

    What a tuner draws from that knows the sizes of a problem, not the machine (as AutoTVM and Ansor do).
    """
    rows, vectors, high, wide = (draw.randint(1, most) for most in (16, 6, 16, 8))
    return KernelSchedule(rows, vectors, high, wide, draw.choice(range(16, 513, 16)), machine.lanes)


EVERYWHERE = 16 * 6 * 16 * 8 * 32


def library_run(contraction: Contraction, bench: Bench) -> Callable[[], Tensor]:
    """Return a call of torch's kernel on the bench's arrays."""
    a, b = torch.from_numpy(bench.a), torch.from_numpy(bench.b)
    if contraction.name in PRODUCTS:
        rows, columns, depth = contraction.extents(bench.sizes)
        left = a.view(rows, depth) if contraction.beside[0] else a.view(depth, rows).T
        right = b.view(depth, columns) if contraction.beside[1] else b.view(columns, depth).T
        return partial(torch.mm, left, right)
    kernel, stride, padding, (*image, filters) = next(each for each in IMAGES if convolution(*each[:3]) is contraction)
    weights = filters, image[1], kernel, kernel
    x, w = a[: prod(image)].view(image), b[: prod(weights)].view(weights)
    return partial(nn.functional.conv2d, x, w, stride=stride, padding=padding)


def shape_of(costs: Costs, sizes: Mapping[str, int]) -> Shape:
    """Return what tuning finds at some sizes, and what measuring everything finds."""
    contraction, every = costs.contraction, schedules(costs.machine)
    first, second = Bench(contraction, sizes), Bench(contraction, sizes)
    found, whole = tune(costs, first), fastest(every, second)
    fastest(every, first)  # all of them a second time: what disturbs one measurement is over at the other
    rows, columns, depth = contraction.extents(sizes)
    return Shape(
        contraction=contraction.name,
        sizes=dict(sizes),
        flop=2.0 * rows * columns * depth,
        predicted_s=costs.seconds(every, sizes).tolist(),
        measured_s=[min(first(schedule), second(schedule)) for schedule in every],
        chosen=every.index(found.schedule),
        ranked=found.measured,
        tuning_s=found.spent_s,
        exhaustive_s=whole.spent_s,
        library_s=shortest(library_run(contraction, first)),
    )


def searched(costs: Costs, shape: Shape, tuning_s: float) -> Search:
    """Return how long a search at random over everything takes to find a schedule as fast as the chosen one."""
    bench, draw = Bench(costs.contraction, shape.sizes), Random(0)
    good, began, found, trials = shape.measured_s[shape.chosen], perf_counter(), False, 0
    while not found and perf_counter() - began < PATIENCE_S:
        found = bench(anywhere(costs.machine, draw)) <= good
        trials += 1
    spent = perf_counter() - began
    return Search(label=shape.label, space=EVERYWHERE, trials=trials, spent_s=spent, found=found, tuning_s=tuning_s)


def network(library: Library, name: str, module: nn.Module, x: Tensor) -> Network:
    """Return a network beside its copy of tuned kernels."""
    with torch.no_grad():
        wanted, made, began = module(x), tuned(module, library), perf_counter()
        out = made(x)
        spent = perf_counter() - began
        ours, torchs = shortest(lambda: made(x)), shortest(lambda: module(x))
    kernels = sum(isinstance(each, TunedLinear | TunedConv2d) for each in made.modules())
    error = float((out - wanted).abs().max() / wanted.abs().max())
    return Network(name=name, tuned_s=ours, torch_s=torchs, error=error, kernels=kernels, tuning_s=spent)


def gather(out: Path, number: int, told: Told) -> Results:
    """Return everything measured; the file is written after each contraction."""
    torch.set_num_threads(1)
    library = Library()
    made = Results(
        command=COMMAND, date=f"{datetime.now(UTC):%Y-%m-%d}", machine=f"one core of an {' '.join(cpu_name()[1:])}",
        software=f"fp32, torch {version('torch')}", schedules=[vars(each) for each in schedules(library.machine)],
        probes=PROBES, compile_s=0.0, learned=[], shapes=[], searches=[], networks=[],
    )  # fmt: skip
    for contraction, sizes in asked(number):
        began = perf_counter()
        costs = library.costs[contraction] = learned(contraction, library.machine)
        spent = perf_counter() - began
        told(f"{contraction.name}: learned in {spent:.1f} s, errors of {costs.sigma_log:.1%}")
        compile_s = compile_all(contraction, library.machine)
        shapes = []
        for each in sizes:
            shapes.append(shape_of(costs, each))
            told(f"{shapes[-1].label}: the fastest is number {shapes[-1].rank + 1} of the costs")
        one = Learned(contraction=contraction.name, seconds=spent, sigma_log=costs.sigma_log)
        made = replace(made, compile_s=compile_s, learned=[*made.learned, one], shapes=[*made.shapes, *shapes])
        if contraction.name in PRODUCTS:
            tuning_s = spent + shapes[0].ranked * compile_s + shapes[0].tuning_s
            made = replace(made, searches=[*made.searches, searched(costs, shapes[0], tuning_s)])
        write_results(out, made)
    for name, module, x in NETWORKS:
        found = network(library, name, module(), torch.randn(x))
        told(f"{name}: {found.torch_s / found.tuned_s:.2f} times as fast as torch's")
        made = replace(made, networks=[*made.networks, found])
    write_results(out, made)
    return made


def asked(number: int) -> Iterator[tuple[Contraction, list[dict[str, int]]]]:
    """Yield every contraction with sizes to try it at, `number` of a product."""
    for seed, contraction in enumerate(PRODUCTS.values()):
        yield contraction, list(drawn(number, seed))
    for *geometry, sizes in IMAGES:
        yield convolution(*geometry), [dict(zip(IMAGE, sizes, strict=True))]


def compile_all(contraction: Contraction, machine: Processor) -> float:
    """Compile every schedule's kernel and return the mean seconds of one."""
    every, began = schedules(machine), perf_counter()
    for schedule in every:
        compiled(schedule.program(contraction))
    return (perf_counter() - began) / len(every)


def main(
    out: Annotated[Path, typer.Option("--out", help="File that is written.")],
    number: Annotated[int, typer.Option("--shapes", help="Sizes of each product, from 1.")] = 10,
) -> None:
    """Measure; progress goes to stderr."""
    if number < 1:
        raise InputError("--shapes", number, "a whole number from 1")
    gather(out, number, lambda text: sys.stderr.write(text + "\n"))


if __name__ == "__main__":
    typer.run(main)
