"""How fast jobs are on devices that can be rented, from files."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from sim.cluster.jobs import Kind
from sim.cluster.throughput_files import read_throughputs
from sim.cluster.throughputs import Throughputs
from sim.specs.csv_rows import read_cells
from sim.specs.fields import MAX_PROBLEMS, InputError, check, real, spec

Rates = Mapping[Kind, Mapping[str, float]]
"""Steps/s by type of job and its number of devices, and by device (in lower case)."""


@spec
class _Line:
    """A line of the study's table."""

    gpu: str
    model: str
    steps_per_s: Annotated[float, real(0, 1e12, "steps/s")]
    source: str = ""


@dataclass(frozen=True)
class _Short:
    gpu: str
    model: str
    steps_per_s: float


def read_rates(path: str | Path) -> Rates:
    """Return the steps/s of a table with the columns gpu, model, steps_per_s (and source), or of any file that
    `sim.cluster.read_throughputs` reads.

    Raises:
        InputError: with the path of the first value that is wrong, the others in `also`.
    """
    file = Path(path)
    for kind in (_Line, _Short) if file.suffix == ".csv" else ():
        try:
            lines = read_cells(file, kind, "a table of throughputs")
        except InputError as error:
            if not error.path.endswith(":1"):
                raise
            continue  # another header: another table
        return _tabled(file, lines)
    return rates_from(read_throughputs(file))


def rates_from(known: Throughputs) -> Rates:
    """Return the steps/s of jobs alone."""
    return {
        kind: {name.lower(): float(rate) for name, rate in zip(known.types, rates, strict=True)}
        for kind, rates in known.alone.items()
    }


def _tabled(file: Path, lines: list[list[str]]) -> Rates:
    found: dict[Kind, dict[str, float]] = {}
    problems: list[InputError] = []
    for n, cells in enumerate(lines, 2):
        if not cells or len(problems) >= MAX_PROBLEMS:
            continue
        try:
            given = {"gpu": cells[0], "model": cells[1], "steps_per_s": float(cells[2])}
        except (IndexError, ValueError):
            problems.append(InputError(f"{file}:{n}", ",".join(cells)[:80], "gpu,model,steps_per_s"))
            continue
        line, wrong = check(_Line, given, f"{file}:{n}")
        problems += wrong
        if line:
            found.setdefault((line.model, 1), {})[line.gpu.lower()] = line.steps_per_s
    if not found and not problems:
        problems = [InputError(str(file), "nothing", "a line or more")]
    if problems:
        raise InputError(problems[0].path, problems[0].value, problems[0].allowed, problems[1:])
    return found


def rates_of(rates: Rates, name: str, gpus: int) -> Mapping[str, float]:
    """Return the steps/s by device of one job; raises InputError where nothing says them."""
    if (name, gpus) not in rates:
        names = sorted({known for known, _ in rates})
        if name in names:
            told = ", ".join(str(number) for known, number in sorted(rates) if known == name)
            raise InputError("gpus", gpus, f"a number of devices with throughputs of {name}: {told}")
        raise InputError("model", name, f"one of {', '.join(names)}")
    return rates[name, gpus]
