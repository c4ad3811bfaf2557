"""Readers of published measurements: a CSV file is recognised by its header and becomes samples.

Samples keep the device name of their file; `calibration.published.profiles` says which names speak for which device of
the catalog. Inputs have the names and units of `sim.costs.kernels.FORMS` (bytes, FLOP), times are in seconds.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from calibration.contention import Together
from calibration.published import op_timings
from calibration.published.public import AllReduce, Collector, Format, Public, Row, number
from sim.costs.layers.attention import FLASH_BACKWARD_FLOP
from sim.specs.csv_rows import csv_lines
from sim.specs.fields import InputError
from sim.specs.files import text_of

MAX_BYTES = 64 * 2**20
GIGA = 1e9
TERA = 1e12

DIRECTION_OF_LAYOUT = {"TN": "forward", "NN": "dgrad", "NT": "wgrad"}
"""k is the reduced dimension in each: forward (tokens, out, in), dgrad (tokens, in, out), wgrad (out, in,
tokens), so the three GEMMs of one layer hold the same three numbers."""

FP32_TRANSFERS = {"add": 3, "mul": 3, "relu": 2, "gelu": 2, "tanh": 2, "ln": 2, "softmax": 2}
"""Tensors read and written once by a vector kernel."""

FAMILY_OF_VECTOR = {"ln": "norm", "softmax": "softmax"}


def _add_efficiency(public: Public, rows: Sequence[Row]) -> None:
    """bf16 GEMM and attention of SimuMax: achieved TFLOP/s. Grouped products are not used (keys repeat)."""
    found = Collector()
    for row in rows:
        rate = number(row, "achieved_tflops") * TERA if row["op"] != "group_matmul" else 0.0
        if row["op"] == "matmul":
            x = {
                "m": number(row, "m"),
                "n": number(row, "n"),
                "k": number(row, "k"),
                "batch": number(row, "b"),
            }
            family = "x".join(f"{v:g}" for v in sorted((x["m"], x["n"], x["k"])))
            direction = _one_of(row, "layout", DIRECTION_OF_LAYOUT)
            seconds = 2 * x["batch"] * x["m"] * x["n"] * x["k"] / rate
            found.add((row["device"], "gemm", direction), x, seconds, family, row["source"])
        elif row["op"] in ("sdp_fwd", "sdp_bwd") and row["qk_dim"] == row["v_dim"]:
            # Other head dimensions (192 with 128 in latent attention) run at rates of their own.
            heads, seq = number(row, "heads"), number(row, "seq_len")
            batch = number(row, "b") if row["b"] else 1.0
            full = 2 * batch * heads * seq**2 * (number(row, "qk_dim") + number(row, "v_dim"))
            backward = row["op"] == "sdp_bwd"
            full *= FLASH_BACKWARD_FLOP if backward else 1.0
            # The file counts full attention although it is causal: half of that is done in the time.
            x = {"flop": full / 2, "seq": seq, "rows": batch * heads * seq}
            family = f"{heads:g} heads, {seq:g}"
            key = (row["device"], "attention", "backward" if backward else "forward")
            found.add(key, x, full / rate, family, row["source"])
    found.into(public)


def _add_vector(public: Public, rows: Sequence[Row]) -> None:
    """fp32 vector kernels of NeuSight: memory bound, so their bytes/s hold for every data type."""
    found = Collector()
    for row in rows:
        transfers = int(_one_of(row, "op", {k: str(v) for k, v in FP32_TRANSFERS.items()}))
        height, width = number(row, "rows"), number(row, "cols")
        x = {"bytes": 4 * transfers * height * width, "columns": width}
        key = (row["device"], FAMILY_OF_VECTOR.get(row["op"], "elementwise"), "any")
        found.add(key, x, number(row, "latency_ms") / 1e3, f"{height:g}x{width:g}", row["source"])
    found.into(public)


def _add_attention(public: Public, rows: Sequence[Row]) -> None:
    """H100 attention: causal FlashAttention-2 with head dimension 128, as most models have it.

    The file has forward, and forward + backward together: backward is the difference, where both are there.
    """
    chosen = [r for r in rows if (r["impl"], r["causal"], r["head_dim"]) == ("FlashAttention-2", "1", "128")]
    forward = {number(r, "seqlen"): r for r in chosen if r["direction"] == "fwd"}
    both = {number(r, "seqlen"): r for r in chosen if r["direction"] == "fwd+bwd"}
    # Forward rate against length is smooth, so a length without forward row is interpolated (log length).
    known = [np.log(seq) for seq in sorted(forward)]
    rates = [number(row, "tflops") for _, row in sorted(forward.items())]
    if not forward:
        return
    found = Collector()
    for _, row in sorted(forward.items()):
        x, flop = _attention_inputs(row)
        seconds = flop / (number(row, "tflops") * TERA)
        found.add((row["device"], "attention", "forward"), {"flop": flop, **x}, seconds, row["seqlen"], row["source"])
    for _, row in sorted(both.items()):
        x, flop = _attention_inputs(row)
        alone = flop / (float(np.interp(np.log(x["seq"]), known, rates)) * TERA)
        seconds = flop * (1 + FLASH_BACKWARD_FLOP) / (number(row, "tflops") * TERA) - alone
        inputs = {"flop": FLASH_BACKWARD_FLOP * flop, **x}
        found.add((row["device"], "attention", "backward"), inputs, seconds, row["seqlen"], row["source"])
    found.into(public)


def _attention_inputs(row: Row) -> tuple[dict[str, float], float]:
    """Return (seq, rows) and the causal forward FLOP: 4*b*h*s^2*d / 2."""
    seq, batch, hidden = number(row, "seqlen"), number(row, "batch"), number(row, "hidden")
    return {"seq": seq, "rows": batch * hidden / number(row, "head_dim") * seq}, 2 * batch * hidden * seq**2


def _add_peaks(public: Public, rows: Sequence[Row]) -> None:
    """Highest measured dense matmul rate; fp8 rows are those whose theory column is the fp8 peak."""
    for row in rows:
        # bf16 rows come first for a device that has both; fp8 is the faster second.
        public.peaks.setdefault(row["accelerator"], number(row, "mamf_tflops") * TERA)
        if "H200 is the same" in row["note"]:
            public.peaks["NVIDIA H200 SXM"] = number(row, "mamf_tflops") * TERA


def _add_reduce_nodes(public: Public, rows: Sequence[Row]) -> None:
    by_device: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row["op"].startswith("all_reduce"):
            by_device[row["gpu"]].append(row)
    for name, some in by_device.items():
        times = [number(r, "oop_time_ns") * 1e-9 for r in some]
        sizes = [number(r, "bytes") for r in some]
        public.keep(_one_node(name, [number(r, "n_gpus") for r in some], sizes, times, some[0]["source"]))


def _add_reduce_h100(public: Public, rows: Sequence[Row]) -> None:
    times = [number(r, "out_of_place_us") * 1e-6 for r in rows]
    sizes = [number(r, "size_bytes") for r in rows]
    public.keep(_one_node("H100", [number(r, "n_gpus") for r in rows], sizes, times, rows[0]["source_ref"]))


def _one_node(name: str, n: Iterable[float], size: list[float], seconds: list[float], source: str) -> AllReduce:
    ranks = np.array(list(n))
    ones = np.ones(len(ranks))
    return AllReduce(name, ranks, ranks, ones, np.array(size), np.array(seconds), source)


FOUR_NODES = "4 nodes"
_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def _add_bus(public: Public, rows: Sequence[Row]) -> None:
    """Bus bandwidths: NVLink 4 and 5 with and without the switch's reduction, all-gather, four nodes."""
    sizes, seconds, source = [], [], ""
    for row in rows:
        cells = _cells(row)
        if row["heading"] == "ring" and "collective" in cells:
            kind = "all-reduce " + cells.get("algo", "") if "all-reduce" in cells["collective"] else cells["collective"]
            public.bus[f"nvlink4 {kind}"] = _rate(row, cells.get("busbw", ""))
        elif row["heading"] == "SHARP" and cells.get("GPUs") == "8":
            # Two tables under one heading: only NVLink 5 reaches more than NVLink 4's 450 GB/s with a ring.
            ring = _rate(row, cells.get("busbw, NVLS off", ""))
            if ring > 450 * GIGA:
                public.bus["nvlink5 all-reduce NVLS"] = _rate(row, cells.get("busbw", ""))
                public.bus["nvlink5 all-reduce Ring"] = ring
        elif FOUR_NODES in cells:
            size = _size(row, cells.get("payload", ""))
            sizes.append(size)
            # busbw = 2 (n-1)/n size/T on 4 nodes of 8.
            seconds.append(2 * 31 / 32 * size / _rate(row, cells[FOUR_NODES]))
            source = row["source_ref"].split("#")[0]
    if sizes:
        n, n_in, n_out = (np.full(len(sizes), v) for v in (32.0, 8.0, 4.0))
        columns = (n, n_in, n_out, np.array(sizes), np.array(seconds))
        public.keep(AllReduce(FOUR_NODES, *columns, source))


