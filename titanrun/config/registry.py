"""The registry: a slot's choices are its subclasses, looked up by name when a value is validated."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pydantic_core import PydanticCustomError

if TYPE_CHECKING:
    from titanrun.config.base import ComponentConfig

# top-level modules of plug-ins that were imported for another recipe than the one that is read
_hidden: set[str] = set()
# slot -> name -> module that defines the choice, for choices that are imported only when named
_offers: dict[str, dict[str, str]] = {}


def offer(slot: str, modules: Mapping[str, str]) -> None:
    """Announce choices of `slot` by name, each with the module to import when it is named."""
    _offers.setdefault(slot, {}).update(modules)


def hide(packages: set[str]) -> None:
    """From now on, nothing that the modules of these top-level packages define is a choice; what all others define is."""
    _hidden.clear()
    _hidden.update(packages)


def package_of(defined: type) -> str:
    """The top-level package or module that defines a class."""
    return defined.__module__.partition(".")[0]


def is_hidden(defined: type) -> bool:
    """Whether a class belongs to a plug-in that is not in use."""
    return is_hidden_module(defined.__module__)


def is_hidden_module(module: str) -> bool:
    """Whether a module is of a plug-in that is not in use."""
    return module.partition(".")[0] in _hidden


def claims(slot: "type[ComponentConfig]") -> dict[str, list[str]]:
    """The names of a slot's choices, each with the top-level package of every choice that has it: one, unless two clash."""
    found: dict[str, list[str]] = {}
    offered = _offers.get(slot.slot, {})
    for name, module in offered.items():
        found.setdefault(name, []).append(module.partition(".")[0])
    for candidate in loaded_choices(slot):
        if candidate.__module__ not in offered.values():
            found.setdefault(candidate.model_fields["name"].default, []).append(
                package_of(candidate)
            )
    return found


def choice(slot: "type[ComponentConfig]", name: str) -> "type[ComponentConfig]":
    """The config class registered as `name`. Raises KeyError where there is none."""
    module = _offers.get(slot.slot, {}).get(name)
    if module is not None:
        import_module(module)
    for candidate in loaded_choices(slot):
        if candidate.model_fields["name"].default == name:
            return candidate
    raise KeyError(name)


def choices(slot: "type[ComponentConfig]") -> "dict[str, type[ComponentConfig]]":
    """All choices of a slot by name, sorted; imports every offered module."""
    for module in _offers.get(slot.slot, {}).values():
        import_module(module)
    found = {
        candidate.model_fields["name"].default: candidate for candidate in loaded_choices(slot)
    }
    return dict(sorted(found.items()))


def names(slot: "type[ComponentConfig]") -> list[str]:
    """The names of a slot's choices, without importing the offered ones."""
    loaded = {candidate.model_fields["name"].default for candidate in loaded_choices(slot)}
    return sorted(loaded | set(_offers.get(slot.slot, {})))


def loaded_names(slot: "type[ComponentConfig]") -> "Iterator[str]":
    """The names of a slot's choices that are imported, in the order they were declared."""
    for candidate in loaded_choices(slot):
        yield str(candidate.model_fields["name"].default)


def loaded_choices(slot: "type[ComponentConfig]") -> "Iterator[type[ComponentConfig]]":
    """Subclasses of a slot that are choices: they declare a name of their own."""
    for candidate in slot.__subclasses__():
        if (
            "name" in candidate.__annotations__
            and "builds" in candidate.__dict__
            and not is_hidden(candidate)
        ):
            yield candidate
        yield from loaded_choices(candidate)


def validate_choice(slot: "type[ComponentConfig]", value: Any) -> "ComponentConfig":
    """The config of the choice that `value` names: a bare string, or a mapping with `name` and the choice's fields."""
    if isinstance(value, slot):
        return value
    fields = {"name": value} if isinstance(value, str) else value
    if not isinstance(fields, dict):
        raise PydanticCustomError(
            "component_type", "expected a name or a mapping", {"slot": slot.slot}
        )
    name = fields.get("name", slot.default_name)
    if name is None and "name" not in fields:
        raise PydanticCustomError(
            "component_name_missing", "no name", {"slot": slot.slot, "names": names(slot)}
        )
    if not isinstance(name, str):
        raise PydanticCustomError("component_name_type", "expected a name", {"slot": slot.slot})
    try:
        chosen = choice(slot, name)
    except KeyError:
        context = {"slot": slot.slot, "name": name, "names": names(slot)}
        raise PydanticCustomError("unknown_name", "unknown name", context) from None
    return chosen.model_validate({"name": name, **fields})


def implementation(config_class: "type[ComponentConfig]") -> Any:
    """What a config class builds, imported now."""
    module, _, attribute = config_class.builds.partition(":")
    return getattr(import_module(module), attribute)
