"""Base classes of configs: Config (frozen data of a component), ComponentConfig (choice)."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar, NoReturn, Self, TypeVar

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from titanrun.config import registry
from titanrun.config.fields import is_secret
from titanrun.config.plugin_builders import describe_value, load_plugin_builder
from titanrun.config.strict_schema import make_strict
from titanrun.config.trust import NamedCode


class Config(BaseModel):
    """Frozen, complete, data-only config: numbers, text, literals, tuples, other configs."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, defer_build=True, protected_namespaces=()
    )

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        secrets = {name for name, field in cls.model_fields.items() if is_secret(field)}
        schema: CoreSchema = make_strict(handler(source), cls.__name__, secrets)
        return schema

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Yield the fields to print, without secrets, because any holder may print a config."""
        for name, value in super().__repr_args__():
            field = type(self).model_fields.get(name or "")
            yield name, "***" if field is not None and is_secret(field) else value

    def model_copy(self, **_: Any) -> Self:
        """Raise TypeError, because pydantic does not validate the changes of a copy."""
        raise TypeError("a config is not edited; build a new one from data")


ConfigT = TypeVar("ConfigT", bound=Config)


class ComponentConfig(Config):
    """Config of a component, found by its `name` among the choices of its slot.

    A slot sets `slot`, `is_slot = True` and optionally `default_name`. A choice sets `name` and
    `builds`, the import string ("package.module:Class") of the implementation that it configures.
    """

    slot: ClassVar[str]
    is_slot: ClassVar[bool] = False
    default_name: ClassVar[str | None] = None
    builds: ClassVar[str]
    builds_what: ClassVar[str] = "a component"
    """What the slot's implementations are, for messages about plug-ins."""
    built_attributes: ClassVar[tuple[str, ...]] = ()
    """Attributes that all of them have."""
    extra: ClassVar[str | None] = None
    """Name of the installation extra, and of the package in it, that the implementation needs."""
    package: ClassVar[str | None] = None
    """Import name of that package, if the extra has another name."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        if cls.__dict__.get("is_slot", False):
            return core_schema.no_info_plain_validator_function(
                partial(registry.validate_choice, cls)
            )
        return super().__get_pydantic_core_schema__(source, handler)

    @classmethod
    def get_default_choice(cls) -> "ComponentConfig":
        """Return the slot's default choice with its defaults."""
        assert cls.default_name is not None, f"slot {cls.slot} has no default"
        return registry.load_choice(cls, cls.default_name)()

    def find_model_code(self) -> NamedCode | None:
        """Return the code that comes with the weights of this component, None if there is none."""
        return None

    def load_builder(self) -> Any:
        """Import and return the class or function that takes this config.

        That of a plug-in raises ProblemsFound if it takes or returns something else.
        """
        if registry.get_top_level_package(type(self)) == "titanrun":
            return registry.load_implementation(type(self))
        return load_plugin_builder(self)

    def find_build_fault(self, built: Any) -> str | None:
        """Return why something that a plug-in built is none of this slot, None if it is one."""
        missing = [name for name in self.built_attributes if not hasattr(built, name)]
        if not missing:
            return None
        lacks = "" if built is None else f", which has no {missing[0]}"
        return f"it returned {describe_value(built)}{lacks}"

    def check_results(self, built: Any, fail: Callable[[str], NoReturn]) -> Any:
        """Return what a plug-in built, with the results of its calls checked.

        `fail` raises the problem of the plug-in's code.
        """
        return built


def dump_config(config: Config) -> dict[str, Any]:
    """Return the plain data of a config: `name` first, then all fields in schema order.

    Tuples become lists.
    """
    names = sorted(
        type(config).model_fields,
        key=lambda name: name != "name" or not isinstance(config, ComponentConfig),
    )
    return {name: dump_value(getattr(config, name)) for name in names}


def change_fields(config: ConfigT, **changes: Any) -> ConfigT:
    """Return a config of the same type with other values of some fields, validated."""
    own = {name: getattr(config, name) for name in type(config).model_fields}
    return type(config).model_validate(own | changes)


def dump_value(value: Any) -> Any:
    """Return the plain data of one field's value."""
    if isinstance(value, Config):
        return dump_config(value)
    if isinstance(value, tuple):
        return [dump_value(item) for item in value]
    return value


def iter_nested_configs(
    config: Config, path: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], Config]]:
    """Yield `config` and every config below it with its data path, parents first."""
    yield path, config
    for name in type(config).model_fields:
        value = getattr(config, name)
        if isinstance(value, Config):
            yield from iter_nested_configs(value, (*path, name))
        elif isinstance(value, tuple):
            for index, item in enumerate(value):
                if isinstance(item, Config):
                    yield from iter_nested_configs(item, (*path, name, index))
