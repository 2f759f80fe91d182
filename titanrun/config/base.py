"""Config, the frozen data of a component, and ComponentConfig, the choices of a slot."""

from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from titanrun.config import registry
from titanrun.config.fields import is_secret
from titanrun.config.strictness import tighten


class Config(BaseModel):
    """Frozen, complete, data only: numbers, text, literals, tuples of these, and other configs."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, defer_build=True, protected_namespaces=()
    )

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        secrets = {name for name, field in cls.model_fields.items() if is_secret(field)}
        schema: CoreSchema = tighten(handler(source), cls.__name__, secrets)
        return schema

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """A config may be printed by whoever holds it: its secrets are not."""
        for name, value in super().__repr_args__():
            field = type(self).model_fields.get(name or "")
            yield name, "***" if field is not None and is_secret(field) else value

    def model_copy(self, **_: Any) -> Self:
        """Refused: pydantic does not validate what a copy changes."""
        raise TypeError("a config is not edited; build a new one from data")


class ComponentConfig(Config):
    """The config of a component, found by its `name` among the choices of its slot.

    A slot sets `slot`, `is_slot = True` and perhaps `default_name`; a choice sets `name` and `builds`, the import string
    ("package.module:Class") of what it configures.
    """

    slot: ClassVar[str]
    is_slot: ClassVar[bool] = False
    default_name: ClassVar[str | None] = None
    builds: ClassVar[str]
    extra: ClassVar[str | None] = None
    """Name of the installation extra, and of the package in it, that the implementation needs."""
    package: ClassVar[str | None] = None
    """What that package is imported as, where the extra has another name."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        if cls.__dict__.get("is_slot", False):
            return core_schema.no_info_plain_validator_function(
                partial(registry.validate_choice, cls)
            )
        return super().__get_pydantic_core_schema__(source, handler)

    @classmethod
    def default_choice(cls) -> "ComponentConfig":
        """The slot's default choice with its defaults."""
        assert cls.default_name is not None, f"slot {cls.slot} has no default"
        return registry.choice(cls, cls.default_name)()

    def builder(self) -> Any:
        """The class or function that takes this config, imported now."""
        return registry.implementation(type(self))


def dump(config: Config) -> dict[str, Any]:
    """Plain data of a config, every field, `name` first, else in schema order; tuples become lists."""
    names = sorted(
        type(config).model_fields,
        key=lambda name: name != "name" or not isinstance(config, ComponentConfig),
    )
    return {name: dump_value(getattr(config, name)) for name in names}


def dump_value(value: Any) -> Any:
    """Plain data of one field's value."""
    if isinstance(value, Config):
        return dump(value)
    if isinstance(value, tuple):
        return [dump_value(item) for item in value]
    return value


def nested(
    config: Config, path: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], Config]]:
    """Every config below and including `config` with its data path, parents first."""
    yield path, config
    for name in type(config).model_fields:
        value = getattr(config, name)
        if isinstance(value, Config):
            yield from nested(value, (*path, name))
        elif isinstance(value, tuple):
            for index, item in enumerate(value):
                if isinstance(item, Config):
                    yield from nested(item, (*path, name, index))
