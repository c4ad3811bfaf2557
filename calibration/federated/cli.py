"""`trainsim decentralized measure`: options in, what a real training of skewed partitions sent, took and learned."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from calibration.execute.processes import ExecutionError
from calibration.federated.algorithms import ALGORITHMS
from calibration.federated.compare import Pace, predicted
from calibration.federated.data import DATA, DataName
from calibration.federated.gloo import TIMEOUT_S, GlooRun, train_processes
from calibration.federated.models import NORMS, Norm
from calibration.federated.results import FederatedRun
from calibration.federated.setting import Setting
from calibration.federated.train import train
from calibration.measuring import ending, one_of, results_console
from sim.decentralized.communication import KNOBS, AlgorithmName, Communication, whole_bytes
from sim.decentralized.controllers import CONTROLLERS
from sim.decentralized.controllers import controller as make
from sim.decentralized.controllers.base import Controller
from sim.decentralized.objective import Objective
from sim.decentralized.setting import Decentralized
from sim.report.numbers import tenths
from sim.specs.fields import InputError
from sim.specs.files import checked_target, print_json, write_json
from sim.units import seconds

LATENCY = typer.Option(help="Latency of each link in seconds (0), with --bytes-per-s.")
TIMEOUT = typer.Option(help=f"Seconds until a run with --bytes-per-s is ended ({TIMEOUT_S:g}).")
TOLERATED = typer.Option(min=0, max=1, help="Accuracy loss that a controller bears (0.05).")


def measure_command(
    algorithm: Annotated[str, typer.Option(help=f"One of {', '.join(ALGORITHMS)}.")] = "fedavg",
    theta: Annotated[
        float | None, typer.Option(help="The algorithm's knob; by default the middle of its list.")
    ] = None,
    data: Annotated[str, typer.Option(help=f"What is learned: one of {', '.join(DATA)}.")] = "digits",
    norm: Annotated[str, typer.Option(help=f"Of the network: one of {', '.join(NORMS)}.")] = "group",
    skew: Annotated[float, typer.Option(help="Share of the data that is sorted by label: 0 to 1.")] = 1.0,
    partitions: Annotated[int, typer.Option(help="Partitions of the data, from 2 to 64.")] = 5,
    steps: Annotated[int, typer.Option(help="Minibatches of each partition.")] = 300,
    travel_every: Annotated[int, typer.Option(help="Minibatches between travels; more than --steps: none.")] = 50,
    bytes_per_s: Annotated[
        float | None, typer.Option(help="Bytes a second of each link: a process for each partition, and a prediction.")
    ] = None,
    latency_s: Annotated[float | None, LATENCY] = None,
    timeout_s: Annotated[float | None, TIMEOUT] = None,
    controller: Annotated[str, typer.Option(help=f"What moves theta: one of {', '.join(CONTROLLERS)}.")] = "fixed",
    tolerated: Annotated[float | None, TOLERATED] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights, partitions and minibatches.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write the JSON object to this file too.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train partitions of skewed data here, and say what they sent, how long that took and how well they learned."""
    checked_target("--out", out)
    _check_counts("--bytes-per-s", bytes_per_s is not None, {"--latency-s": latency_s, "--timeout-s": timeout_s})
    _check_counts("a --controller that moves theta", controller != "fixed", {"--tolerated": tolerated})
    name = cast("AlgorithmName", one_of("--algorithm", algorithm, tuple(ALGORITHMS)))
    thetas = KNOBS[name].thetas
    communication = Communication(algorithm=name, theta=Decentralized(algorithm=name, theta=theta).begin)
    moves = steering(controller, thetas, Objective().tolerated if tolerated is None else tolerated, theta, seed)
    delay_s = latency_s or 0.0
    setting = Setting(
        data=cast("DataName", one_of("--data", data, tuple(DATA))),
        norm=cast("Norm", one_of("--norm", norm, tuple(NORMS))),
        skew=skew,
        partitions=partitions,
        steps=steps,
        travel_every=travel_every,
        seed=seed,
    )
    progress = Console(stderr=True)
    with progress.status(f"{name} trains {partitions} partitions"), ending(progress, ExecutionError):
        found: FederatedRun | GlooRun
        if bytes_per_s is None:
            found = train(setting, communication, moves)
        else:
            most_s = TIMEOUT_S if timeout_s is None else timeout_s
            found = train_processes(
                setting, communication, moves, bytes_per_s=bytes_per_s, latency_s=delay_s, timeout_s=most_s
            )
    told = summary(setting, moves.settled if moves else communication.theta, found)
    if isinstance(found, GlooRun) and not found.departures and bytes_per_s and (moves is None or name != "gaia"):
        with ending(progress, ExecutionError):
            pace = Pace.measured(setting, communication)
        said = predicted(setting, found.run, bytes_per_s, delay_s, pace, moves)
        told["predicted"] = asdict(said)
        told["error_percent"] = 100 * (said.seconds / found.run.seconds - 1)
    if as_json:
        print_json(told)
    else:
        results_console().print(table(told))
        for line in found.lines() if isinstance(found, GlooRun) else ():
            progress.print(line, markup=False, highlight=False, soft_wrap=True)
    if out is not None:  # last: a full disk loses no measurement
        write_json(out, told)


