"""JSON Schema of sweep files."""

from typing import Any

from titanrun.recipe.schemas.output_schemas import add_description, build_object_schema
from titanrun.recipe.schemas.recipe_schema import DIALECT, SchemaBuilder
from titanrun.sweep.config import SearchConfig, SweepConfig

Schema = dict[str, Any]


def build_sweep_schema() -> Schema:
    """Return the schema of a sweep file: its settings, and the values it tries by path."""
    linker = SchemaBuilder()
    root = linker.build_config_schema(SweepConfig)
    points: Schema = {
        "type": "array",
        "minItems": 1,
        "items": {"type": "object", "minProperties": 1},
    }
    lists = build_path_mapping_schema({"type": "array", "minItems": 1})
    root["properties"] |= {
        "grid": add_description(lists, "Every combination of values."),
        "zip": add_description(
            lists,
            "The first values together, the second values together, and so on; "
            "all lists have the same length.",
        ),
        "list": add_description(points, "Explicit points, each a mapping of paths to values."),
        "random": add_description(
            random_schema(), "Randomly sampled points, the same ones for the same seed."
        ),
        "search": add_description(
            build_search_schema(linker),
            "Points that Optuna samples in sequence, based on the results of earlier trials.",
        ),
    }
    root |= {
        "required": ["version", "recipe"],
        "anyOf": [{"required": [name]} for name in ("grid", "zip", "list", "random", "search")],
    }
    return {
        "$schema": DIALECT,
        "title": "titanrun sweep",
        **root,
        "$defs": dict(sorted(linker.definitions.items())),
    }


def build_search_schema(linker: SchemaBuilder) -> Schema:
    """Return the schema of a search: its settings, distributions and first points."""
    schema = linker.build_config_schema(SearchConfig)
    first: Schema = {"type": "array", "items": {"type": "object", "minProperties": 1}}
    schema["properties"] |= {
        "values": build_path_mapping_schema(build_draw_schema()),
        "first": add_description(first, "Points that are tried first."),
    }
    return {**schema, "required": ["count", "values"]}


def random_schema() -> Schema:
    """Return the schema of random draws: their count, seed and distributions."""
    return build_object_schema(
        {
            "count": {"type": "integer", "minimum": 1},
            "seed": {"type": "integer", "minimum": 0},
            "values": build_path_mapping_schema(build_draw_schema()),
        },
        optional=("seed",),
    )


def build_draw_schema() -> Schema:
    """Return the schema of one distribution."""
    bounds: Schema = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
    draws = {
        "uniform": add_description(bounds, "A number between two bounds, uniformly distributed."),
        "log_uniform": add_description(
            bounds, "A number between two positive bounds, uniformly distributed on a log scale."
        ),
        "integer": add_description(
            {**bounds, "items": {"type": "integer"}}, "An integer, both bounds included."
        ),
        "choice": add_description({"type": "array", "minItems": 1}, "One of these values."),
    }
    return {
        **build_object_schema(draws, optional=tuple(draws)),
        "minProperties": 1,
        "maxProperties": 1,
    }


def build_path_mapping_schema(value: Schema) -> Schema:
    """Return the schema of a mapping of dotted paths to values, or of sections to mappings."""
    below: Schema = {"type": "object", "minProperties": 1}
    dotted = {
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"pattern": r"^[A-Za-z_][A-Za-z0-9_.\[\]-]*$"},
    }
    return {
        **dotted,
        "patternProperties": {r"\.": value},
        "additionalProperties": {"anyOf": [value, below]},
    }
