"""`trainsim device`: a device file of the user's own, to fill in."""

import json
import re
from dataclasses import fields
from pathlib import Path
from textwrap import wrap
from typing import Annotated

import typer

from sim.catalog import meant, names
from sim.cli.output import checked_new_file, progress_console, written
from sim.specs import Device, InputError
from sim.specs.catalog import device
from sim.specs.device import Sourced
from sim.specs.fields import meaning
from sim.specs.files import print_json, write_atomically

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
HEAD = """\
# Device file of trainsim: one accelerator and its usual server. All values are examples, those of {like}:
# replace them by your device's, then name this file in a job:
#   cluster: {{device: {file}, nodes: 2}}
# Without cluster.profile the kernel times are those of `like`, where sms, boost_hz, peak_bf16_flop_per_s,
# memory_bytes_per_s, l2_bytes and power_w are the same; else moved by the ratios of 16-bit peak, memory bandwidth and
# SMs: an estimate with a wide interval. A number may also state its source: {{value: 700, source: datasheet}}.
"""

app = typer.Typer(
    help="Write a device file of your own to fill in.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _group() -> None:
    """Write a device file of your own to fill in."""


@app.command("new")
def new_command(
    name: Annotated[str, typer.Argument(help="Name of the device: letters, digits and . _ -")],
    like: Annotated[str, typer.Option(help="Catalog device whose values and profile are the start.")] = "h100-sxm-80gb",
    out: Annotated[Path | None, typer.Option(help="File to write (default: NAME.yaml).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write a commented device file to fill in; a job names it as cluster.device."""
    if not NAME.fullmatch(name) or name in names("devices"):
        raise InputError("name", name, "1 to 64 letters, digits and . _ -, and no catalog device's name")
    like = meant("devices", like)
    if like not in names("devices"):
        raise InputError("--like", like, "one of " + ", ".join(names("devices")))
    target = out or Path(f"{name}.yaml")
    if target.suffix not in (".yaml", ".yml"):
        raise InputError("--out", str(target), "a file name that ends in .yaml or .yml")
    checked_new_file(target)
    with written("--out", target):
        write_atomically(target, device_text(name, device(like), target.name))
    if as_json:
        print_json({"path": str(target), "like": like})
    else:
        typer.echo(target)
        progress_console.print(f"fill it in, then use it: cluster: {{device: {target}}}", soft_wrap=True)


def device_text(name: str, like: Device, file: str) -> str:
    """Return the YAML text of a device file `file` for the device `name` with the values of `like` as examples."""
    stated = {"name": name, "title": name, "like": like.name, "price_date": None}
    if like.domain_gpus == like.gpus_per_node:
        stated["domain_gpus"] = None  # it follows gpus_per_node when that is edited
    parts = [HEAD.format(like=like.name, file=file)]
    for field in fields(Device):
        value = stated.get(field.name, getattr(like, field.name))
        lines = wrap(meaning(Device, field.name), 110)
        if isinstance(value, Sourced):
            lines += wrap(f"{like.name}: {value.source}", 110)
            value = value.value
        comment = "\n".join(f"# {line}" for line in lines)
        parts.append(f"{comment}\n{f'{field.name}: {_yaml(value)}' if value is not None else f'# {field.name}:'}\n")
    return "\n".join(parts)


def _yaml(value: float | str) -> str:
    """Return a number in thousands, millions, ... where that is short, text in quotes, true and false as they are."""
    if isinstance(value, str | bool):
        return json.dumps(value)  # quoted: a name like 4090 is text
    short = (f"{value / 10**power:.6g}e{power}" for power in (12, 9, 6) if value >= 10**power)
    exact = next((text for text in short if float(text) == value), None)
    return exact or (str(int(value)) if float(value).is_integer() else repr(value))