def _add_contention(public: Public, rows: Sequence[Row]) -> None:
    """Mist's benchmark: each file is a communicator shape, each folder a session (its rows have no date or clocks)."""
    shapes: dict[tuple[str, str, float, float], list[Row]] = defaultdict(list)
    for row in rows:
        n_in, n_out = number(row, "intra_group"), number(row, "inter_group")
        shapes[row["gpu"], row["source"].rpartition("/")[0], n_in, n_out].append(row)
    for (gpu, session, n_in, n_out), some in shapes.items():
        amount = np.array([[_amount(r, c) for c in ("compute_n", "g2g_MB", "c2g_MB", "g2c_MB")] for r in some])
        seconds = np.array([number(r, "latency_ms") for r in some]) * 1e-3
        spread = np.array([_amount(r, "std_ms") for r in some]) * 1e-3
        shape = int(n_in), int(n_out)
        public.together.append(Together(gpu, *shape, session, amount, seconds, spread, some[0]["source"]))


def _amount(row: Row, column: str) -> float:
    """Return the number in `column`, which may be zero."""
    return 0.0 if row[column] in ("0", "0.0") else number(row, column)


def _cells(row: Row) -> dict[str, str]:
    try:
        cells = json.loads(row["row"])
    except (ValueError, RecursionError):
        cells = None
    if not isinstance(cells, dict) or not all(isinstance(v, str) for v in cells.values()):
        raise InputError(f"{row['']}.row", row["row"], "a JSON object of texts")
    return cells


