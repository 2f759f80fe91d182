"""Field descriptions for people: accepted values, range, default and an example."""

from collections.abc import Iterator
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from annotated_types import BaseMetadata, Ge, GroupedMetadata, Gt, Le, Lt, MinLen, MultipleOf
from pydantic.fields import FieldInfo

from titanrun.config import registry
from titanrun.config.base import ComponentConfig, Config, dump_value
from titanrun.config.error_messages import add_article
from titanrun.config.field_docs import get_class_summary, get_field_docs
from titanrun.config.fields import FieldMetadata, find_field_metadata, is_secret
from titanrun.config.number_messages import format_bound_number
from titanrun.config.pluralize import make_singular
from titanrun.config.serialize import format_readable_scalar, to_flow_yaml
from titanrun.config.suggest import format_word_list
from titanrun.config.type_introspection import (
    accepts_auto,
    accepts_null,
    find_item_type,
    get_literal_values,
    is_slot,
    unwrap_annotation,
)
from titanrun.config.types import AUTO
from titanrun.config.units import UnitKind

WORDS = {int: "whole number", float: "number", str: "text", NoneType: "null"}
UNINFORMATIVE_DEFAULTS: tuple[Any, ...] = (None, AUTO, "", [])
CHANGE_CLASS_MEANINGS = {
    "numerics": "numerics: a change moves the loss curve",
    "performance": "performance: a change moves speed or memory, and the loss by rounding at most",
    "bookkeeping": "bookkeeping: no tensor depends on it",
}


@dataclass(frozen=True, slots=True)
class FieldDescription:
    """Description of one field of a config class.

    `default` is None if the field is required or only holds a section.
    """

    name: str
    type: str
    range: str
    default: str | None
    is_required: bool
    metadata: FieldMetadata | None
    text: str

    @property
    def unit(self) -> str:
        """Unit of the number."""
        return (self.metadata.unit if self.metadata else None) or ""

    @property
    def default_text(self) -> str:
        """`required`, or the default with its unit."""
        if self.is_required:
            return "required"
        counted = self.unit and self.default is not None and self.default[-1].isdigit()
        unit = make_singular(self.unit) if self.default in ("1", "1.0") else self.unit
        return f"{self.default} {unit}" if counted else self.default or ""

    @property
    def change(self) -> str:
        """Change class of the field."""
        return self.metadata.change if self.metadata else ""


def describe_fields(config: type[Config]) -> list[FieldDescription]:
    """Describe every field of a config class except the `name` of a component (its title)."""
    texts = get_field_docs(config)
    hidden = {"name"} if issubclass(config, ComponentConfig) else set()
    return [
        describe_field(name, field, texts.get(name, ""))
        for name, field in config.model_fields.items()
        if name not in hidden
    ]


def describe_field(name: str, field: FieldInfo, text: str) -> FieldDescription:
    """Describe one field."""
    return FieldDescription(
        name,
        format_secret_type(field) if is_secret(field) else format_type(get_annotated_type(field)),
        format_range(field),
        None
        if field.is_required() or is_section_type(field.annotation)
        else to_flow_yaml(shorten_component(get_default_data(field))),
        field.is_required(),
        find_field_metadata(field),
        text or get_section_summary(field),
    )


def get_annotated_type(field: FieldInfo) -> Any:
    """Return the type of a field, annotated with its pydantic metadata."""
    return Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation


def format_secret_type(field: FieldInfo) -> str:
    """Return the accepted values of a secret field."""
    return format_word_list(["${env:NAME}, a secret"] + ["null"] * accepts_null(field.annotation))


def get_section_summary(field: FieldInfo) -> str:
    """Return the docstring of the section or slot, for a field without its own description."""
    inner = find_item_type(field.annotation) or unwrap_annotation(field.annotation)
    is_config = isinstance(inner, type) and issubclass(inner, Config)
    return get_class_summary(inner) if is_config else ""


def is_section_type(annotation: Any) -> bool:
    """Return whether a type is that of a nested section, not of a component."""
    inner = unwrap_annotation(annotation)
    return isinstance(inner, type) and issubclass(inner, Config) and not is_slot(inner)


def format_type(annotation: Any) -> str:
    """Return the accepted values of a type: `whole number or auto`, `list of text`."""
    words = format_type_alternatives(annotation)
    words += [AUTO] if accepts_auto(annotation) else []
    words += ["null"] if accepts_null(annotation) else []
    return format_word_list(words, max_words=99)


