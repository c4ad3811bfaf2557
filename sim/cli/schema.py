"""`trainsim schema`: JSON Schema of every file, for editors and other programs."""

import json
from pathlib import Path
from typing import Annotated

import typer

from sim.cli.kinds import KINDS
from sim.cli.output import checked_folder, console, print_json, written
from sim.specs import InputError
from sim.specs.files import write_atomically
from sim.specs.schema import file_schema


def schema_command(
    kind: Annotated[str | None, typer.Argument(help="One of " + ", ".join(KINDS) + "; all if left out.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write KIND.schema.json into.")] = None,
) -> None:
    """Print the JSON Schema (draft 2020-12) of one kind of file, or of all by name."""
    if kind is not None and kind not in KINDS:
        raise InputError("kind", kind, "one of " + ", ".join(KINDS))
    schemas = {name: file_schema(KINDS[name]) for name in ([kind] if kind else KINDS)}
    if out is None:
        print_json(schemas[kind] if kind else schemas)
        return
    checked_folder("--out", out)
    with written("--out", out):
        out.mkdir(parents=True, exist_ok=True)
        for name, schema in schemas.items():
            write_atomically(out / f"{name}.schema.json", json.dumps(schema, indent=1) + "\n")
    console.print(f"{len(schemas)} schemas in {out}", highlight=False, markup=False, soft_wrap=True)
