"""Logs as nccl-tests prints them, of given times."""

import json
from collections.abc import Sequence
from typing import Any

FACTORS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "alltoall": 1}
HEADING = """#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""


def ranks(hosts: Sequence[int]) -> str:
    """Return the lines of the ranks, so many on each host."""
    places = [(host, gpu) for host, gpus in enumerate(hosts) for gpu in range(gpus)]
    return "".join(
        f"#  Rank {n:2d} Group  0 Pid {4000 + n:6d} on  node{host:03d} device {gpu:2d} [0x{gpu:02x}] NVIDIA H100\n"
        for n, (host, gpu) in enumerate(places)
    )


def rows(program: str, n: int, sizes: Sequence[float], seconds: Sequence[float]) -> str:
    """Return a line for every size (bytes)."""
    factor = FACTORS[program] * (n - 1) / n if program in FACTORS else 1
    redop = "sum" if "reduce" in program else "none"
    lines = []
    for size, each in zip(sizes, seconds, strict=True):
        algbw = size / each / 1e9
        times = f"{each * 1e6:8.2f} {algbw:7.2f} {algbw * factor:7.2f} {0:6d}"
        lines.append(f"{int(size):12d} {int(size) // 4:13d} {'float':>9} {redop:>7} {-1:7d} {times} {times}\n")
    return "".join(lines)


def log(program: str, hosts: Sequence[int], sizes: Sequence[float], seconds: Sequence[float]) -> str:
    """Return a whole log of a recent version, which names its program."""
    begin = f"# Collective test starting: {program}_perf\n# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592\n#\n"
    end = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 145.31\n#\n"
    return begin + "# Using devices\n" + ranks(hosts) + HEADING + rows(program, sum(hosts), sizes, seconds) + end


def report(program: str, processes: Sequence[str], gpus: int, sizes: Sequence[float], seconds: Sequence[float]) -> str:
    """Return what `-J` writes, version 2: one device a process, by the host of each, of `gpus`."""
    n = len(processes) * gpus
    factor = FACTORS[program] * (n - 1) / n if program in FACTORS else 1
    devices = [
        {"rank": gpus * p, "group": 0, "pid": 4000 + p, "hostname": host, "device": 0, "device_hex": "0000:04:00",
         "device_info": "NVIDIA H100"}
        for p, host in enumerate(processes)
    ]  # fmt: skip
    results = []
    for size, each in zip(sizes, seconds, strict=True):
        algbw = size / each / 1e9
        timed = {"time": round(each * 1e6, 6), "alg_bw": algbw, "bus_bw": algbw * factor, "nwrong": 0.0}
        row: dict[str, Any] = {
            "size": int(size),
            "count": int(size) // 4,
            "type": "float",
            "redop": "sum",
            "root": "    -1",
        }
        results.append(row | {"out_of_place": timed, "in_place": timed | {"time": 9.9}, "experiment_name": ""})
    return json.dumps({
        "version": 2, "start_time": "2026-01-01 12:00:00", "args": [f"./build/{program}_perf", "-g", str(gpus)],
        "env": ["HOME=\\/root"], "nccl_version": 22703,
        "config": {"nthreads": 1, "ngpus": gpus, "devices": devices}, "results": results,
        "out_of_bounds": {"count": 0, "okay": "true"}, "errors": [""], "end_time": "2026-01-01 12:01:00",
    })  # fmt: skip
