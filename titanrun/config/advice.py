"""What to write in the place of a value, known from the field it was written for."""

from typing import Any

from pydantic.fields import FieldInfo

from titanrun.config import registry
from titanrun.config.base import ComponentConfig, Config, dump_value
from titanrun.config.emit import flow
from titanrun.config.shape import accepts_auto, accepts_null, bare, is_slot
from titanrun.config.suggest import listing
from titanrun.config.types import AUTO

ENABLE = "enable"
# what other languages, and people, write for null
NULL_WORDS = {"none", "nil", "off", "no", "false", "disabled", "never"}
DEFAULT_WORDS = {"default", "auto"}


def advice(field: FieldInfo | None, value: Any, *, is_empty: bool) -> str | None:
    """What to write instead of `value`; None where only the author knows. `is_empty` says that nothing stands behind the key."""
    if field is None:
        return None
    inner = bare(field.annotation)
    if isinstance(inner, type) and issubclass(inner, Config):
        return advice_on_mapping(inner, value, is_empty=is_empty, is_required=field.is_required())
    if value is None:
        return advice_on_nothing(field)
    if type(value) is int and value == -1:  # how other recipes write automatic, or off
        return (
            f"write {AUTO}"
            if accepts_auto(field.annotation)
            else "write null"
            if accepts_null(field.annotation)
            else None
        )
    word = "false" if value is False else value.lower() if isinstance(value, str) else None
    if word == "null" and accepts_null(field.annotation):
        return "write null without quotes"
    if word in NULL_WORDS and accepts_null(field.annotation):
        return "write null"
    return advice_on_nothing(field) if word in DEFAULT_WORDS else None


def advice_on_nothing(field: FieldInfo) -> str | None:
    """What leaving a value out comes to."""
    default = (
        None
        if field.is_required()
        else dump_value(field.get_default(call_default_factory=True, validated_data={}))
    )
    return (
        None
        if default is None
        else f"write a value, or leave it out: the default is {flow(default)}"
    )


def path_advice(slot: type[ComponentConfig], path: str) -> str | None:
    """Where a path goes that was written in the place of a component's name."""
    known = registry.choices(slot)
    # in the order they are declared: the plainest comes first
    takers = sorted(
        (name for name in known if "path" in known[name].model_fields),
        key=[*registry.loaded_names(slot)].index,
    )
    return (
        f"write {{name: {takers[0]}, path: {path}}}; names that take a path: {listing(takers, last='and')}"
        if takers
        else None
    )


def advice_on_mapping(
    inner: type[Config], value: Any, *, is_empty: bool, is_required: bool
) -> str | None:
    """What to write where a section or a component belongs."""
    if is_empty:
        return "write its keys below it, indented" + ("" if is_required else ", or leave it out")
    if isinstance(value, list):
        return "remove the brackets or dashes: this is one mapping, not a list of them"
    if isinstance(value, bool) and ENABLE in inner.model_fields:
        return f"write {{{ENABLE}: {flow(value)}}}"
    if value is None or is_slot(inner):
        return None
    return "write its keys below it, indented, one `key: value` a line"
