"""All workloads; a new one is a line here and passes `tests.contracts.workload.WorkloadContract`."""

from calibration.workloads import adversarial, detection, images, reinforcement, speech, translation
from calibration.workloads.workload import Workload
from sim.specs.fields import InputError

WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for family in (images, translation, speech, detection, adversarial, reinforcement)
    for workload in family.WORKLOADS
}


def workload(name: str) -> Workload:
    """Return the workload of that name; raises InputError for another."""
    if name not in WORKLOADS:
        raise InputError("workload", name, "one of " + ", ".join(WORKLOADS))
    return WORKLOADS[name]
