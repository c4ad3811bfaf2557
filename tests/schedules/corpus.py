"""The corpus of orders that other generators made: rows, and the shape of each."""

import gzip
import json
from functools import cache

from sim.schedules import Shape
from tests.oracle import reference

OURS = {
    "torch/GPipe": ("gpipe", "torch"),
    "torch/Interleaved1F1B": ("interleaved", "torch"),
    "torch/LoopedBFS": ("looped-bfs", "torch"),
    "torch/InterleavedZeroBubble": ("interleaved-zb", "torch"),
    "torch/ZBVZeroBubble": ("zbv", "torch"),
    "zb/ZBV": ("zbv", "zero-bubble"),
    "zb/V-half": ("v-half", ""),
    "zb/V-min": ("v-min", ""),
    "torch/DualPipeV": ("dualpipev", "torch"),
    "zb/1F1B": ("1f1b", "zero-bubble"),
    "zb/VPP": ("interleaved", "zero-bubble"),
    "zb/ZB1P": ("zb-1p", "zero-bubble"),
    "zb/ZB2P": ("zb-2p", "zero-bubble"),
    "megatron/interleaved": ("interleaved", "megatron"),
    "deepseek/DualPipe": ("dualpipe", "deepseek"),
    "deepseek/DualPipeV": ("dualpipev", "deepseek"),
}
"""Kind and variant of every generator."""


@cache
def rows():
    """Return the rows whose generators are right."""
    with gzip.open(reference("pipelines/schedules_corpus.json.gz")) as file:
        return [row for row in json.load(file)["rows"] if "flag" not in row]


def shape_of(row):
    """Return the shape of a row."""
    _, variant = OURS[row["schedule"]]
    group = row["params"].get("microbatch_group_size_per_vp_stage", 0)
    limit = row["params"].get("max_inflight", row["params"].get("max_inflight_chunks", 0))
    return Shape(row["ranks"], row["microbatches"], row["stages_per_rank"], group, limit, variant=variant)


def texts(row):
    """Return the orders of a row, without gradient reduction."""
    return [" ".join(a for a in rank.split() if "REDUCE" not in a) for rank in row["actions"]]
