"""What a config class expects where: the fields of each mapping in the data, slots followed by the name that is written."""

from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from titanrun.config import registry
from titanrun.config.base import ComponentConfig, Config
from titanrun.config.problems import DataPath


def is_slot(annotation: Any) -> bool:
    """Whether a type stands for the choices of a slot."""
    return (
        isinstance(annotation, type)
        and issubclass(annotation, ComponentConfig)
        and bool(annotation.__dict__.get("is_slot"))
    )


def bare(annotation: Any) -> Any:
    """The type behind Annotated, `| None` and `| "auto"`."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return bare(get_args(annotation)[0])
    if origin in (Union, UnionType):
        kept = [
            part
            for part in get_args(annotation)
            if part is not NoneType and get_args(part) != ("auto",)
        ]
        return bare(kept[0]) if kept else annotation
    return annotation


def accepts_null(annotation: Any) -> bool:
    """Whether `| None` is part of a type."""
    return NoneType in get_args(annotation)


def accepts_auto(annotation: Any) -> bool:
    """Whether `| "auto"` is part of a type."""
    return get_args(annotation) == ("auto",) or any(
        accepts_auto(part) for part in get_args(annotation) if not isinstance(part, str)
    )


def item_type(annotation: Any) -> Any:
    """The type of the items of `tuple[X, ...]`, else None."""
    inner = bare(annotation)
    return bare(get_args(inner)[0]) if get_origin(inner) is tuple else None


def options(annotation: Any) -> tuple[Any, ...]:
    """The values of a Literal behind `annotation`, else ()."""
    inner = bare(annotation)
    return get_args(inner) if get_origin(inner) is Literal else ()


def chosen(slot: type[ComponentConfig], data: Any) -> type[ComponentConfig] | None:
    """The choice of a slot that `data` names, or its default; None where the name is unknown."""
    name = (
        data.get("name", slot.default_name)
        if isinstance(data, dict)
        else data
        if isinstance(data, str)
        else slot.default_name
    )
    try:
        return registry.choice(slot, name) if isinstance(name, str) else None
    except KeyError:
        return None


def config_at(model: type[Config], data: Any, path: DataPath) -> type[Config] | None:
    """The config class that describes the mapping at `path` of `data`."""
    if not path:
        return model
    annotation = annotation_at(model, data, path)
    value = value_at(data, path)
    if is_slot(annotation):
        return chosen(annotation, value)
    return annotation if isinstance(annotation, type) and issubclass(annotation, Config) else None


def annotation_at(model: type[Config], data: Any, path: DataPath) -> Any:
    """The bare type of what stands at `path`; None where the schema has nothing there."""
    step = path[-1]
    if isinstance(step, int):
        parent = field_at(model, data, path[:-1])
        return None if parent is None else item_type(parent.annotation)
    field = field_at(model, data, path)
    return None if field is None else bare(field.annotation)


def field_at(model: type[Config], data: Any, path: DataPath) -> FieldInfo | None:
    """The declaration of the field at `path`; None where the schema has no such field."""
    if not path or isinstance(path[-1], int):
        return None
    holder = config_at(model, data, path[:-1])
    return None if holder is None else holder.model_fields.get(path[-1])


def value_at(data: Any, path: DataPath) -> Any:
    """What stands at `path` of plain data, or None."""
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
