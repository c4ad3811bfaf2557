"""Code that computes again what a panel shows."""

from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from sim.specs import Cluster, Model, Plan
from sim.specs.catalog import models


def code_of(model: Model, cluster: Cluster, plan: Plan) -> str:
    """Return Python lines that simulate a plan; they need `import sim` alone."""
    known = model.name in models and models[model.name] == model
    lines = [
        "import sim",
        "",
        f"model = sim.models[{model.name!r}]" if known else f"model = {_call(model)}",
        f"cluster = {_call(cluster)}",
        f"plan = {_call(plan)}",
        "run = sim.simulate(model, cluster, plan)",
    ]
    return "\n".join(lines)


def _call(value: Any) -> str:
    """Return the constructor's call of a spec, without what is its default or follows from the rest."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_call, value))}{',' * (len(value) == 1)})"
    if not is_dataclass(value):
        return repr(value)
    derived = getattr(value, "derived", ())
    given = [
        f"{f.name}={_call(getattr(value, f.name))}"
        for f in fields(value)
        if f.init and f.name not in derived and not _usual(f, getattr(value, f.name))
    ]
    return f"sim.{type(value).__name__}({', '.join(given)})"


def _usual(field: Any, value: Any) -> bool:
    if field.default is not MISSING:
        return bool(value == field.default)
    return field.default_factory is not MISSING and bool(value == field.default_factory())
