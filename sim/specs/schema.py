"""JSON Schema (draft 2020-12) of the files that users write, from the same declarations that check them."""

from collections.abc import Callable
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from sim.catalog import names
from sim.specs.fields import class_of
from sim.specs.job import Job
from sim.specs.knobs import BOUNDED, KNOBS, MAX_IMBALANCE, MAX_KNOB_VALUES
from sim.specs.model import Model
from sim.specs.model_file import BASE, MODEL_HELP

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]


class _Stated(GenerateJsonSchema):
    """What a file may state: no derived fields, no defaults that only mark a field as left out."""

    def dataclass_args_schema(self, schema: core_schema.DataclassArgsSchema) -> JsonSchemaValue:
        stated = [field for field in schema["fields"] if field.get("init", True)]
        return super().dataclass_args_schema({**schema, "fields": stated})

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        unset = schema.get("default", ...) is None
        return self.generate_inner(schema["schema"]) if unset else super().default_schema(schema)

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def file_schema(cls: type) -> Schema:
    """Return the JSON Schema of a file that holds a `cls`; what contradicts another field it cannot say."""
    made = TypeAdapter(cls).json_schema(schema_generator=_Stated)
    parts = {cls.__name__: made} | made.get("$defs", {})
    for name, part in parts.items():
        part["description"] = part.get("description", "").split("\n\nRaises:")[0]
        if name in BEYOND_FIELDS:
            BEYOND_FIELDS[name](part)
    if cls is Job:
        _as_read(made)
    for model in (made if cls is Model else {}, made.get("$defs", {}).get("Model", {})):
        if model:
            _as_stated(model)
    return {"$schema": DIALECT, **made}


def _named_device(part: Schema) -> None:
    part["properties"]["device"]["anyOf"] = [
        {"enum": names("devices")},
        {"type": "string", "pattern": r"\.(json|ya?ml)$"},
    ]


def _one_or_several_devices(cluster: Schema) -> None:
    _named_device(cluster)
    groups = {"required": ["groups"], "properties": {"groups": {"minItems": 1}}}
    cluster["anyOf"] = [{"required": ["device"]}, groups]


def _tokens_or_steps(training: Schema) -> None:
    kinds = {"tokens": "number", "steps": "integer"}
    training["oneOf"] = [{"required": [key], "properties": {key: {"type": kind}}} for key, kind in kinds.items()]


def _price_or_files(prices: Schema) -> None:
    prices["oneOf"] = [{"required": ["usd_per_gpu_hour"]}, {"required": ["files"]}]


def _trace_or_drawn(sharing: Schema) -> None:
    kinds = {"trace": "string", "every_hours": "number"}
    sharing["oneOf"] = [{"required": [key], "properties": {key: {"type": kind}}} for key, kind in kinds.items()]


_FOR_DEADLINE: Schema = {"properties": {"objective": {"const": "gpus_for_deadline"}}, "required": ["objective"]}


def _deadline(tune: Schema) -> None:
    tune["if"] = _FOR_DEADLINE
    tune["then"] = {"required": ["deadline_days"], "properties": {"deadline_days": {"type": "number"}}}
    tune["else"] = {"properties": {"deadline_days": {"type": "null"}}}


def _device_file(device: Schema) -> None:
    """A device file of the user's may hold a number without its source, and names a catalog device to be like."""
    device["properties"]["like"]["anyOf"] = [{"enum": names("devices")}, {"type": "null"}]
    plain = device["$defs"]["Sourced"]["properties"]["value"]
    for held in device["properties"].values():
        if "Sourced" in held.get("$ref", "") or any("Sourced" in o.get("$ref", "") for o in held.get("anyOf", [])):
            held["anyOf"] = [*held.pop("anyOf", [{"$ref": held.pop("$ref", "")}]), plain]


BEYOND_FIELDS: dict[str, Callable[[Schema], None]] = {
    "Cluster": _one_or_several_devices,
    "NodeGroup": _named_device,
    "Training": _tokens_or_steps,
    "Prices": _price_or_files,
    "Sharing": _trace_or_drawn,
    "Tune": _deadline,
    "Device": _device_file,
}
"""What a class asks beside the range of each field, as its constructor or its reader does."""


def _as_read(job: Schema) -> None:
    """Bring the schema of the class to what `Job.load` reads: names for models, `tune` gives the batch."""
    properties, parts = job["properties"], job["$defs"]
    for name, held in properties.items():
        # A section is left out or a mapping; None is how Python says the former.
        properties[name] = next((o for o in held.get("anyOf", []) if o != {"type": "null"}), held)
    properties["model"] = {"description": MODEL_HELP, "anyOf": [*_named_model(), {"$ref": "#/$defs/Model"}]}
    batch = parts["Plan"].pop("required")
    job["allOf"] = [
        {"if": {"not": {"required": ["tune"]}}, "then": {"properties": {"plan": {"required": batch}}}},
        {"if": {"properties": {"tune": _FOR_DEADLINE}, "required": ["tune"]}, "then": {"required": ["training"]}},
        {"if": {"required": ["sharing"]}, "then": {"required": ["training"]}},
    ]
    shares = {f"offload_{name}": value for name, value in parts["Offload"]["properties"].items()}
    values = parts["Plan"]["properties"] | shares | {"unequal_stages": {"type": "boolean"}}
    values["imbalance"] = {"type": "number", "minimum": 1, "maximum": MAX_IMBALANCE}
    values["fsdp_shard"] = values["fsdp_shard"] | {"minimum": 0}  # 0: all data-parallel ranks
    listed = {knob: {"anyOf": _knob(values[knob], knob in BOUNDED)} for knob in KNOBS}
    parts["Tune"]["properties"]["knobs"] |= {"properties": listed, "additionalProperties": False}


def _knob(value: Schema, bounded: bool) -> list[Schema]:
    """Return the forms of a knob: fixed, listed and, for a number, bounded."""
    ends = {"type": "object", "properties": {"min": value, "max": value}, "additionalProperties": False}
    forms = [value, {"type": "array", "minItems": 1, "maxItems": MAX_KNOB_VALUES, "items": value}]
    return [*forms, ends | {"minProperties": 1}] if bounded else forms


def _named_model() -> list[Schema]:
    return [{"enum": names("models")}, {"type": "string", "pattern": r"\.json$"}]


def _as_stated(model: Schema) -> None:
    """Let a layer table, or its path, or a base with what to change of it stand for the dimensions."""
    model["properties"]["table"] = {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/LayerTable"}]}
    model["properties"]["base"] = {"description": BASE, "anyOf": _named_model()}
    model["anyOf"] = [{"required": needed} for needed in (model.pop("required"), ["table"], ["base"])]


def sections() -> dict[str, type]:
    """Return the class of every section of a job file, by its key."""
    return {name: cls for name, hint in Job.__annotations__.items() if (cls := class_of(hint))}
