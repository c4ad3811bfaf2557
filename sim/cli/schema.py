"""`trainsim schema`: JSON Schema of every file, for editors and other programs."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from sim.cli.kinds import KINDS
from sim.cli.output import console, written
from sim.plans.plan_schema import plan_schema
from sim.specs import InputError
from sim.specs.files import checked_folder, json_text, none_left_empty, print_json, write_all
from sim.specs.schema import Schema, file_schema

SCHEMAS: Mapping[str, Callable[[], Schema]] = {
    **{name: partial(file_schema, cls) for name, cls in KINDS.items()}, "plan-file": plan_schema,
}  # fmt: skip


def schema_command(
    kind: Annotated[str | None, typer.Argument(help="One of " + ", ".join(SCHEMAS) + "; all if left out.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write KIND.schema.json into.")] = None,
) -> None:
    """Print the JSON Schema (draft 2020-12) of one kind of file, or of all by name."""
    if kind is not None and kind not in SCHEMAS:
        raise InputError("kind", kind, "one of " + ", ".join(SCHEMAS))
    schemas = {name: SCHEMAS[name]() for name in ([kind] if kind else SCHEMAS)}
    if out is None:
        print_json(schemas[kind] if kind else schemas)
        return
    checked_folder("--out", out)
    with written("--out", out), none_left_empty(out):
        out.mkdir(parents=True, exist_ok=True)
        write_all({out / f"{name}.schema.json": json_text(schema) for name, schema in schemas.items()})
    console.print(f"{len(schemas)} schemas in {out}", highlight=False, soft_wrap=True)
