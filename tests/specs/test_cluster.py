"""Clusters: domains of fast links, oversubscribed fabrics, groups of different devices."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.catalog import names
from sim.plans.files import job_data
from sim.specs import Cluster, InputError, Job, Model, Plan
from sim.specs.catalog import device, models
from sim.specs.fields import read

MIXED = [{"device": "h100-sxm-80gb", "nodes": 4}, {"device": "a100-sxm-80gb", "nodes": 8}]


@pytest.mark.parametrize("spelling", ["H100-SXM-80GB", "h100_sxm_80gb", "H100 SXM 80GB"])
def test_a_device_is_known_in_any_case_and_punctuation(spelling):
    assert Cluster.of(spelling, nodes=2) == Cluster.of("h100-sxm-80gb", nodes=2)
    assert Cluster.of(groups=[{"device": spelling}]).device == "h100-sxm-80gb"
    assert models["GPT3 175B"] == models["gpt3-175b"]


def test_the_fast_links_join_what_the_device_says():
    assert Cluster.of("h100-sxm-80gb", nodes=2).domain_gpus == 8
    assert Cluster.of("gb200", nodes=18).domain_gpus == 72
    assert "cluster.domain_gpus = 72 (the device's usual server)" in Cluster.of("gb200").assumptions
    assert not any("domain" in text for text in Cluster.of("h100-sxm-80gb").assumptions)
    assert Cluster.of("h100-nvl", domain_gpus=2).domain_gpus == 2


@given(name=st.sampled_from(names("devices")), node=st.integers(1, 72))
def test_every_size_of_node_has_a_domain(name, node):
    cluster = Cluster.of(name, gpus_per_node=node)
    assert cluster.domain_gpus % node == 0 or node % cluster.domain_gpus == 0
    assert cluster.domain_gpus <= max(node, device(name).domain_gpus)


def test_groups_are_clusters_in_the_order_of_ranks():
    cluster = Cluster.of(groups=MIXED, links={"inter_bytes_per_s_per_node": 100e9})
    h100s, a100s = cluster.members
    assert h100s == Cluster.of("h100-sxm-80gb", nodes=4, links={"inter_bytes_per_s_per_node": 100e9})
    assert a100s == Cluster.of("a100-sxm-80gb", nodes=8, links={"inter_bytes_per_s_per_node": 100e9})
    assert (cluster.nodes, cluster.gpus, cluster.gpus_per_node) == (12, 96, 8)
    assert cluster.usd_per_hour == pytest.approx(32 * 2.99 + 64 * 1.79)
    assert cluster.usd_per_gpu_hour == pytest.approx((2.99 + 2 * 1.79) / 3)
    assert cluster.memory_bytes == min(h100s.memory_bytes, a100s.memory_bytes)
    assert cluster.device == "h100-sxm-80gb + a100-sxm-80gb"
    assert any(text.startswith("a100-sxm-80gb: cluster.links.intra") for text in cluster.assumptions)
    with pytest.raises(InputError, match=r"cluster\.groups: got 'h100.*ask each of `members`"):
        _ = cluster.hardware


def test_a_cluster_of_one_device_is_its_only_member(h100s):
    assert h100s.members == (h100s,)
    assert h100s.usd_per_hour == 128 * 2.99
    assert Cluster.of("l4").usd_per_hour is None


def test_one_group_is_a_plain_cluster():
    cluster = Cluster.of(groups=MIXED[:1])
    assert cluster.members == (Cluster.of("h100-sxm-80gb", nodes=4),)
    assert cluster.hardware == device("h100-sxm-80gb")
    assert cluster.profile == "h100-sxm-80gb"


def test_a_price_that_is_missing_leaves_no_price():
    assert Cluster.of(groups=[*MIXED, {"device": "b200"}]).usd_per_hour is None
    assert Cluster.of(groups=[*MIXED, {"device": "b200", "usd_per_gpu_hour": 5.0}]).usd_per_hour is not None


def test_a_plan_is_placed_on_all_groups():
    placed = Plan(tp=8, pp=2, global_batch=96).on(Model(layers=4, hidden=1024, heads=8), Cluster.of(groups=MIXED))
    assert placed.dp == 6


def test_a_job_file_keeps_its_groups(tmp_path):
    (tmp_path / "job.yaml").write_text(
        "model: llama3-8b\nplan: {tp: 8, global_batch: 96}\ncluster:\n  groups:\n"
        "    - {device: h100-sxm-80gb, nodes: 4}\n    - {device: a100-sxm-80gb, nodes: 8}\n"
        "  links: {oversubscription: 2, rail_nodes: 4}\n"
    )
    job = Job.load(tmp_path / "job.yaml")
    assert job.cluster.gpus == 96
    assert [m.links.oversubscription for m in job.cluster.members] == [2, 2]
    (tmp_path / "again.json").write_text(json.dumps(job_data(job.model, job.cluster, job.plan)))
    assert Job.load(tmp_path / "again.json").cluster == job.cluster


CASES = [
    ({}, "device", "required: a device of the catalog or the path of a device file"),
    ({"device": "h1000"}, "device", "h100-sxm-80gb"),
    ({"device": "gb200", "domain_gpus": 10}, "domain_gpus", "a multiple or divisor of gpus_per_node = 4"),
    ({"device": "l4", "domain_gpus": 0}, "domain_gpus", "a whole number from 1 to 1152"),
    ({"device": "l4", "links": {"oversubscription": 0.5}}, "links.oversubscription", "a number from 1 to 1000"),
    (
        {"device": "l4", "links": {"oversubscription": 2.0}},
        "links.rail_nodes",
        "required with oversubscription above 1",
    ),
    ({"device": "l4", "links": {"rail_nodes": 0}}, "links.rail_nodes", "a whole number from 1"),
    ({"device": "l4", "groups": MIXED}, "device", "left out: the groups say h100-sxm-80gb + a100-sxm-80gb"),
    ({"nodes": 3, "groups": MIXED}, "nodes", "left out: the groups say 12"),
    ({"profile": "l4", "groups": MIXED}, "profile", "left out: the groups say h100-sxm-80gb + a100-sxm-80gb"),
    ({"memory_bytes": 1e9, "groups": MIXED}, "memory_bytes", "left out: the groups say"),
    ({"usd_per_gpu_hour": 1.0, "groups": [{"device": "b200"}]}, "usd_per_gpu_hour", "left out: each group has its own"),
    ({"groups": [{"device": "b200"}, {"device": "gb200"}]}, "groups", "one gpus_per_node in all groups"),
    ({"groups": [{"device": "b200"}, {"device": "b2000"}]}, "groups.1.device", "one of a100"),
    ({"groups": [{"device": "b200", "nodes": 0}]}, "groups.0.nodes", "a whole number from 1 to 100000"),
    ({"groups": [{"device": "b200", "pods": 2}]}, "groups.0.pods", "no such key; known keys: device, nodes"),
    ({"groups": [{"nodes": 2}]}, "groups.0.device", "required: a device of the catalog"),
]


@pytest.mark.parametrize(("given", "path", "allowed"), CASES)
def test_what_contradicts_itself_is_refused(given, path, allowed):
    with pytest.raises(InputError) as caught:
        read(Cluster, given, "cluster")
    assert caught.value.path == f"cluster.{path}"
    assert allowed in caught.value.allowed
    with pytest.raises(InputError) as caught:
        Cluster.of(**given)
    assert caught.value.path == path


def test_groups_must_be_a_list():
    with pytest.raises(InputError, match="groups: got 3; allowed: a list of groups"):
        Cluster.of(groups=3)
