"""Collectives: limits of the hierarchical model, and the NCCL measurements."""

import csv

import numpy as np
import pytest

from sim.costs.algebra import compile_expressions
from sim.costs.collectives import Group, send
from sim.costs.inputs import Mesh, cluster_values, group_values
from sim.costs.profile import load_profile
from sim.costs.run_level import RunLevel, symbol_values
from sim.specs import Cluster
from tests.oracle import reference

FUNCTIONS = compile_expressions(
    {
        "all_reduce": Group.named("tp").all_reduce(1e9),
        "all_gather": Group.named("tp").all_gather(1e9),
        "dp": Group.named("dp").all_reduce(1e9),
        "send": send(1e9),
    }
)


def shapes(tp, pp, dp, node):
    """Return run-level values and the groups of a mesh in the usual order."""
    mesh = Mesh("tp-cp-dp-pp", {"tp": tp, "cp": 1, "dp": dp, "pp": pp})
    groups = group_values(mesh, {"domain": node, "leaf_gpus": 1e9, "oversubscription": 1.0})
    return symbol_values(RunLevel()) | groups


def times(tp, pp=1, dp=1, device="h100-sxm-80gb", nodes=16):
    cluster = Cluster.of(device, nodes=nodes)
    values = cluster_values(cluster, load_profile(device)) | shapes(tp, pp, dp, cluster.gpus_per_node)
    return {k: float(v) for k, v in FUNCTIONS(values).items()}


def test_one_rank_costs_nothing():
    assert times(1)["all_reduce"] == 0
    assert times(1)["dp"] == 0


def test_crossing_the_node_is_never_ignored():
    """One communicator over two nodes runs at the pace of the network, not of NVLink."""
    assert times(16, device="a100-sxm-80gb")["all_reduce"] > 1.2 * times(8, device="a100-sxm-80gb")["all_reduce"]
    assert times(8, dp=4)["dp"] > 5 * times(8)["all_reduce"]


def test_all_reduce_is_two_gathers_without_in_switch_reduction():
    t = times(8, device="a100-sxm-80gb")
    assert t["all_reduce"] == pytest.approx(2 * t["all_gather"], rel=0.05)


def test_share_of_the_network():
    """All eight groups of a node use its network at once: a group of one rank a node has an eighth."""
    eight, one = times(8, dp=16)["dp"], times(1, dp=128)["dp"]
    assert eight > 4 * one


def test_pipeline_neighbours_in_one_node_are_faster():
    assert times(1, pp=8)["send"] < times(8, pp=2)["send"]


def test_a100_measurements():
    path = reference("collectives/allreduce_a100_v100.csv")
    rows = [r for r in csv.DictReader(path.open()) if r["gpu"] == "A100" and r["n_gpus"] == "8"]
    size = np.array([float(r["bytes"]) for r in rows])
    measured = np.array([float(r["oop_time_ns"]) for r in rows]) * 1e-9
    t = times(8, device="a100-sxm-80gb")["all_reduce"]
    large = size > 900e6
    assert np.median(measured[large] / size[large]) * 1e9 == pytest.approx(t, rel=0.10)
