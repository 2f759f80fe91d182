"""All JSON Schemas by name, as `titanrun schema` prints them and schemas/ holds them."""

import json
from collections.abc import Callable
from typing import Any

from titanrun.recipe.schemas.output_schemas import (
    build_metrics_schema,
    build_problem_schema,
    build_run_schema,
    build_sources_schema,
    build_status_schema,
)
from titanrun.recipe.schemas.recipe_schema import build_recipe_schema
from titanrun.recipe.schemas.sweep_schema import build_sweep_schema

SCHEMAS: dict[str, Callable[[], dict[str, Any]]] = {
    "recipe": build_recipe_schema,
    "sweep": build_sweep_schema,
    "problem": build_problem_schema,
    "run": build_run_schema,
    "status": build_status_schema,
    "metrics": build_metrics_schema,
    "sources": build_sources_schema,
}


def format_schema(name: str, base_url: str | None = None) -> str:
    """Return one schema as the text of its file.

    `base_url` is where the files are published; without one a schema has no `$id`, since editors
    fetch what it names.
    """
    schema = SCHEMAS[name]()
    if base_url is not None:
        identity = f"{base_url.rstrip('/')}/{get_schema_file_name(name)}"
        schema = {"$schema": schema["$schema"], "$id": identity, **schema}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def get_schema_file_name(name: str) -> str:
    """Return the file name of a schema."""
    return f"{name}.schema.json"
