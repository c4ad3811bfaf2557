"""What readers of other frameworks' settings share: the plan that was found, and what was not read."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sim.plans.flags import Flags
from sim.specs import InputError, Model, Plan
from sim.specs.fields import read, short


@dataclass(frozen=True)
class ReadPlan:
    """A plan from another framework's settings.

    `not_read`: what the settings hold beside it, in their own words. `notes`: what the settings leave open or mean in
    a way that a plan does not say.
    """

    plan: Plan
    not_read: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def made(fields: Mapping[str, Any], places: Mapping[str, str], left: tuple[str, ...], *notes: str) -> ReadPlan:
    """Return the plan of the fields that are not None.

    places: where a field was found, so that an error names the setting and not the field.

    Raises:
        InputError: a value is out of range.
    """
    try:
        plan = read(Plan, {name: value for name, value in fields.items() if value is not None})
    except InputError as error:
        field, _, rest = error.path.partition(".")
        place = places.get(field, f"plan.{field}")
        raise InputError(f"{place}.{rest}" if rest else place, error.value, error.allowed) from None
    return ReadPlan(plan, left, tuple(note for note in notes if note))


def other_sizes(flags: Flags, model: Model | None, **settings: str) -> Iterator[str]:
    """Yield a note for every size of the network that is not `model`'s.

    settings: where a size is stated, by its field of a model.
    """
    for field, name in settings.items():
        stated, own = flags.text(name), str(getattr(model, field, ""))
        if model and stated.isdecimal() and stated != own:
            yield f"{flags.place(name)} {short(stated, 20)}: {model.name} has {own}, which is taken"


def one_of(flags: Flags, names: tuple[str, ...]) -> str:
    """Return which of some settings that exclude each other is given, or ""; raises InputError where several are."""
    given = [name for name in names if flags.values.get(name, "false") != "false"]
    if len(given) > 1:
        raise InputError(flags.place(given[1]), flags.values[given[1]], f"left out beside {flags.place(given[0])}")
    return given[0] if given else ""


def quotient(place: str, whole: int, part: int, what: str) -> int:
    """Return whole / part; raises InputError at `place` where the part does not divide it."""
    if part < 1 or whole % part:
        raise InputError(place, part, f"a divisor of {what} = {whole}")
    return whole // part
