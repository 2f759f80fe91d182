"""How a field is declared: its default, its unit, what a change of it means, and whether a resume allows that change."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

# all that a secret field takes
SECRET = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
Change = Literal["numerics", "performance", "bookkeeping"]


@dataclass(frozen=True, slots=True)
class Setting:
    """What a field declares beyond its type."""

    change: Change
    unit: str | None = None
    resume: bool = False
    not_built: str | None = None
    secret: bool = False


def setting_of(field: FieldInfo) -> Setting | None:
    """The declaration of a field; None for a field that only holds other configs."""
    extra = field.json_schema_extra
    if not isinstance(extra, dict) or "x-change" not in extra:
        return None
    known: Any = {
        name: extra[f"x-{name}"]
        for name in ("change", "unit", "resume", "not_built", "secret")
        if f"x-{name}" in extra
    }
    return Setting(**known)


def former_names(field: FieldInfo) -> tuple[str, ...]:
    """What a field was called before, for as long as that is still read."""
    extra = field.json_schema_extra
    names: Any = extra.get("x-was", ()) if isinstance(extra, dict) else ()
    return tuple(names)


def is_secret(field: FieldInfo) -> bool:
    """Whether a field holds a secret."""
    extra = field.json_schema_extra
    return isinstance(extra, dict) and bool(extra.get("x-secret"))


def numerics(default: Any = PydanticUndefined, **options: Any) -> Any:
    """A field whose change moves the loss curve. See `declare` for the options."""
    return declare("numerics", default, **options)


def performance(default: Any = PydanticUndefined, **options: Any) -> Any:
    """A field whose change moves speed or memory, and the loss by rounding at most."""
    return declare("performance", default, **options)


def bookkeeping(default: Any = PydanticUndefined, **options: Any) -> Any:
    """A field that no tensor depends on."""
    return declare("bookkeeping", default, **options)


def declare(
    change: Change,
    default: Any,
    *,
    unit: str | None = None,
    resume: bool = False,
    not_built: str | None = None,
    secret: bool = False,
    examples: list[Any] | None = None,
    was: tuple[str, ...] = (),
) -> Any:
    """A pydantic field that carries its `Setting`. No default: the field is required. A callable default is a factory.

    `not_built` names the capability whose absence makes every value but the default an error. A `secret` field takes `${env:NAME}`
    only, and its component gets the variable's value when the worker builds it. `was` are former names of the field, read for two
    minor releases with a warning.
    """
    extra: dict[str, Any] = {"x-change": change}
    options = {
        "x-unit": unit,
        "x-resume": resume,
        "x-not_built": not_built,
        "x-secret": secret,
        "x-was": list(was),
    }
    extra.update({key: value for key, value in options.items() if value})
    if callable(default):
        return Field(default_factory=default, json_schema_extra=extra, examples=examples)
    return Field(default=default, json_schema_extra=extra, examples=examples)


def section(factory: Callable[[], Any], *, was: tuple[str, ...] = ()) -> Any:
    """A field that holds a nested config, with that config's own defaults where the recipe says nothing."""
    return Field(default_factory=factory, json_schema_extra={"x-was": list(was)} if was else None)


def component(default: Any = PydanticUndefined) -> Any:
    """A field that holds a component: a slot class (its default choice), None, "auto" or () as default; nothing: required."""
    if isinstance(default, type):
        return Field(default_factory=default.default_choice)  # type: ignore[attr-defined]
    return Field(default=default)
