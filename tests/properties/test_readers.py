"""What reads a file that users give is fuzzed: every function that opens or parses one is run by the tables of readers
(`readers`, `test_fuzz`) or stands in `OTHERS` with the reason.
"""

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from tests.oracle import ROOT
from tests.properties.readers import BINARY, READERS, Binary, Text
from tests.properties.test_fuzz import SEEDS, beside, load

READS = frozenset((
    "read_text", "read_bytes", "open", "load_mapping", "mapping_of", "text_of", "loads", "connect", "ParquetFile",
    "memmap", "fromfile", "ZipFile", "csv_lines", "DictReader", "safe_load", "genfromtxt", "loadtxt",
))  # fmt: skip
QUALIFIED = frozenset(("json.load", "yaml.load", "np.load", "torch.load", "csv.reader"))
"""Calls that open or parse."""
OTHERS: Mapping[str, tuple[str, ...]] = {
    "what other processes of the same run write or send": (
        "calibration/execute/processes.py: run_processes",
        "calibration/execute/processes.py: last_words.<locals>.said",
        "calibration/execute/worker.py: main",
        "calibration/federated/gloo.py: _Watch.until_the_end",
        "calibration/federated/gloo.py: _result",
        "calibration/federated/gloo_transport.py: GlooTransport._regroup",
        "calibration/federated/worker.py: main",
        "calibration/kernels/snapshot.py: _serialise.<locals>.read",
        "calibration/neighbours.py: _answer",
        "calibration/neighbours.py: main",
        "calibration/loading/cells.py: Cells.locked",
        "calibration/loading/coordinated.py: minibatches",
        "calibration/loading/minio.py: SharedCache.read",
        "calibration/rank.py: main",
        "calibration/workloads/parallel.py: main",
        "calibration/taskmap/emit_cuda.py: ptx",
    ),
    "what is opened to see whether it may be read, and not read": (
        "calibration/checkpointing/checkpointer.py: latest_valid",
        "calibration/cli.py: _check_base",
    ),
    "what this process has written, or was shipped with": (
        "calibration/from_trace.py: _shape",
        "calibration/own_site.py: _write",
        "calibration/gpu_session.py: contention",
        "calibration/gpu_session.py: load_result",
        "calibration/gpu_session.py: pack",
        "sim/catalog/__init__.py: data",
        "sim/costs/profile.py: _shipped",
        "sim/engine/compiled.py: _keeper.<locals>.Whole._load_data",
        "sim/report/html.py: _resource",
        "sim/report/markup.py: figure",
        "sim/sweep/digest.py: _add",
        "sim/sweep/digest.py: code_digest",
        "sim/sweep/grid.py: Grid.extends",
    ),
    "of the operating system": (
        "calibration/host.py: cache_bytes",
        "calibration/host.py: first_processor",
    ),
    "bytes that nothing is read out of here: they are hashed, copied or timed, or are data to train on": (
        "calibration/checkpointing/store.py: Store.crc32",
        "calibration/checkpointing/store.py: forget",
        "calibration/execute/cli.py: lay_over",
        "calibration/loading/decoding.py: prepared_image",
        "calibration/loading/sources.py: Files.read",
        "calibration/own_site.py: _bytes",
        "calibration/storage.py: _read",
        "sim/sweep/sections.py: contents",
    ),
    "no file is opened: a figure tells the browser of itself": (
        "sim/widgets/figure.py: Figure.__init__",
        "sim/widgets/figure.py: Figure._renew",
        "sim/widgets/figure.py: Figure.open",
    ),
    "tensors of a checkpoint, whose sum of bytes was compared before (tests/calibration/checkpointing)": (
        "calibration/checkpointing/async_save.py: AsyncSave.load",
        "calibration/checkpointing/engine.py: TorchSave.load",
    ),
    "passes what it reads to readers that are run, or to `read` of a spec": (
        "calibration/measured.py: _links",
        "calibration/measured.py: build_profile",
        "sim/cli/decentralized.py: simulate_command",
        "sim/cli/importing.py: import_command",
        "sim/cli/loading.py: _fed",
        "sim/validation/gavel_study.py: main",
        "calibration/execute/learn.py: learn",
    ),
}


def sites() -> Iterator[str]:
    """Yield `file: function` of every function that opens a file to read it, or parses text."""
    for folder in ("sim", "calibration"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for name in _reading(ast.parse(file.read_text("utf-8"))):
                yield f"{file.relative_to(ROOT).as_posix()}: {name}"


def _reading(node: ast.AST, name: str = "", within: str = "") -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            inside = ".<locals>." if isinstance(child, ast.FunctionDef) else "."
            yield from _reading(child, f"{within}{child.name}", f"{within}{child.name}{inside}")
        else:
            if isinstance(child, ast.Call) and _reads(child):
                yield name or "<module>"
            yield from _reading(child, name, within)


def _reads(call: ast.Call) -> bool:
    called = ast.unparse(call.func)
    if called in QUALIFIED or called == "os.open":
        return called in QUALIFIED
    name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
    modes = [str(a.value) for a in (*call.args, *(k.value for k in call.keywords)) if isinstance(a, ast.Constant)]
    return name in READS and not (name in ("open", "ZipFile") and any({*mode} & {*"wax"} for mode in modes[:1]))


def ran(folder: Path) -> set[str]:
    """Return `file: function` of all that runs while every kind of file is read, undamaged."""
    codes: set[CodeType] = set()

    def hear(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            codes.add(frame.f_code)

    def heard(read: Any, path: Path) -> None:
        sys.setprofile(hear)
        try:
            read(path)
        finally:
            sys.setprofile(None)

    beside(folder)
    for kind, name, text in SEEDS:
        (folder / name).write_text(text, "utf-8")
        heard(lambda path, kind=kind: load(kind, path), folder / name)
    for number, (name, make, read) in enumerate((*map(_written, READERS.values()), *BINARY.values())):
        place = folder / str(number)
        place.mkdir()
        make(place / name)
        heard(read, place / name)
    files = {code: Path(code.co_filename) for code in codes}
    return {
        f"{file.relative_to(ROOT).as_posix()}: {code.co_qualname}"
        for code, file in files.items()
        if file.is_relative_to(ROOT)
    }


def _written(reader: Text) -> Binary:
    name, made, read = reader
    return name, lambda path: path.write_text(made(), "utf-8"), read


@pytest.mark.slow
def test_every_reader_is_given_damaged_files(tmp_path):
    found, run = set(sites()), ran(tmp_path)
    others = {name for names in OTHERS.values() for name in names}
    assert len(found & run) > 60
    assert sorted(found - run - others) == []
    assert sorted(others - found) == []
