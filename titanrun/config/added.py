"""Fields that are added to config classes which know nothing of them: mixed into subclasses, so that the classes themselves stay."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar, cast

from titanrun.config.base import Config
from titanrun.config.fields import former_names, section
from titanrun.config.shape import accepts_null, bare, is_slot

C = TypeVar("C", bound=Config)
Additions = Sequence[tuple[tuple[str, ...], "type[AddedFields]"]]


class AddedFields(Config):
    """Fields for a section, or for the top level, of a recipe; each needs a default. Validators in it see the whole section."""

    adds_to: ClassVar[str] = ""
    """Dotted path of the section; empty: the top level, where a field may hold a section of its own."""

    # no methods: a field of the section that had the name of one would take it for its default


def steps_to(added: type[AddedFields]) -> tuple[str, ...]:
    """The keys on the way to the section that it adds to."""
    return tuple(filter(None, added.adds_to.split(".")))


def misfits(model: type[Config], added: type[AddedFields]) -> Iterator[str]:
    """Why `added` cannot be added to `model`: words that follow the name of who adds it."""
    holder: type[Config] | None = model
    for step in steps_to(added):
        holder = None if holder is None else section_class(holder, step)
    if holder is None:
        yield f"adds fields to '{added.adds_to}', which is no section"
        return
    for name, field in added.model_fields.items():
        path = ".".join((*steps_to(added), name))
        if name in holder.model_fields:
            yield f"adds {path}, which is there already"
        elif field.is_required():
            yield f"adds {path} without a default, and recipes that say nothing of it would be wrong"


def section_class(model: type[Config], name: str) -> type[Config] | None:
    """The class of the section `name` of a config; None where that is no section."""
    field = model.model_fields.get(name)
    inner = None if field is None else bare(field.annotation)
    return (
        inner
        if isinstance(inner, type) and issubclass(inner, Config) and not is_slot(inner)
        else None
    )


def extended(
    model: type[C], additions: Additions, annotations: Mapping[str, Any] | None = None
) -> type[C]:
    """A subclass of `model` that has the added fields as well, where their steps lead.

    Args:
        additions: what is added, with the keys that lead there from `model`.
        annotations: other types of fields of `model`, whose declarations stay.
    """
    here = [added for steps, added in additions if not steps]
    below: dict[str, list[tuple[tuple[str, ...], type[AddedFields]]]] = {}
    for steps, added in additions:
        if steps:
            below.setdefault(steps[0], []).append((steps[1:], added))
    types: dict[str, Any] = dict(annotations or {})
    fields: dict[str, Any] = {name: model.model_fields[name] for name in types}
    for name, inside in below.items():
        field, inner = model.model_fields[name], section_class(model, name)
        assert inner is not None, "misfits are refused before"
        larger = extended(inner, inside)
        types[name] = larger | None if accepts_null(field.annotation) else larger
        is_made = not field.is_required() and field.default_factory is not None
        fields[name] = section(larger, was=former_names(field)) if is_made else field
    # documentation is looked up by module and name, which are those of the class that is extended
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
