"""How fast jobs are on devices that can be rented, from files."""

from collections.abc import Mapping
from pathlib import Path

from sim.cluster.jobs import Kind
from sim.cluster.throughput_files import read_throughputs
from sim.cluster.throughputs import Throughputs
from sim.market.tables import Table, cells, numbers_of, read_table
from sim.specs.fields import InputError

Rates = Mapping[Kind, Mapping[str, float]]
"""Steps/s by type of job and its number of devices, and by device (in lower case)."""


COLUMNS = ("gpu", "model", "steps_per_s")
MOST_STEPS_PER_S = 1e12


def read_rates(path: str | Path) -> Rates:
    """Return the steps/s of a table with the columns gpu, model, steps_per_s, or of any file that
    `sim.cluster.read_throughputs` reads.

    Raises:
        InputError: with the path of the first value that is wrong, the others in `also`.
    """
    file = Path(path)
    if file.suffix == ".csv" and (table := read_table(file)).has(COLUMNS):
        return _tabled(table)
    return rates_from(read_throughputs(file))


def rates_from(known: Throughputs) -> Rates:
    """Return the steps/s of jobs alone."""
    return {
        kind: {name.lower(): float(rate) for name, rate in zip(known.types, rates, strict=True)}
        for kind, rates in known.alone.items()
    }


def _tabled(table: Table) -> Rates:
    found: dict[Kind, dict[str, float]] = {}
    for line, row in cells(table, COLUMNS):
        for name in (name for name in ("gpu", "model") if not row[name]):
            table.wrong(line, name, "", "a name")
        rate = float(numbers_of([row["steps_per_s"]])[0])
        if not 0 <= rate <= MOST_STEPS_PER_S:
            table.wrong(line, "steps_per_s", row["steps_per_s"], f"a number from 0 to {MOST_STEPS_PER_S:g} steps/s")
        held, device = found.setdefault((row["model"], 1), {}), row["gpu"].lower()
        if device in held:
            table.wrong(line, "gpu", row["gpu"], f"each device once by model, as {row['model']} has it above")
        held[device] = rate
    table.refuse()
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
