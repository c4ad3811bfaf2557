"""`trainsim list`: what can be named in a job file or at the shell."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from sim.catalog import data, folder, kinds, names
from sim.cli.output import console
from sim.costs.run_level import run_level, shipped
from sim.schedules import SCHEDULES
from sim.specs import InputError
from sim.specs.catalog import dataset, device, models, precisions, scaling_law, storage
from sim.specs.device import Rate
from sim.specs.files import print_json
from sim.specs.schema import sections
from sim.specs.tariffs import instances, tariffs
from sim.units import counted, gigabytes, grouped, many, si


def _engines() -> Mapping[str, object]:
    from sim.engine.step import ENGINES  # noqa: PLC0415 - takes a second to load, as the next two; most lists need none

    return ENGINES


def _targets() -> Mapping[str, object]:
    from sim.plans import EXPORTERS  # noqa: PLC0415

    return {name: exporter.write for name, exporter in EXPORTERS.items()}


def _files() -> Mapping[str, object]:
    from sim.cli.kinds import KINDS  # noqa: PLC0415

    plans = "A job with its plan's stages, order, memory and prediction, as `tune --out` writes it."
    return {**KINDS, "plan-file": plans}


REGISTRIES: dict[str, Callable[[], Mapping[str, object]]] = {
    "schedules": lambda: SCHEDULES,
    "engines": _engines,
    "targets": _targets,
    "files": _files,
}
Entry = dict[str, Any]


def list_command(
    kind: Annotated[str | None, typer.Argument(help="models, devices, plan.schedule, ...; all if left out.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List what the catalog and the registries hold, one line each."""
    known = [*kinds(), *REGISTRIES, *choices()]
    if kind is not None and kind not in known:
        raise InputError("kind", kind, "one of " + ", ".join(known))
    found = {name: entries(name) for name in ([kind] if kind else known)}
    if as_json:
        print_json(found)
        return
    for name, held in found.items():
        width = max(len(entry["name"]) for entry in held)
        lines = [f"  {entry['name']:<{width}}  {entry['description']}".rstrip() for entry in held]
        console.print("\n".join([name, *lines]), highlight=False, soft_wrap=True)


def entries(kind: str) -> list[Entry]:
    """Return name, description and the facts behind it of everything of one kind."""
    if kind in REGISTRIES:
        return [{"name": name, "description": _doc(held)} for name, held in REGISTRIES[kind]().items()]
    if kind in choices():
        default, values = choices()[kind]
        return [{"name": str(v), "description": "default" if v == default else ""} for v in values]
    return [{"name": name, **(FACTS[kind](name) if kind in FACTS else _plain(kind, name))} for name in names(kind)]


def choices() -> dict[str, tuple[object, Iterable[object]]]:
    """Return the default and the values of every field of a job that is one of a few words: plan.recompute, ..."""
    found: dict[str, tuple[object, Iterable[object]]] = {}
    for section, cls in sections().items():
        hints = get_type_hints(cls)
        for field in fields(cls):
            if field.init and get_origin(hints[field.name]) is Literal:
                found[f"{section}.{field.name}"] = field.default, get_args(hints[field.name])
    return found


def _doc(held: object) -> str:
    text = held if isinstance(held, str) else held.__doc__ or type(held).__doc__ or ""
    return text.strip().split("\n")[0].split("; raises ")[0]


def _model(name: str) -> Entry:
    m = models[name]
    size = f"{counted(m.parameters)} parameters"
    text = f"{size}, {many(m.layers, 'layer')}, hidden {m.hidden}, {many(m.heads, 'head')}, sequence {m.seq}"
    facts = {key: getattr(m, key) for key in ("parameters", "layers", "hidden", "heads", "seq")}
    return {"description": text, **facts}


def _device(name: str) -> Entry:
    d = device(name)
    price = d.usd_per_gpu_hour.value if d.usd_per_gpu_hour else None
    peak, memory = d.peak_bf16_flop_per_s.value, d.memory_bytes.value
    cost = "no price" if price is None else f"{price:g} USD/h"
    text = f"{d.title}: {si(peak, 'FLOP/s')} (16 bit), {gigabytes(memory)}, {cost}"
    return {"description": text, "peak_bf16_flop_per_s": peak, "memory_bytes": memory, "usd_per_gpu_hour": price}


