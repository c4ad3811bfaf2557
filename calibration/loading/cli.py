"""`trainsim loading measure`: a real input pipeline on this machine, measured and predicted."""

from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from calibration.loading.bench import SCALES, Setting
from calibration.loading.generated import Kind
from calibration.loading.measure import MOST_LOAD, SECONDS, Measured, measure
from calibration.measuring import checked_seed, one_of, results_console
from sim.report.numbers import change
from sim.specs.fields import InputError
from sim.specs.files import checked_target, print_json, write_json
from sim.specs.loading import Topology
from sim.units import digits3, many, percent, si

ROWS: Mapping[str, str] = {
    "samples_per_s": "samples/s",
    "compute_samples_per_s": "trainer alone, samples/s",
    "prep_samples_per_s": "preparation alone, samples/s",
    "fetch_stall_fraction": "waits for storage",
    "prep_stall_fraction": "waits for preparation",
    "bottleneck": "bottleneck",
}


def measure_command(
    dataset: Annotated[str, typer.Option(help="Generated files: images (JPEG) or audio (FLAC).")] = "images",
    files: Annotated[int, typer.Option(help="How many files, from 16.")] = 256,
    workers: Annotated[int, typer.Option(help="Worker processes that fetch and prepare.")] = 1,
    topology: Annotated[str, typer.Option(help="serial (torch's) or staged (threads fetch ahead).")] = "serial",
    cached: Annotated[float, typer.Option(help="Share of the files that a cache keeps in memory, 0 to 1.")] = 0.5,
    storage_latency_s: Annotated[float, typer.Option(help="Seconds until a file comes that is not cached.")] = 0.004,
    storage_bytes_per_s: Annotated[float, typer.Option(help="Bandwidth of storage, in bytes a second.")] = 50e6,
    cores: Annotated[int, typer.Option(help="Cores of this machine that all of it may use.")] = 1,
    trainer: Annotated[
        str, typer.Option(help="sleep:SECONDS a batch (a device elsewhere) or compute (needs a core here).")
    ] = "sleep:0.02",
    batch: Annotated[int, typer.Option(help="Samples of a batch.")] = 16,
    seconds: Annotated[float, typer.Option(help="Seconds that each of the four phases is timed, 0.1 to 60.")] = SECONDS,
    seed: Annotated[int, typer.Option(help="Seed of the files, their order and their augmentation.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write the JSON object to this file too.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure a real input pipeline on generated files, by differential phases, beside its prediction."""
    checked_target("--out", out)
    kind = cast("Kind", one_of("--dataset", dataset, tuple(SCALES)))
    if not 0.1 <= seconds <= 60:
        raise InputError("--seconds", seconds, "a number from 0.1 to 60")
    setting = Setting(
        kind=kind,
        files=files,
        scale=SCALES[kind],
        batch=batch,
        workers=workers,
        topology=cast("Topology", one_of("--topology", topology, ("serial", "staged"))),
        cached=cached,
        storage_latency_s=storage_latency_s,
        storage_bytes_per_s=storage_bytes_per_s,
        cores=cores,
        seed=checked_seed(seed),
        **trained(trainer),
    )
    progress = Console(stderr=True)
    with progress.status(f"generating {many(files, 'file')}") as status:
        found = measure(setting, seconds, status.update)
    if as_json:
        print_json(found.data())
    else:
        results_console().print(table(found))
    if found.busy:
        progress.print(
            f"the machine is busy: others use {percent(found.others_share)} of it, more than {percent(MOST_LOAD)}"
        )
    if out is not None:  # last: a full disk loses no measurement
        write_json(out, found.data())


def trained(text: str) -> dict[str, Any]:
    """Return the trainer that an option names: `sleep:SECONDS` or `compute`.

    Raises:
        InputError: it is none of them.
    """
    name, _, seconds = text.partition(":")
    if text == "compute":
        return {"trainer": "compute"}
    try:
        held = float(seconds)
    except ValueError:
        held = -1.0
    if name != "sleep" or not isfinite(held) or not 0 <= held <= 60:
        raise InputError("--trainer", text, "compute, or sleep: and seconds from 0 to 60, as sleep:0.02")
    return {"trainer": "sleep", "trainer_s": held}


def table(found: Measured) -> Table:
    """Return what was measured beside what was predicted, and what is advised."""
    data = found.data()
    caption = (
        f"{found.predicted.why} Recommended: {si(found.predicted.recommended_cache_bytes, 'B')} of cache, "
        f"{many(found.predicted.recommended_cores, 'core')}. Predicted {change(found.error)} off; "
        f"others used {percent(found.others_share)} of the machine."
    )
    made = Table("", "measured", "predicted", box=box.SIMPLE, caption=caption, caption_justify="left")
    for name, told in ROWS.items():
        made.add_row(told, *(_text(name, data[side][name]) for side in ("measured", "predicted")))
    return made


def _text(name: str, value: float | str) -> str:
    if isinstance(value, str):
        return value
    return percent(value) if name.endswith("fraction") else digits3(value)
