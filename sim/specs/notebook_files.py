"""Where the notebooks' own tables and jobs are, from whichever folder a notebook runs in."""

from pathlib import Path

from sim.specs.arguments import checked
from sim.specs.fields import InputError


@checked
def notebook_file(name: str) -> Path:
    """Return a file below `notebooks/`, such as "data/accuracy.csv".

    Looked for from the working directory upwards, then beside the package.

    Raises:
        InputError: there is none.
    """
    here = Path.cwd()
    for folder in (here, *here.parents, *Path(__file__).resolve().parents):
        if (file := folder / "notebooks" / name).is_file():
            return file
    raise InputError("name", name, "a file below notebooks/, from the working directory upwards or beside the package")
