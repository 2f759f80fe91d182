"""Schema lookups for a path in the data: fields of mappings, choices of slots.

Slots are resolved by the name written in the data.
"""

from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from titanrun.config import registry
from titanrun.config.base import ComponentConfig, Config
from titanrun.config.problems import DataPath


def is_slot(annotation: Any) -> bool:
    """Return whether a type represents the choices of a slot."""
    return (
        isinstance(annotation, type)
        and issubclass(annotation, ComponentConfig)
        and bool(annotation.__dict__.get("is_slot"))
    )


def unwrap_annotation(annotation: Any) -> Any:
    """Return the type inside Annotated, `| None` and `| "auto"`."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return unwrap_annotation(get_args(annotation)[0])
    if origin in (Union, UnionType):
        kept = [
            part
            for part in get_args(annotation)
            if part is not NoneType and get_args(part) != ("auto",)
        ]
        return unwrap_annotation(kept[0]) if kept else annotation
    return annotation


def accepts_null(annotation: Any) -> bool:
    """Return whether `| None` is part of a type."""
    return NoneType in get_args(annotation)


def accepts_auto(annotation: Any) -> bool:
    """Return whether `| "auto"` is part of a type."""
    return get_args(annotation) == ("auto",) or any(
        accepts_auto(part) for part in get_args(annotation) if not isinstance(part, str)
    )


def find_item_type(annotation: Any) -> Any:
    """Return the item type of `tuple[X, ...]`, else None."""
    inner = unwrap_annotation(annotation)
    return unwrap_annotation(get_args(inner)[0]) if get_origin(inner) is tuple else None


def get_literal_values(annotation: Any) -> tuple[Any, ...]:
    """Return the values of a Literal inside `annotation`, else ()."""
    inner = unwrap_annotation(annotation)
    return get_args(inner) if get_origin(inner) is Literal else ()


def find_choice_class(slot: type[ComponentConfig], data: Any) -> type[ComponentConfig] | None:
    """Return the choice of a slot that `data` names, or its default.

    Return None if the name is unknown.
    """
    name = (
        data.get("name", slot.default_name)
        if isinstance(data, dict)
        else data
        if isinstance(data, str)
        else slot.default_name
    )
    try:
        return registry.load_choice(slot, name) if isinstance(name, str) else None
    except KeyError:
        return None


def find_config_class(model: type[Config], data: Any, path: DataPath) -> type[Config] | None:
    """Return the config class that describes the mapping at `path` of `data`."""
    if not path:
        return model
    annotation = find_annotation(model, data, path)
    value = find_value(data, path)
    if is_slot(annotation):
        return find_choice_class(annotation, value)
    return annotation if isinstance(annotation, type) and issubclass(annotation, Config) else None


def find_annotation(model: type[Config], data: Any, path: DataPath) -> Any:
    """Return the bare type at `path`, or None if the schema has no such path."""
    step = path[-1]
    if isinstance(step, int):
        parent = find_field_info(model, data, path[:-1])
        return None if parent is None else find_item_type(parent.annotation)
    field = find_field_info(model, data, path)
    return None if field is None else unwrap_annotation(field.annotation)


def find_field_info(model: type[Config], data: Any, path: DataPath) -> FieldInfo | None:
    """Return the declaration of the field at `path`, or None if the schema has no such field."""
    if not path or isinstance(path[-1], int):
        return None
    holder = find_config_class(model, data, path[:-1])
    return None if holder is None else holder.model_fields.get(path[-1])


def find_value(data: Any, path: DataPath) -> Any:
    """Return the value at `path` of plain data, or None."""
    for step in path:
        if isinstance(data, dict):
            data = data.get(step)
        else:
            data = (
                data[step]
                if isinstance(data, list) and isinstance(step, int) and step < len(data)
                else None
            )
    return data
