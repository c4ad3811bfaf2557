"""The job file: model, cluster, plan, what to search and how long to train, in one place."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from sim.catalog import names
from sim.specs.catalog import is_device_file
from sim.specs.catalog import model as catalog_model
from sim.specs.cluster import Cluster
from sim.specs.fields import InputError, read, spec, whole
from sim.specs.files import load_mapping
from sim.specs.model import Model
from sim.specs.plan import Plan
from sim.specs.training import Training

Objective = Literal["step_time", "cost", "tokens_per_usd", "memory_headroom"]
KNOBS = ("tp", "pp", "virtual_stages", "micro_batch", "zero", "recompute", "sequence_parallel", "schedule")


@spec
class Tune:
    """What the tuner may change and what it should improve."""

    global_batch: Annotated[int, whole(1, 10_000_000)]
    knobs: Annotated[dict[str, list[int | bool | str]], Field(description="a mapping of knob to its values")] = Field(
        default_factory=dict
    )
    objective: Objective = "step_time"

    def __post_init__(self) -> None:
        for name, values in self.knobs.items():
            if name not in KNOBS:
                raise InputError(f"knobs.{name}", values, "a knob: " + ", ".join(KNOBS))
            if not values:
                raise InputError(f"knobs.{name}", values, "a list of at least one value")
            for value in values:
                read(Plan, {"global_batch": self.global_batch, name: value}, "knobs")


@spec
class Job:
    """Everything one command needs."""

    model: Model
    cluster: Cluster
    plan: Plan | None = None
    tune: Tune | None = None
    training: Training | None = None

    @classmethod
    def load(cls, path: str | Path) -> "Job":
        """Return the job in a YAML or JSON file; paths of model, device and profile are relative to it.

        Raises:
            InputError: with the path of the first field that is wrong.
        """
        file = Path(path)
        raw = load_mapping(file)
        known = ("model", "cluster", "plan", "tune", "training")
        for key in raw:
            if key not in known:
                raise InputError(key, raw[key], f"no such key; known keys: {', '.join(known)}")
        for key in ("model", "cluster"):
            if key not in raw:
                raise InputError(key, None, "required: " + {"model": MODEL_HELP, "cluster": "a mapping"}[key])
        tune = read(Tune, raw["tune"], "tune") if "tune" in raw else None
        plan_raw = raw.get("plan")
        if tune and isinstance(plan_raw, dict):
            plan_raw = {**plan_raw, "global_batch": tune.global_batch}
        return cls(
            model=_model(raw["model"], file.parent),
            cluster=read(Cluster, _with_files(raw["cluster"], file.parent), "cluster"),
            plan=read(Plan, plan_raw, "plan") if plan_raw is not None else None,
            tune=tune,
            training=read(Training, raw["training"], "training") if "training" in raw else None,
        )


MODEL_HELP = "a catalog name, the path of a HF config.json, or inline dimensions"


def _model(raw: Any, folder: Path) -> Model:
    if isinstance(raw, dict):
        return read(Model, raw, "model")
    if not isinstance(raw, str):
        raise InputError("model", raw, MODEL_HELP)
    if raw.endswith(".json"):
        try:
            return Model.from_hf(folder / raw)
        except InputError as error:
            raise error.under("model") from None
    try:
        return catalog_model(raw)
    except InputError as error:
        raise InputError("model", raw, f"{MODEL_HELP}; {error.allowed}") from None


def _with_files(raw: Any, folder: Path) -> Any:
    """Return a cluster or group with relative paths of device files and profile folders resolved against the job."""
    if not isinstance(raw, dict):
        return raw
    made = dict(raw)
    name, profile, groups = (raw.get(key) for key in ("device", "profile", "groups"))
    if isinstance(name, str) and is_device_file(name):
        made["device"] = str((folder / name).resolve())
    if isinstance(profile, str) and profile not in names("profiles") and (folder / profile).exists():
        made["profile"] = str((folder / profile).resolve())
    if isinstance(groups, list):
        made["groups"] = [_with_files(group, folder) for group in groups]
    return made