def _rate(row: Row, text: str) -> float:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)GBps", text)
    if match is None:
        raise InputError(f"{row['']}.row", text, "a bandwidth such as 480.0GBps")
    return float(match[1]) * GIGA


def _size(row: Row, text: str) -> float:
    match = re.fullmatch(r"([0-9]+)(KiB|MiB|GiB)", text)
    if match is None:
        raise InputError(f"{row['']}.row", text, "a size such as 16MiB")
    return float(match[1]) * _UNITS[match[2]]


def _one_of(row: Row, column: str, known: Mapping[str, str]) -> str:
    if row[column] not in known:
        raise InputError(f"{row['']}.{column}", row[column], "one of " + ", ".join(known))
    return known[row[column]]


FORMATS = (
    Format(
        "bf16 efficiencies",
        "device,op,b,m,n,k,layout,accumulate,out_dtype,stage,seq_len,heads,kv_heads,qk_dim,v_dim,efficiency,"
        "peak_tflops,achieved_tflops,source",
        _add_efficiency,
    ),
    Format("fp32 vector kernels", "device,op,dtype,direction,rows,cols,latency_ms,source", _add_vector),
    Format(
        "attention rates",
        "device,op,direction,head_dim,causal,impl,seqlen,batch,hidden,tflops,dtype,source,flop_convention",
        _add_attention,
    ),
    Format("operation timings", op_timings.HEADER, op_timings.add),
    Format(
        "measured matmul peaks",
        "accelerator,mamf_tflops,theory_tflops,efficiency,best_shape_MxNxK,torch,note,source",
        _add_peaks,
    ),
    Format(
        "all-reduce by ranks",
        "gpu,n_gpus,op,bytes,oop_time_ns,oop_busbw_GBps,ip_time_ns,ip_busbw_GBps,source",
        _add_reduce_nodes,
    ),
    Format(
        "all-reduce by size",
        "source,source_ref,collective,hardware,n_gpus,size_bytes,dtype,redop,out_of_place_us,out_algbw_GBs,"
        "out_busbw_GBs,in_place_us,in_algbw_GBs,in_busbw_GBs,notes",
        _add_reduce_h100,
    ),
    Format("bus bandwidths", "source,source_ref,heading,row", _add_bus),
    Format(
        "contention",
        "gpu,nodes,gpus_per_node,compute_n,compute_m,compute_k,g2g_MB,c2g_MB,g2c_MB,world_size,intra_group,"
        "inter_group,latency_ms,std_ms,source",
        _add_contention,
    ),
    Format(
        "fp32 GEMM",
        "device,op,dtype,direction,B,M,N,K,latency_ms,flop,kernel,grid,torch,source",
        None,
        "fp32 products without tensor cores say nothing about bf16 ones",
    ),
    Format(
        "fit errors",
        "device,op,train_shapes,test_shapes,model,mape_pct,med_pct,p90_pct,tot_pct",
        None,
        "errors of earlier fits, not samples",
    ),
    Format(
        "fit errors with bias",
        "device,op,train_shapes,test_shapes,model,mape_pct,med_pct,p90_pct,bias_pct,tot_pct",
        None,
        "errors of earlier fits, not samples",
    ),
    Format(
        "published targets",
        "system,claim,value,unit,setting,where_read,source",
        None,
        "claims of papers, not samples",
    ),
)
"""To read another public file add its header and a reader here."""


def read_public(paths: Iterable[Path]) -> Public:
    """Return everything in the CSV files `paths`.

    Raises:
        InputError: a file cannot be read, its header is unknown, or a value is not what its column holds.
    """
    public = Public()
    for path in paths:
        known, rows = _read(path)
        public.formats.add(known.name)
        if known.add is None:
            public.set_aside[path.name] = known.why
        elif rows:
            known.add(public, rows)
    return public


def _read(path: Path) -> tuple[Format, list[Row]]:
    lines = csv_lines(text_of(path, MAX_BYTES), str(path))
    names = next(lines, ("", []))[1]
    header = ",".join(names)
    known = next((f for f in FORMATS if f.header == header), None)
    if known is None:
        formats = "; ".join(f"{f.name} ({f.header.split(',')[0]},...,{f.header.split(',')[-1]})" for f in FORMATS)
        raise InputError(f"{path} (header)", header, f"the header of a known format: {formats}")
    # The empty key says where a row stands, for messages.
    rows: list[Row] = [{"": place, **dict(zip(names, cells, strict=True))} for place, cells in lines]
    return known, rows
