"""Which versions of torch are executed on; asked without loading torch."""

from importlib.metadata import PackageNotFoundError, version

from sim.specs import InputError

LEAST, BELOW = (2, 11), (2, 14)
"""As in pyproject.toml: the pipelining runtime is private, and was read and tried in these."""


def check_torch(found: str | None = None) -> None:
    """Return if torch (by default the installed one) is of a version that plans are executed on.

    Raises:
        InputError: another version, or none.
    """
    allowed = f">= {LEAST[0]}.{LEAST[1]}, < {BELOW[0]}.{BELOW[1]}"
    try:
        found = found or version("torch")
        numbers = tuple(int(part) for part in found.split("+")[0].split(".")[:2])
    except (PackageNotFoundError, ValueError):
        raise InputError("torch", found, allowed) from None
    if not LEAST <= numbers < BELOW:
        raise InputError("torch", found, f"{allowed} (its pipelining runtime is private and changes)")
