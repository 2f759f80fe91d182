"""Stricter pydantic validation: rewriting of the core schema of each config class.

This is the single place that closes the gaps of pydantic's strict mode.
"""

from collections.abc import Collection
from typing import Any

from pydantic_core import PydanticCustomError, core_schema

from titanrun.config.fields import SECRET

INT64_MAX = 2**63 - 1
WRAPPER_TYPES = (
    "default",
    "nullable",
    "function-wrap",
    "function-before",
    "function-after",
    "model-field",
    "definitions",
)
ACCEPTED_TYPES = ("str", "bool", "none", "model", "definition-ref", "function-plain")


def make_strict(schema: Any, location: str, secrets: Collection[str] = ()) -> Any:
    """Return the schema with stricter types.

    It accepts whole floats for integers, int64, finite floats, exactly typed literals, and lists
    for tuples. The fields named in `secrets` accept only `${env:NAME}`.

    Raises TypeError for types that a config must not hold: `Any`, raw unions, lists, dicts, enums,
    paths.
    """
    kind = schema["type"]
    if kind in ("model", "model-fields"):
        return make_fields_strict(schema, location, secrets)
    if kind in ACCEPTED_TYPES:
        return schema
    if kind in WRAPPER_TYPES:
        return {**schema, "schema": make_strict(schema["schema"], location)}
    if kind == "int":
        return core_schema.no_info_before_validator_function(to_whole_int64, schema)
    if kind == "float":
        return {"allow_inf_nan": False, **schema}
    if kind == "literal":
        return make_literal_strict(schema)
    if kind == "tuple":
        return {
            **schema,
            "strict": False,
            "items_schema": [make_strict(item, location) for item in schema["items_schema"]],
        }
    raise TypeError(
        f"{location}: a config cannot hold a {kind}; use numbers, text, literals, tuples, configs, "
        "`X | None` or `OrAuto[X]`"
    )


def make_fields_strict(schema: Any, location: str, secrets: Collection[str]) -> Any:
    """Return the schema of a model with stricter fields."""
    if schema["type"] == "model":
        return {**schema, "schema": make_fields_strict(schema["schema"], location, secrets)}
    if schema["type"] != "model-fields":
        return (
            {**schema, "schema": make_fields_strict(schema["schema"], location, secrets)}
            if "schema" in schema
            else schema
        )
    fields = {
        name: make_strict(field, f"{location}.{name}") for name, field in schema["fields"].items()
    }
    return {
        **schema,
        "fields": fields | {name: restrict_to_secret_reference(fields[name]) for name in secrets},
    }


def restrict_to_secret_reference(schema: Any) -> Any:
    """Return a field schema that rejects everything except a reference.

    The check runs before other validation, which would print the value.
    """
    if schema["type"] in ("model-field", "default"):
        return {**schema, "schema": restrict_to_secret_reference(schema["schema"])}
    return core_schema.no_info_before_validator_function(check_secret_reference, schema)


def check_secret_reference(value: Any) -> Any:
    """Return `${env:NAME}`, or null if the field accepts it."""
    if value is None or (isinstance(value, str) and SECRET.fullmatch(value)):
        return value
    raise PydanticCustomError("secret", "not a reference")


def to_whole_int64(value: Any) -> Any:
    """Convert a whole float such as 1e6 to an integer and reject values beyond int64 (10**30).

    Booleans and text are returned unchanged, to be rejected by the type.
    """
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is int and not -INT64_MAX - 1 <= value <= INT64_MAX:
        raise PydanticCustomError("int64", "does not fit 64 bits")
    return value


def make_literal_strict(schema: Any) -> Any:
    """Return the schema of a literal that compares types too.

    `Literal[1]` accepts neither True nor 1.0: pydantic compares with ==, but in a recipe the type
    matters.
    """
    expected = schema["expected"]
    if all(isinstance(value, str) for value in expected):
        return schema

    def same_type(value: Any) -> Any:
        """Return the value if it equals a literal of the same type."""
        if not any(type(value) is type(option) and value == option for option in expected):
            shown = " or ".join(map(repr, expected))
            raise PydanticCustomError("literal_error", "expected {expected}", {"expected": shown})
        return value

    return core_schema.no_info_before_validator_function(same_type, schema)
