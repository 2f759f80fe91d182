"""The JSON Schema of sweep files."""

from typing import Any

from titanrun.recipe.output_schemas import described, record
from titanrun.recipe.schema import DIALECT, Linker
from titanrun.sweep.config import SweepConfig

Schema = dict[str, Any]


def sweep_schema() -> Schema:
    """A sweep file: its settings, and the values it tries by path."""
    linker = Linker()
    root = linker.config_schema(SweepConfig)
    bounds: Schema = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
    draws = {
        "uniform": described(bounds, "Any number between two, all alike."),
        "log_uniform": described(
            bounds, "Any number between two above zero, all orders of magnitude alike."
        ),
        "integer": described(
            {**bounds, "items": {"type": "integer"}}, "A whole number, both bounds included."
        ),
        "choice": described({"type": "array", "minItems": 1}, "One of these values."),
    }
    draw: Schema = {**record(draws, optional=tuple(draws)), "minProperties": 1, "maxProperties": 1}
    random = record(
        {
            "count": {"type": "integer", "minimum": 1},
            "seed": {"type": "integer", "minimum": 0},
            "values": by_path(draw),
        },
        optional=("seed",),
    )
    points: Schema = {
        "type": "array",
        "minItems": 1,
        "items": {"type": "object", "minProperties": 1},
    }
    lists = by_path({"type": "array", "minItems": 1})
    root["properties"] |= {
        "grid": described(lists, "Every value with every other."),
        "zip": described(
            lists,
            "The first values together, the second ones together, and so on; as many of each.",
        ),
        "list": described(
            points, "Points that are written out, each a mapping of paths to values."
        ),
        "random": described(random, "Points that are drawn, the same ones for the same seed."),
    }
    root |= {
        "required": ["version", "recipe"],
        "anyOf": [{"required": [name]} for name in ("grid", "zip", "list", "random")],
    }
    return {
        "$schema": DIALECT,
        "title": "titanrun sweep",
        **root,
        "$defs": dict(sorted(linker.definitions.items())),
    }


def by_path(value: Schema) -> Schema:
    """A mapping of paths with dots to values of one kind, or of sections to mappings of theirs."""
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
