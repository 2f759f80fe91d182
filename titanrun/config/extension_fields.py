"""Fields that extensions add to config classes, mixed into subclasses of these classes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar, cast

from titanrun.config.base import Config
from titanrun.config.fields import get_former_names, section
from titanrun.config.type_introspection import accepts_null, is_slot, unwrap_annotation

C = TypeVar("C", bound=Config)
Extensions = Sequence[tuple[tuple[str, ...], "type[ExtensionFields]"]]


class ExtensionFields(Config):
    """Additional fields of a recipe section or of the top level; each needs a default.

    Validators in it see the whole section.
    """

    adds_to: ClassVar[str] = ""
    """Dotted path of the section. Empty: the top level, where a field may hold a new section."""

    # no methods: a field of the section with the same name would use the method as its default


def get_section_path(extension: type[ExtensionFields]) -> tuple[str, ...]:
    """Return the keys that lead to the section of an extension."""
    return tuple(filter(None, extension.adds_to.split(".")))


def find_extension_problems(model: type[Config], extension: type[ExtensionFields]) -> Iterator[str]:
    """Yield the reasons why `extension` cannot be added to `model`.

    Each is a phrase to follow the name of the extension.
    """
    holder: type[Config] | None = model
    for step in get_section_path(extension):
        holder = None if holder is None else find_section_class(holder, step)
    if holder is None:
        yield f"adds fields to '{extension.adds_to}', which is not a section"
        return
    for name, field in extension.model_fields.items():
        path = ".".join((*get_section_path(extension), name))
        if name in holder.model_fields:
            yield f"adds {path}, which already exists"
        elif field.is_required():
            yield f"adds {path} without a default, so recipes that do not set it would be invalid"


def find_section_class(model: type[Config], name: str) -> type[Config] | None:
    """Return the class of the section `name` of a config, or None if it is not a section."""
    field = model.model_fields.get(name)
    inner = None if field is None else unwrap_annotation(field.annotation)
    return (
        inner
        if isinstance(inner, type) and issubclass(inner, Config) and not is_slot(inner)
        else None
    )


def extend_config_class(
    model: type[C], extensions: Extensions, annotations: Mapping[str, Any] | None = None
) -> type[C]:
    """Return a subclass of `model` that also has the added fields, at their paths.

    Args:
        model: The config class to extend.
        extensions: The added fields, with the keys that lead there from `model`.
        annotations: Other types for fields of `model`, whose declarations stay.
    """
    here = [added for steps, added in extensions if not steps]
    below: dict[str, list[tuple[tuple[str, ...], type[ExtensionFields]]]] = {}
    for steps, added in extensions:
        if steps:
            below.setdefault(steps[0], []).append((steps[1:], added))
    types: dict[str, Any] = dict(annotations or {})
    fields: dict[str, Any] = {name: model.model_fields[name] for name in types}
    for name, inside in below.items():
        field, inner = model.model_fields[name], find_section_class(model, name)
        assert inner is not None, "find_extension_problems runs before"
        larger = extend_config_class(inner, inside)
        types[name] = larger | None if accepts_null(field.annotation) else larger
        is_made = not field.is_required() and field.default_factory is not None
        fields[name] = section(larger, was=get_former_names(field)) if is_made else field
    # docs are looked up by module and name, which therefore stay those of the extended class
    same = {
        "__module__": model.__module__,
        "__qualname__": model.__qualname__,
        "__doc__": model.__doc__,
    }
    metaclass: Any = type(model)
    return cast(
        "type[C]",
        metaclass(
            model.__name__, (*reversed(here), model), {**same, "__annotations__": types, **fields}
        ),
    )
