"""Algorithms by name; a line in `ALGORITHMS` adds one."""

from collections.abc import Mapping

from calibration.federated.algorithms.base import Algorithm
from calibration.federated.algorithms.bsp import Bsp
from calibration.federated.algorithms.dgc import Dgc
from calibration.federated.algorithms.gaia import Gaia
from calibration.federated.algorithms.local import DiLoCo, FedAvg
from sim.decentralized.communication import AlgorithmName

ALGORITHMS: Mapping[AlgorithmName, type[Algorithm]] = {kind.name: kind for kind in (Bsp, Gaia, FedAvg, Dgc, DiLoCo)}