def format_type_alternatives(annotation: Any) -> list[str]:
    """Return the alternatives of a type in words, except `auto` and null."""
    inner, item = unwrap_annotation(annotation), find_item_type(annotation)
    kind = find_unit_kind(annotation)
    if kind is not None:
        return ["whole number"] * kind.accepts_number + [f"text such as {kind.example}"]
    if item is not None:
        return ["list of sections" if is_section_type(item) else f"list of {format_type(item)}"]
    if is_section_type(inner):
        return ["section"]
    if is_slot(inner):
        return registry.get_choice_names(inner) or [
            f"{add_article(inner.slot)} (none is built yet)"
        ]
    if inner is bool:
        return ["true", "false"]
    return [format_readable_scalar(option) for option in get_literal_values(inner)] or [
        WORDS.get(inner, getattr(inner, "__name__", str(inner)))
    ]


def find_unit_kind(annotation: Any) -> UnitKind | None:
    """Return the kind of unit in which a type's values are written.

    Return None for lists and for types without units.
    """
    if get_origin(annotation) is Annotated:
        found = next((item for item in annotation.__metadata__ if isinstance(item, UnitKind)), None)
        return found or find_unit_kind(get_args(annotation)[0])
    return (
        next(filter(None, map(find_unit_kind, get_args(annotation))), None)
        if get_origin(annotation) in (Union, UnionType)
        else None
    )


def format_range(field: FieldInfo) -> str:
    """Return the bounds of a field: `above 0`, `at least 0 and below 1`; empty without bounds."""
    inside = [format_bound(bound) for bound in iter_type_bounds(field.annotation)]
    each = "each " if find_item_type(field.annotation) is not None and any(inside) else ""
    outside = [format_bound(bound) for bound in flatten_bounds(field.metadata)]
    return each + " and ".join(filter(None, [*inside, *outside]))


def iter_type_bounds(annotation: Any) -> Iterator[BaseMetadata]:
    """Yield the bounds that are declared inside a type."""
    if get_origin(annotation) is Annotated:
        yield from flatten_bounds(annotation.__metadata__)
    if get_literal_values(annotation) == ():
        for part in get_args(annotation):
            if get_origin(part) is not None:
                yield from iter_type_bounds(part)


def flatten_bounds(metadata: Any) -> Iterator[BaseMetadata]:
    """Yield bounds one by one; an interval consists of two."""
    for item in metadata:
        if isinstance(item, GroupedMetadata):
            yield from flatten_bounds(item)
        elif isinstance(item, BaseMetadata):
            yield item


def format_bound(bound: BaseMetadata) -> str:
    """Format one bound in words."""
    if isinstance(bound, MinLen):
        return "not empty" if bound.min_length else ""
    for kind, words, key in (
        (Gt, "above", "gt"),
        (Ge, "at least", "ge"),
        (Lt, "below", "lt"),
        (Le, "at most", "le"),
    ):
        if isinstance(bound, kind):
            return f"{words} {format_bound_number(getattr(bound, key))}"
    return f"a multiple of {bound.multiple_of}" if isinstance(bound, MultipleOf) else ""


def get_default_data(field: FieldInfo) -> Any:
    """Return the plain data of a field's default."""
    return dump_value(field.get_default(call_default_factory=True, validated_data={}))


def shorten_component(value: Any) -> Any:
    """Return a component by its name alone, if it may be written so."""
    return value["name"] if isinstance(value, dict) and "name" in value else value


def get_example_value(field: FieldInfo) -> Any:
    """Return an accepted value: a declared example, else one that differs from the default."""
    if field.examples:
        return field.examples[0]
    setting, allowed = find_field_metadata(field), get_literal_values(field.annotation)
    default = None if field.is_required() else shorten_component(get_default_data(field))
    if setting is not None and setting.not_built is not None:
        return default
    if unwrap_annotation(field.annotation) is bool:
        return not default if default != AUTO else True
    if allowed:
        return next((option for option in allowed if option != default), default)
    if default not in UNINFORMATIVE_DEFAULTS:
        return default
    slot = find_item_type(field.annotation) or unwrap_annotation(field.annotation)
    if is_slot(slot) and registry.get_choice_names(slot):
        name = get_component_example(slot)
        return [name] if find_item_type(field.annotation) else name
    return default


def get_component_example(slot: type[ComponentConfig]) -> Any:
    """Return the first choice of a slot with its required fields."""
    name, choice = next(iter(registry.load_choices(slot).items()))
    needed = {
        key: get_example_value(field)
        for key, field in choice.model_fields.items()
        if field.is_required()
    }
    return {"name": name, **needed} if needed else name
