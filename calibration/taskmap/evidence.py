"""Measures what choosing schedules by their costs gives and takes, for the notebook about kernels.

    python -m calibration.taskmap.evidence --out notebooks/data/kernels.json [--only networks]

Plans are predicted by the profile of `trainsim calibrate --device cpu --out notebooks/data/kernels-profile`.
Per contraction and size every schedule is measured, so that one sees where the costs put the fastest; none of these
sizes is one of those that the costs are learned from. It takes about a quarter of an hour on one core.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from math import prod
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

from calibration.execute.busy import nobody
from calibration.execute.cli import execute
from calibration.execute.evidence import SIZES, executed
from calibration.execute.limits import as_executed
from calibration.execute.measure import Setting
from calibration.host import cpu_name
from calibration.taskmap.contraction import IMAGE, PRODUCTS, Contraction, convolution
from calibration.taskmap.cost import Costs
from calibration.taskmap.library import Library
from calibration.taskmap.native import compiled
from calibration.taskmap.networks import Convolutional, Transformer, TunedConv2d, TunedLinear, tuned
from calibration.taskmap.processor import Processor, processor
from calibration.taskmap.results import Learned, Network, Results, Search, Shape, read_results, write_results
from calibration.taskmap.space import KernelSchedule, schedules
from calibration.taskmap.tune import PROBES, Bench, fastest, learned, shortest, tune
from sim.costs.profile import profile_name
from sim.report.numbers import change, tenths
from sim.specs import Cluster, InputError, Job, Plan
from sim.validation.executed import Executed

COMMAND = "python -m calibration.taskmap.evidence --out notebooks/data/kernels.json"
IMAGES = ((3, 1, 1, (2, 64, 28, 28, 64)), (1, 1, 0, (1, 256, 14, 14, 64)), (7, 2, 3, (4, 3, 64, 64, 32)))
"""Convolutions: kernel, stride, padding and the sizes of the contraction; layers of ResNets."""

NETWORKS = (
    ("convolutional, 4 images of 32 x 32", Convolutional, (4, 3, 32, 32)),
    ("transformer, 2 x 128 tokens", Transformer, (2, 128, 256)),
)
PARTS = ("kernels", "networks", "plans")
PROFILE = Path("notebooks/data/kernels-profile")
PLANS = {"library's products": {}, "task-mapped products": {"product_kernel": "task-mapped"}}
STEPS = 20
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


def network(library: Library, name: str, module: nn.Module, x: Tensor, told: Told) -> Network:
    """Return a network beside its copy of tuned kernels."""
    with torch.no_grad():
        wanted, made, began = module(x), tuned(module, library), perf_counter()
        out = made(x)
        spent = perf_counter() - began
        ours, torchs = shortest(lambda: made(x)), shortest(lambda: module(x))
    kernels = sum(isinstance(each, TunedLinear | TunedConv2d) for each in made.modules())
    error = float((out - wanted).abs().max() / wanted.abs().max())
    told(f"{name}: {torchs / ours:.2f} times as fast as torch's")
    return Network(name=name, tuned_s=ours, torch_s=torchs, error=error, kernels=kernels, tuning_s=spent)


def gather(out: Path, number: int, parts: Sequence[str], profile: Path, told: Told) -> Results:
    """Return everything measured, of parts that are not asked for what the file holds; it is written as it grows."""
    torch.set_num_threads(1)
    library, every = Library(), schedules(processor())
    made = Results(
        command=COMMAND, date=f"{datetime.now(UTC):%Y-%m-%d}", machine=f"one core of an {cpu_name()[1]}",
        software=f"fp32, torch {version('torch')}", schedules=[vars(each) for each in every],
        probes=PROBES, compile_s=0.0, learned=[], shapes=[], searches=[], networks=[], plans=[],
    )  # fmt: skip
    if out.exists():
        made = read_results(out)
    if "kernels" in parts:
        made = replace(made, learned=[], shapes=[], searches=[])
        for contraction, sizes in asked(number):
            made = with_kernel(made, contraction, sizes, told)
            write_results(out, made)
    if "networks" in parts:
        found = [network(library, name, module(), torch.randn(x), told) for name, module, x in NETWORKS]
        made = replace(made, networks=found)
    if "plans" in parts:
        made = replace(made, plans=[plan(name, given, profile, told) for name, given in PLANS.items()])
    write_results(out, made)
    return made


def plan(name: str, given: Mapping[str, Any], profile: Path, told: Told) -> Executed:
    """Return a plan that was predicted by a profile folder and then executed."""
    cluster = Cluster.of("cpu", 1, gpus_per_node=1, domain_gpus=1, profile=profile_name(profile))
    asked = as_executed(Plan(global_batch=16, micro_batch=2, precision="fp32", **given))
    job = Job(model=SIZES["medium"], cluster=cluster, plan=asked)
    row = execute(job, Setting(steps=STEPS), nobody)
    told(f"{name}: predicted {change(row.error)} off")
    return executed(name, job, row, STEPS)


def with_kernel(made: Results, contraction: Contraction, sizes: Sequence[Mapping[str, int]], told: Told) -> Results:
    """Return the results with a contraction at some sizes."""
    began = perf_counter()
    costs = learned(contraction, processor())
    spent = perf_counter() - began
    told(f"{contraction.name}: learned in {spent:.1f} s, errors of {tenths(costs.sigma_log)}")
    compile_s, shapes, searches = compile_all(contraction, costs.machine), list[Shape](), list[Search]()
    for each in sizes:
        shapes.append(shape_of(costs, each))
        told(f"{shapes[-1].label}: the fastest is number {shapes[-1].rank + 1} of the costs")
    if contraction.name in PRODUCTS:
        searches = [searched(costs, shapes[0], spent + shapes[0].ranked * compile_s + shapes[0].tuning_s)]
    one = Learned(contraction=contraction.name, seconds=spent, sigma_log=costs.sigma_log)
    return replace(
        made,
        compile_s=compile_s,
        learned=[*made.learned, one],
        shapes=[*made.shapes, *shapes],
        searches=[*made.searches, *searches],
    )


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
    only: Annotated[str | None, typer.Option("--only", help="One part: kernels, networks or plans.")] = None,
    profile: Annotated[Path, typer.Option("--profile", help="Folder of this machine's profile.")] = PROFILE,
) -> None:
    """Measure; progress goes to stderr."""
    if number < 1:
        raise InputError("--shapes", number, "a whole number from 1")
    if only not in (None, *PARTS):
        raise InputError("--only", only, " or ".join(PARTS))
    gather(out, number, PARTS if only is None else [only], profile, lambda text: sys.stderr.write(text + "\n"))


if __name__ == "__main__":
    typer.run(main)
