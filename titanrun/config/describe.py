"""A field in words: what it takes and within which range, what stands there by default, and an example."""

from collections.abc import Iterator
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from annotated_types import BaseMetadata, Ge, GroupedMetadata, Gt, Le, Lt, MinLen, MultipleOf
from pydantic.fields import FieldInfo

from titanrun.config import registry
from titanrun.config.base import ComponentConfig, Config, dump_value
from titanrun.config.docs import class_summary, field_docs
from titanrun.config.emit import flow, readable
from titanrun.config.fields import Setting, is_secret, setting_of
from titanrun.config.shape import accepts_auto, accepts_null, bare, is_slot, item_type, options
from titanrun.config.suggest import listing
from titanrun.config.types import AUTO
from titanrun.config.units import UnitKind
from titanrun.config.wording import a, number

WORDS = {int: "whole number", float: "number", str: "text", NoneType: "null"}
NOT_TELLING: tuple[Any, ...] = (None, AUTO, "", [])
MEANING = {
    "numerics": "numerics: a change moves the loss curve",
    "performance": "performance: a change moves speed or memory, and the loss by rounding at most",
    "bookkeeping": "bookkeeping: no tensor depends on it",
}


@dataclass(frozen=True, slots=True)
class Described:
    """One field of a config class in words. `default` is None where the field is required or only holds a section."""

    name: str
    type: str
    range: str
    default: str | None
    required: bool
    setting: Setting | None
    text: str

    @property
    def unit(self) -> str:
        """What the number counts."""
        return (self.setting.unit if self.setting else None) or ""

    @property
    def default_words(self) -> str:
        """`required`, or the default with its unit."""
        if self.required:
            return "required"
        counted = self.unit and self.default is not None and self.default[-1].isdigit()
        return f"{self.default} {self.unit}" if counted else self.default or ""

    @property
    def change(self) -> str:
        """The class of a change."""
        return self.setting.change if self.setting else ""


def described(config: type[Config]) -> list[Described]:
    """Every field of a config class; the `name` of a component, which its title says, is left out."""
    texts = field_docs(config)
    hidden = {"name"} if issubclass(config, ComponentConfig) else set()
    return [
        described_field(name, field, texts.get(name, ""))
        for name, field in config.model_fields.items()
        if name not in hidden
    ]


def described_field(name: str, field: FieldInfo, text: str) -> Described:
    """One field in words."""
    return Described(
        name,
        secret_words(field) if is_secret(field) else type_words(whole_type(field)),
        range_words(field),
        None
        if field.is_required() or is_section(field.annotation)
        else flow(short(default_of(field))),
        field.is_required(),
        setting_of(field),
        text or holder_text(field),
    )


def whole_type(field: FieldInfo) -> Any:
    """The type of a field with what pydantic keeps beside it."""
    return Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation


def secret_words(field: FieldInfo) -> str:
    """What may be written where a secret belongs."""
    return listing(["${env:NAME}, a secret"] + ["null"] * accepts_null(field.annotation))


def holder_text(field: FieldInfo) -> str:
    """What a field without words of its own holds: the docstring of the section or slot."""
    inner = item_type(field.annotation) or bare(field.annotation)
    is_config = isinstance(inner, type) and issubclass(inner, Config)
    return class_summary(inner) if is_config else ""


def is_section(annotation: Any) -> bool:
    """Whether a type is that of a nested section, which is no component."""
    inner = bare(annotation)
    return isinstance(inner, type) and issubclass(inner, Config) and not is_slot(inner)


def type_words(annotation: Any) -> str:
    """What may be written: `whole number or auto`, `adamw or muon`, `list of text`."""
    words = alternatives(annotation)
    words += [AUTO] if accepts_auto(annotation) else []
    words += ["null"] if accepts_null(annotation) else []
    return listing(words, most=99)


