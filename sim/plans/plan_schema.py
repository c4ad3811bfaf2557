"""JSON Schema of the plan file: the job's, and what stands beside it."""

from sim.plans.plan_file import PlanRecord
from sim.specs import Job
from sim.specs.schema import Schema, file_schema


def plan_schema() -> Schema:
    """Return the JSON Schema (draft 2020-12); that degrees, stages and order are the plan's own it cannot say."""
    job, record = file_schema(Job), file_schema(PlanRecord)
    return record | {
        "title": "PlanFile",
        "properties": job["properties"] | record["properties"],
        "required": ["model", "cluster", "plan", *record["required"]],
        "$defs": job["$defs"] | record["$defs"],
    }
