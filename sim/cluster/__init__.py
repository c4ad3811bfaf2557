"""Jobs that share a cluster of different devices (Gavel, arXiv 2008.09213)."""

from sim.cluster.generator import generate
from sim.cluster.importers import imported_log
from sim.cluster.jobs import ClusterJob
from sim.cluster.live import Live
from sim.cluster.policies import POLICIES, policy
from sim.cluster.policies.base import Policy
from sim.cluster.pop import Pop
from sim.cluster.predicted import JobType, predicted_throughputs, read_workload
from sim.cluster.results import Simulated
from sim.cluster.sensitivity import Sensitivity, sensitivity
from sim.cluster.simulate import Rounds, simulate
from sim.cluster.throughput_files import read_throughputs
from sim.cluster.throughputs import Throughputs
from sim.cluster.trace import read_trace

__all__ = [
    "POLICIES",
    "ClusterJob",
    "JobType",
    "Live",
    "Policy",
    "Pop",
    "Rounds",
    "Sensitivity",
    "Simulated",
    "Throughputs",
    "generate",
    "imported_log",
    "policy",
    "predicted_throughputs",
    "read_throughputs",
    "read_trace",
    "read_workload",
    "sensitivity",
    "simulate",
]
