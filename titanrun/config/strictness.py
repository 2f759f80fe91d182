"""Closes the holes of pydantic's strict mode in one place, by rewriting the core schema of each config class."""

from collections.abc import Collection
from typing import Any

from pydantic_core import PydanticCustomError, core_schema

from titanrun.config.fields import SECRET

INT64_MAX = 2**63 - 1
HOLDS_ONE = (
    "default",
    "nullable",
    "function-wrap",
    "function-before",
    "function-after",
    "model-field",
    "definitions",
)
ACCEPTED = ("str", "bool", "none", "model", "definition-ref", "function-plain")


def tighten(schema: Any, where: str, secrets: Collection[str] = ()) -> Any:
    """The schema with: whole floats for integers, int64, finite floats, exactly typed literals, lists for tuples; and for the fields
    named in `secrets` nothing but `${env:NAME}`.

    Raises TypeError for what a config must not hold: `Any`, raw unions, lists, dicts, enums, paths.
    """
    kind = schema["type"]
    if kind in ("model", "model-fields"):
        return tighten_fields(schema, where, secrets)
    if kind in ACCEPTED:
        return schema
    if kind in HOLDS_ONE:
        return {**schema, "schema": tighten(schema["schema"], where)}
    if kind == "int":
        return core_schema.no_info_before_validator_function(whole_number, schema)
    if kind == "float":
        return {"allow_inf_nan": False, **schema}
    if kind == "literal":
        return exact_literal(schema)
    if kind == "tuple":
        return {
            **schema,
            "strict": False,
            "items_schema": [tighten(item, where) for item in schema["items_schema"]],
        }
    raise TypeError(
        f"{where}: a config cannot hold a {kind}; use numbers, text, literals, tuples, configs, `X | None` or `OrAuto[X]`"
    )


def tighten_fields(schema: Any, where: str, secrets: Collection[str]) -> Any:
    """The schema of a model with each of its fields tightened."""
    if schema["type"] == "model":
        return {**schema, "schema": tighten_fields(schema["schema"], where, secrets)}
    if schema["type"] != "model-fields":
        return (
            {**schema, "schema": tighten_fields(schema["schema"], where, secrets)}
            if "schema" in schema
            else schema
        )
    fields = {name: tighten(field, f"{where}.{name}") for name, field in schema["fields"].items()}
    return {**schema, "fields": fields | {name: kept_secret(fields[name]) for name in secrets}}


def kept_secret(schema: Any) -> Any:
    """The schema of a field that refuses everything but a reference before anything looks at it, and so prints it."""
    if schema["type"] in ("model-field", "default"):
        return {**schema, "schema": kept_secret(schema["schema"])}
    return core_schema.no_info_before_validator_function(only_reference, schema)


def only_reference(value: Any) -> Any:
    """`${env:NAME}`, or null where the field takes it."""
    if value is None or (isinstance(value, str) and SECRET.fullmatch(value)):
        return value
    raise PydanticCustomError("secret", "not a reference")


def whole_number(value: Any) -> Any:
    """1e6 is a whole number; 10**30 does not fit int64. Booleans and text pass on to be refused by the type."""
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is int and not -INT64_MAX - 1 <= value <= INT64_MAX:
        raise PydanticCustomError("int64", "does not fit 64 bits")
    return value


def exact_literal(schema: Any) -> Any:
    """`Literal[1]` takes neither True nor 1.0: pydantic compares with ==, a recipe means the type too."""
    expected = schema["expected"]
    if all(isinstance(value, str) for value in expected):
        return schema

    def same_type(value: Any) -> Any:
        if not any(type(value) is type(option) and value == option for option in expected):
            shown = " or ".join(map(repr, expected))
            raise PydanticCustomError("literal_error", "expected {expected}", {"expected": shown})
        return value

    return core_schema.no_info_before_validator_function(same_type, schema)
