"""`trainsim trace`: a layer table of the user's own torch module."""

import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import extract_tb
from typing import Annotated, Any, Literal
from unittest.mock import patch

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from sim.specs.fields import InputError
from sim.specs.files import checked_target, print_json
from sim.specs.table import PHASES, LayerTable, at
from sim.units import si

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def trace_command(
    source: Annotated[str, typer.Argument(metavar="FILE.py:FACTORY", help="Runs this file and calls the function.")],
    *,
    out: Annotated[Path, typer.Option("--out", help="Layer table (JSON) to write.")] = Path("table.json"),
    layers: Annotated[
        list[str] | None, typer.Option("--layers", help="A pipeline layer, or a list of them, by its name (repeat).")
    ] = None,
    dtype: Annotated[
        Literal["bfloat16", "float16", "float32"], typer.Option("--dtype", help="Type of weights and activations.")
    ] = "bfloat16",
    name: Annotated[str | None, typer.Option("--name", help="Name of the table (default: the module's class).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write the layer table of the module that FACTORY() returns as (module, inputs).

    inputs: a tensor, a tuple or a mapping with the batch as first dimension, or a function of the batch size.
    The factory runs on fake tensors: it may build a network of any size. Recurrent layers count as a product and its
    gates for every step, launched one by one. Let the module end in its loss, so that the loss's time and memory count
    too; tell torch's own transformers `is_causal=True` beside a causal mask. A job file takes the table as
    `model: {table: table.json}`.
    """
    checked_target("--out", out)
    begin = time.perf_counter()
    if name is not None and not 1 <= len(name) <= 100:
        raise InputError("--name", name, "text of 1 to 100 characters")
    progress = Console(stderr=True)
    with progress.status("tracing"):
        table = _traced(source, layers, dtype, name)
    table.save(out)
    if as_json:
        print_json(summary(table, out) | {"seconds": time.perf_counter() - begin})
    else:
        console = Console(markup=False, emoji=False)
        console.print(shown(table))
        console.print(f"written: {out}; a job takes it as model: {out}", highlight=False, soft_wrap=True)


def _traced(source: str, layers: list[str] | None, dtype: str, name: str | None) -> LayerTable:
    # Only here: torch takes seconds to load, and every command of `trainsim` may import this module.
    import torch  # noqa: PLC0415
    from torch._subclasses import fake_tensor  # noqa: PLC0415

    from calibration.tracing.trace import trace  # noqa: PLC0415

    logging.getLogger(fake_tensor.__name__).setLevel(logging.CRITICAL)  # it writes a traceback of what is raised too
    with fake_tensor.FakeTensorMode(allow_non_fake_inputs=True), warnings.catch_warnings():
        # Copies of layers, as of nn.TransformerEncoder's: torch blames the user's code.
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
        factory = load_factory(source)
        with _blamed(source, "a function that runs on fake tensors"):
            made = factory()
        if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], torch.nn.Module)):
            raise InputError(source, type(made).__name__, "a function that returns (module, inputs)")
    module, inputs = made
    with _blamed(source, f"a module that runs forward and backward on fake tensors in {dtype}"):
        return trace(module, inputs, layers, getattr(torch, dtype), name)


@contextmanager
def _blamed(source: str, wanted: str) -> Iterator[None]:
    """Turn what the user's code raises, exits too, into one error that names the last line of its file."""
    try:
        yield
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        file = Path(source.rpartition(":")[0]).resolve()
        frames = extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == file]
        place = f"{source} (line {lines[-1]})" if lines else source
        raise InputError(place, f"{type(error).__name__}: {error}", wanted) from error


def load_factory(source: str) -> Callable[[], Any]:
    """Return the function that FILE.py:FACTORY names. Runs the file, which may import its neighbours.

    Raises:
        InputError: no such file, one that fails, or no such function in it.
    """
    name, _, function = source.rpartition(":")
    path = Path(name)
    if path.suffix != ".py" or not path.is_file():
        raise InputError("FILE.py:FACTORY", source, "an existing Python file, a colon, a function in it")
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputError("FILE.py:FACTORY", source, "a Python file that can be imported")
    module = module_from_spec(spec)
    there = [str(path.parent.resolve()), *sys.path]
    # What a user's files compile to is not left beside them.
    with (
        patch.object(sys, "path", there),
        patch.object(sys, "dont_write_bytecode", True),
        _blamed(source, "a file that can be imported"),
    ):
        spec.loader.exec_module(module)
    factory = getattr(module, function, None)
    if not callable(factory):
        known = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise InputError(source, function, "one of " + ", ".join(known) if known else "a function in that file")
    return factory  # type: ignore[no-any-return]


def summary(table: LayerTable, path: Path) -> dict[str, Any]:
    """Return the command's JSON: the file, and the table's totals for one sample."""
    return {
        "path": str(path),
        "name": table.name,
        "dtype": table.dtype,
        "seq": table.seq,
        "batches": list(table.batches),
        "layers": sum(layer.count for layer in table.layers),
        "distinct_layers": len(table.layers),
        "parameters": table.parameters,
        "flop_per_sample": {phase: table.flop(1, phase) for phase in PHASES},
        "saved_bytes_per_sample": table.saved_bytes(1),
    }


def shown(table: LayerTable) -> Table:
    """Return the layers as a table, for one sample."""
    headings = ("layer", "times", "parameters", "FLOP forward", "backward", "saved", "boundary")
    made = Table(*headings, box=box.SIMPLE, padding=(0, 1, 0, 0), title=f"{table.name}, {table.dtype}, one sample")
    for layer in table.layers:
        forward, backward = layer.flop("forward", 1), sum(layer.flop(p, 1) for p in PHASES[1:])
        memory = (si(at(size, 1), "B") for size in (layer.saved_bytes, layer.boundary_bytes))
        counts = (si(x, "") for x in (layer.parameters, forward, backward))
        made.add_row(layer.name, str(layer.count), *counts, *memory)
    return made
