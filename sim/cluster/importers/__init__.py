"""Jobs of real clusters from what their schedulers have logged."""

from pathlib import Path

from sim.cluster.importers.kueue import read_kueue
from sim.cluster.importers.logged import Imported
from sim.cluster.importers.slurm import read_sacct
from sim.cluster.importers.table import MAX_BYTES
from sim.specs.files import text_of


def imported_log(path: str | Path) -> Imported | None:
    """Return the jobs of a log, known by its header: of Slurm's `sacct --parsable2`, of Kueue; None of anything else.

    Raises:
        InputError: as the readers do.
    """
    header = text_of(Path(path), MAX_BYTES).partition("\n")[0].lower()
    if "jobid" in header.split("|"):
        return read_sacct(path)
    return read_kueue(path) if "creationtimestamp" in header.split(",") else None
