"""All JSON Schemas by name: what `titanrun schema` prints and the folder schemas/ holds."""

import json
from collections.abc import Callable
from typing import Any

from titanrun.recipe.output_schemas import (
    metrics_schema,
    problem_schema,
    run_schema,
    sources_schema,
    status_schema,
)
from titanrun.recipe.schema import recipe_schema
from titanrun.recipe.sweep_schema import sweep_schema

SCHEMAS: dict[str, Callable[[], dict[str, Any]]] = {
    "recipe": recipe_schema,
    "sweep": sweep_schema,
    "problem": problem_schema,
    "run": run_schema,
    "status": status_schema,
    "metrics": metrics_schema,
    "sources": sources_schema,
}


def schema_text(name: str) -> str:
    """One schema as its file holds it."""
    return json.dumps(SCHEMAS[name](), indent=2, ensure_ascii=False) + "\n"


def file_name(name: str) -> str:
    """The file of a schema."""
    return f"{name}.schema.json"