def alternatives(annotation: Any) -> list[str]:
    """The words for a type, `auto` and null aside."""
    inner, item = bare(annotation), item_type(annotation)
    kind = unit_kind(annotation)
    if kind is not None:
        return ["whole number"] * kind.takes_number + [f"text such as {kind.example}"]
    if item is not None:
        return [f"list of {type_words(item)}"]
    if is_section(inner):
        return ["section"]
    if is_slot(inner):
        return registry.names(inner) or [f"{a(inner.slot)} (none is built yet)"]
    if inner is bool:
        return ["true", "false"]
    return [readable(option) for option in options(inner)] or [
        WORDS.get(inner, getattr(inner, "__name__", str(inner)))
    ]


def unit_kind(annotation: Any) -> UnitKind | None:
    """How a type's values are written with a unit; None for a type without units, and for lists."""
    if get_origin(annotation) is Annotated:
        found = next((item for item in annotation.__metadata__ if isinstance(item, UnitKind)), None)
        return found or unit_kind(get_args(annotation)[0])
    return (
        next(filter(None, map(unit_kind, get_args(annotation))), None)
        if get_origin(annotation) in (Union, UnionType)
        else None
    )


def range_words(field: FieldInfo) -> str:
    """The bounds of a field: `above 0`, `at least 0 and below 1`; empty where there is none."""
    inside = [bound_words(bound) for bound in bounds(field.annotation)]
    each = "each " if item_type(field.annotation) is not None and any(inside) else ""
    outside = [bound_words(bound) for bound in flat(field.metadata)]
    return each + " and ".join(filter(None, [*inside, *outside]))


def bounds(annotation: Any) -> Iterator[BaseMetadata]:
    """The bounds that are written inside a type."""
    if get_origin(annotation) is Annotated:
        yield from flat(annotation.__metadata__)
    if options(annotation) == ():
        for part in get_args(annotation):
            if get_origin(part) is not None:
                yield from bounds(part)


def flat(metadata: Any) -> Iterator[BaseMetadata]:
    """Bounds one by one; an interval is two of them."""
    for item in metadata:
        if isinstance(item, GroupedMetadata):
            yield from flat(item)
        elif isinstance(item, BaseMetadata):
            yield item


def bound_words(bound: BaseMetadata) -> str:
    """One bound in words."""
    if isinstance(bound, MinLen):
        return "not empty" if bound.min_length else ""
    for kind, words, key in (
        (Gt, "above", "gt"),
        (Ge, "at least", "ge"),
        (Lt, "below", "lt"),
        (Le, "at most", "le"),
    ):
        if isinstance(bound, kind):
            return f"{words} {number(getattr(bound, key))}"
    return f"a multiple of {bound.multiple_of}" if isinstance(bound, MultipleOf) else ""


def default_of(field: FieldInfo) -> Any:
    """Plain data of a field's default."""
    return dump_value(field.get_default(call_default_factory=True, validated_data={}))


def short(value: Any) -> Any:
    """A component by its name alone, as it may be written."""
    return value["name"] if isinstance(value, dict) and "name" in value else value


def example_of(field: FieldInfo) -> Any:
    """A value that the field accepts, as telling as its declaration allows: a declared example, else another than the default."""
    if field.examples:
        return field.examples[0]
    setting, allowed = setting_of(field), options(field.annotation)
    default = None if field.is_required() else short(default_of(field))
    if setting is not None and setting.not_built is not None:
        return default
    if bare(field.annotation) is bool:
        return not default if default != AUTO else True
    if allowed:
        return next((option for option in allowed if option != default), default)
    if default not in NOT_TELLING:
        return default
    slot = item_type(field.annotation) or bare(field.annotation)
    if is_slot(slot) and registry.names(slot):
        name = component_example(slot)
        return [name] if item_type(field.annotation) else name
    return default


def component_example(slot: type[ComponentConfig]) -> Any:
    """The first choice of a slot, with what it requires."""
    name, choice = next(iter(registry.choices(slot).items()))
    needed = {
        key: example_of(field) for key, field in choice.model_fields.items() if field.is_required()
    }
    return {"name": name, **needed} if needed else name
