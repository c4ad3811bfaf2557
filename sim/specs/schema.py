"""JSON Schema (draft 2020-12) of the files that users write, from the same declarations that check them."""

from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from sim.catalog import names
from sim.specs.fields import class_of
from sim.specs.job import KNOBS, MAX_KNOB_VALUES, MODEL_HELP, Job
from sim.specs.model import Model

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
    for part in (made, *made.get("$defs", {}).values()):
        part["description"] = part.get("description", "").split("\n\nRaises:")[0]
    if cls is Job:
        _as_read(made)
    for model in (made if cls is Model else {}, made.get("$defs", {}).get("Model", {})):
        if model:
            _with_table(model)
    return {"$schema": DIALECT, **made}


def _as_read(job: Schema) -> None:
    """Bring the schema of the class to what `Job.load` reads: names for models, `tune` gives the batch."""
    properties, parts = job["properties"], job["$defs"]
    for name, held in properties.items():
        # A section is left out or a mapping; None is how Python says the former.
        properties[name] = next((o for o in held.get("anyOf", []) if o != {"type": "null"}), held)
    named = [{"enum": names("models")}, {"type": "string", "pattern": r"\.json$"}]
    properties["model"] = {"description": MODEL_HELP, "anyOf": [*named, {"$ref": "#/$defs/Model"}]}
    device = [{"enum": names("devices")}, {"type": "string", "pattern": r"\.(json|ya?ml)$"}]
    for part in parts.values():
        if "device" in part.get("properties", {}):
            part["properties"]["device"]["anyOf"] = device
    batch = parts["Plan"].pop("required")
    job["allOf"] = [
        {"if": {"not": {"required": ["tune"]}}, "then": {"properties": {"plan": {"required": batch}}}},
    ]
    values = parts["Plan"]["properties"]
    listed = {
        knob: {"type": "array", "minItems": 1, "maxItems": MAX_KNOB_VALUES, "items": values[knob]} for knob in KNOBS
    }
    parts["Tune"]["properties"]["knobs"] |= {"properties": listed, "additionalProperties": False}


def _with_table(model: Schema) -> None:
    """Let a layer table, or its path, stand for the dimensions."""
    model["properties"]["table"] = {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/LayerTable"}]}
    model["anyOf"] = [{"required": model.pop("required")}, {"required": ["table"]}]


def sections() -> dict[str, type]:
    """Return the class of every section of a job file, by its key."""
    return {name: cls for name, hint in Job.__annotations__.items() if (cls := class_of(hint))}