def _profile(name: str) -> Entry:
    # As data: a whole profile takes ten times as long to read, and nothing of it is used here.
    raw = data(f"profiles/{name}/profile.json")
    facts = {"estimate": bool(raw.get("estimate")), "method": raw["method"], "date": raw["date"]}
    text = f"{'estimate' if facts['estimate'] else 'measured'}, {facts['date']}: {raw['method'].split(' (base: ')[0]}"
    return {"description": text, **facts}


def _precision(name: str) -> Entry:
    p = precisions[name]
    gemm = {"forward": p.gemm.forward, "dgrad": p.gemm.dgrad, "wgrad": p.gemm.wgrad}
    units = " and ".join(UNITS[rate] for rate in dict.fromkeys(gemm.values()))
    text = f"{p.title}: products on {units}, {p.operand_bytes:g} bytes an element with scales"
    return {"description": text, "gemm": gemm, "operand_bytes": p.operand_bytes}


UNITS: dict[Rate, str] = {
    "fp32": "fp32 units", "bf16": "16-bit tensor units", "fp8": "8-bit tensor units", "fp4": "4-bit tensor units"
}  # fmt: skip


def _scaling(name: str) -> Entry:
    law = scaling_law(name)
    e, a, b, alpha, beta = (getattr(law, key).value for key in ("e", "a", "b", "alpha", "beta"))
    return {"description": f"{law.title}: loss = {e:g} + {a:g} / N^{alpha:g} + {b:g} / D^{beta:g}; {law.range}"}


def _run_level(name: str) -> Entry:
    """Describe the shipped sets of run-level parameters by the one that is fitted to all sources."""
    used, sets = run_level(), list(shipped())
    parameters = asdict(used.parameters)
    text = f"{len(parameters)} parameters of whole runs, sets {', '.join(sets)}; all: {used.source}"
    return {"description": text, "sets": sets, "parameters": parameters}


def _storage(name: str) -> Entry:
    held, whose = storage(name), {"node": "of a node", "cluster": "of all nodes together"}
    rates = f"reads {si(held.read_bytes_per_s, 'B/s')}, writes {si(held.write_bytes_per_s, 'B/s')} {whose[held.shared]}"
    return {"description": f"{_title('storage', name)}: {rates}", **asdict(held)}


def _dataset(name: str) -> Entry:
    held = dataset(name)
    text = f"{grouped(held.samples)} files, {si(held.size_bytes, 'B')}, {si(held.sample_bytes, 'B')} a file"
    return {"description": f"{_title('datasets', name)}: {text}", **asdict(held), "size_bytes": held.size_bytes}


def _tariff(name: str) -> Entry:
    held = tariffs()[name]
    text = f"{held.usd_per_gb_between_regions:g} USD/GB between regions, {held.usd_per_gb_out:g} USD/GB out"
    return {"description": f"{_title('tariffs', name)}: {text}", **asdict(held)}


def _instances(name: str) -> Entry:
    held = instances(name)
    devices = ", ".join(sorted({instance.device for instance in held.values()}))
    text = f"{_title('instances', name)}: {many(len(held), 'type')} of instances with {devices}"
    return {"description": text, "instances": {type_: asdict(instance) for type_, instance in held.items()}}


def _title(kind: str, name: str) -> str:
    return str(data(f"{kind}/{name}.json")["title"])


FACTS: dict[str, Callable[[str], Entry]] = {
    "models": _model,
    "devices": _device,
    "profiles": _profile,
    "precisions": _precision,
    "scaling": _scaling,
    "run-level": _run_level,
    "storage": _storage,
    "datasets": _dataset,
    "tariffs": _tariff,
    "instances": _instances,
}
"""Kinds of catalog entry with a line of their own; any other is described by what its file states."""


def _plain(kind: str, name: str) -> Entry:
    """Return an entry by the plain values at the top of its file, its title or description first."""
    file = f"{name}.json"
    raw = data(f"{kind}/{file}") if (folder(kind) / file).is_file() else {}
    facts = {k: v for k, v in raw.items() if isinstance(v, str | int | float)} if isinstance(raw, dict) else {}
    title = facts.get("description") or facts.get("title")
    text = title or ", ".join(f"{k} {v}" for k, v in facts.items() if k not in ("name", "source"))
    return {"description": str(text).split("\n")[0]}