def _check_counts(beside: str, there: bool, given: Mapping[str, float | None]) -> None:
    """Refuse an option that was given (not None) and would change nothing."""
    for option, value in given.items():
        if value is not None and not there:
            raise InputError(option, value, f"left out, or {beside}")


def steering(name: str, thetas: Sequence[float], tolerated: float, theta: float | None, seed: int) -> Controller | None:
    """Return what moves theta along the algorithm's list, from the last one or from `theta`; None for fixed."""
    if one_of("--controller", name, tuple(CONTROLLERS)) == "fixed":
        return None
    if len(thetas) == 1:
        raise InputError("--controller", name, f"fixed with one theta, {thetas[0]:g}: there is no other to move to")
    if theta is not None and theta not in thetas:
        raise InputError("--theta", theta, f"with a controller one of {', '.join(f'{one:g}' for one in thetas)}")
    first = None if theta is None else thetas.index(theta)
    return make(name, thetas, Objective(tolerated=tolerated), seed, first)


def summary(setting: Setting, theta: float, found: FederatedRun | GlooRun) -> dict[str, Any]:
    """Return the JSON of a measurement that ends with `theta`; a run in one process says nothing of the network."""
    run = found.run if isinstance(found, GlooRun) else found
    k = setting.partitions
    bsp = k * (k - 1) * whole_bytes(run.values) * run.steps
    told = {
        "setting": asdict(setting),
        "algorithm": run.algorithm,
        "theta": theta,
        "traffic_bytes": run.traffic_bytes,
        "travel_bytes": run.travel_bytes,
        "bsp_traffic_bytes": bsp,
        "saving_over_bsp": bsp / run.traffic_bytes if run.traffic_bytes else None,
        "accuracy": run.accuracy,
        "partition_accuracy": run.partition_accuracy,
        "accuracy_loss": run.accuracy_loss,
        "sent_bytes": run.sent_bytes,
        "sent_fraction": run.sent_fraction,
        "seconds": run.seconds,
        "compute_s": run.compute_s,
        "thetas": [
            {"step": n + 1, "theta": theta}
            for n, theta in enumerate(run.thetas)
            if n == 0 or theta != run.thetas[n - 1]
        ],
        "travels": [{**asdict(travel), "accuracy_loss": travel.accuracy_loss} for travel in run.travels],
    }
    if isinstance(found, GlooRun):
        told["exchange_s"] = found.exchange_s
        told["waits"] = [asdict(wait) for wait in found.waits]
        told["departures"] = [asdict(one) for one in found.departures]
    return told


def table(told: dict[str, Any]) -> Table:
    """Return a row for every travel: what the models lost, and how well they did in the mean."""
    saving = "" if told["saving_over_bsp"] is None else f", {told['saving_over_bsp']:.1f} times less than BSP"
    caption = (
        f"{told['algorithm']}: {told['traffic_bytes'] / 1e6:.1f} MB{saving}; "
        f"accuracy {tenths(told['accuracy'])} of the mean model; {seconds(told['seconds'])}"
        + (f" ({seconds(told['predicted']['seconds'])} predicted)" if "predicted" in told else "")
    )
    made = Table("step", "theta", "home", "away", "accuracy loss", "accuracy", box=box.SIMPLE, caption=caption)
    for travel in told["travels"]:
        home, away = (sum(travel[name]) / len(travel[name]) for name in ("home", "away"))
        shares = (tenths(share) for share in (home, away, travel["accuracy_loss"], travel["accuracy"]))
        made.add_row(str(travel["step"]), f"{travel['theta']:g}", *shares)
    return made
