"""Field declarations: default, unit, change class, and whether a resume may change it."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

# the only value that a secret field accepts
SECRET = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
ChangeClass = Literal["numerics", "performance", "bookkeeping"]


@dataclass(frozen=True, slots=True)
class ReadWhen:
    """Condition for a setting to be read; otherwise a written value has no effect.

    Args:
        rule: id of the rule that warns.
        switch: path of the setting that decides, or `.name` for one beside this setting.
        state: how the switch prevents reading, such as `is false`.
        hint: what to change.
        values: values of the switch with which the setting is read.
        not_values: values of the switch with which it is not read, instead of `values`.
        or_enabled: name of a setting beside it that, if true, also makes it read.
        fact: name of a fact about the whole recipe that also makes it read.
        only_for: values of the setting itself that the condition is about, all if empty.
    """

    rule: str
    switch: str
    state: str
    hint: str
    values: tuple[object, ...] = ()
    not_values: tuple[object, ...] = ()
    or_enabled: str | None = None
    fact: str | None = None
    only_for: tuple[object, ...] = ()


ReadConditions = ReadWhen | tuple[ReadWhen, ...]


@dataclass(frozen=True, slots=True)
class FieldMetadata:
    """Declaration of a field beyond its type."""

    change: ChangeClass
    unit: str | None = None
    resume: bool = False
    not_built: str | None = None
    secret: bool = False
    runs: str | None = None


def find_field_metadata(field: FieldInfo) -> FieldMetadata | None:
    """Return the declaration of a field, or None for a field that only holds other configs."""
    extra = field.json_schema_extra
    if not isinstance(extra, dict) or "x-change" not in extra:
        return None
    known: Any = {
        name: extra[f"x-{name}"]
        for name in ("change", "unit", "resume", "not_built", "secret", "runs")
        if f"x-{name}" in extra
    }
    return FieldMetadata(**known)


def get_former_names(field: FieldInfo) -> tuple[str, ...]:
    """Return the former names of a field that are still read."""
    extra = field.json_schema_extra
    names: Any = extra.get("x-was", ()) if isinstance(extra, dict) else ()
    return tuple(names)


def get_read_conditions(field: FieldInfo) -> tuple[ReadWhen, ...]:
    """Return what must hold for a field to be read, in the order of checking."""
    extra = field.json_schema_extra
    found: Any = extra.get("x-read_when", ()) if isinstance(extra, dict) else ()
    return found if isinstance(found, tuple) else (found,)


def is_secret(field: FieldInfo) -> bool:
    """Return whether a field holds a secret."""
    extra = field.json_schema_extra
    return isinstance(extra, dict) and bool(extra.get("x-secret"))


def get_code_kind(field: FieldInfo) -> Any:
    """Return the kind of code that a field names and that runs: see `titanrun.config.trust`."""
    extra = field.json_schema_extra
    return extra.get("x-runs") if isinstance(extra, dict) else None


def numerics(default: Any = PydanticUndefined, **options: Any) -> Any:
    """Declare a field whose change moves the loss curve. See `field` for the options."""
    return field("numerics", default, **options)


def performance(default: Any = PydanticUndefined, **options: Any) -> Any:
    """Declare a field whose change moves speed or memory, and the loss by rounding at most."""
    return field("performance", default, **options)


def bookkeeping(default: Any = PydanticUndefined, **options: Any) -> Any:
    """Declare a field that no tensor depends on."""
    return field("bookkeeping", default, **options)


def field(
    change: ChangeClass,
    default: Any,
    *,
    unit: str | None = None,
    resume: bool = False,
    not_built: str | None = None,
    secret: bool = False,
    examples: list[Any] | None = None,
    was: tuple[str, ...] = (),
    read_when: ReadConditions = (),
    runs: Literal["command", "folder", "shell"] | None = None,
) -> Any:
    """Declare a pydantic field with its `FieldMetadata`.

    Without a default the field is required. A callable default is a factory.

    `not_built` names the capability whose absence makes every value except the default an error. A
    `secret` field accepts only `${env:NAME}`; its component gets the variable's value when the
    worker builds it. `was` lists former names of the field, read for two minor releases with a
    warning.
        `read_when` says when the field is read. The first condition that fails is reported.
    `runs` says that the value names code, which runs only with the user's consent: the words
    of a command, a folder of tasks, or lines of a shell script.
    """
    extra: dict[str, Any] = {"x-change": change}
    options = {
        "x-unit": unit,
        "x-resume": resume,
        "x-not_built": not_built,
        "x-secret": secret,
        "x-was": list(was),
        "x-read_when": read_when,
        "x-runs": runs,
    }
    extra.update({key: value for key, value in options.items() if value})
    if callable(default):
        return Field(default_factory=default, json_schema_extra=extra, examples=examples)
    return Field(default=default, json_schema_extra=extra, examples=examples)


def section(
    factory: Callable[[], Any], *, was: tuple[str, ...] = (), read_when: ReadConditions = ()
) -> Any:
    """Declare a field that holds a nested config with that config's own defaults."""
    options: dict[str, Any] = {"x-was": list(was), "x-read_when": read_when}
    extra = {key: value for key, value in options.items() if value}
    return Field(default_factory=factory, json_schema_extra=extra or None)


def component(default: Any = PydanticUndefined, *, read_when: ReadConditions = ()) -> Any:
    """Declare a field that holds a component.

    The default is a slot class (its default choice), None, "auto" or (). Without one the field is
    required.
    """
    extra: dict[str, Any] | None = {"x-read_when": read_when} if read_when else None
    if isinstance(default, type):
        choice = default.get_default_choice  # type: ignore[attr-defined]
        return Field(default_factory=choice, json_schema_extra=extra)
    return Field(default=default, json_schema_extra=extra)
