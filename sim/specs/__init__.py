"""What the user states: model, device, cluster, plan, job; read from files with one clear error."""

from sim.specs.checkpointing import Checkpointing, Failures
from sim.specs.cluster import Cluster, Links, Multipliers, NodeGroup
from sim.specs.dataset import Dataset
from sim.specs.device import Device
from sim.specs.fields import InputError
from sim.specs.job import Around, Job, Tune
from sim.specs.loading import Loading
from sim.specs.model import Model
from sim.specs.plan import Offload, PlacedPlan, Plan, StagePlan
from sim.specs.precision import Precision
from sim.specs.prices import Prices
from sim.specs.sharing import Sharing
from sim.specs.storage import Storage
from sim.specs.table import LayerTable
from sim.specs.training import Training

__all__ = [
    "Around",
    "Checkpointing",
    "Cluster",
    "Dataset",
    "Device",
    "Failures",
    "InputError",
    "Job",
    "LayerTable",
    "Links",
    "Loading",
    "Model",
    "Multipliers",
    "NodeGroup",
    "Offload",
    "PlacedPlan",
    "Plan",
    "Precision",
    "Prices",
    "Sharing",
    "StagePlan",
    "Storage",
    "Training",
    "Tune",
]
