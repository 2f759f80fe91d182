"""Registry of components: a slot's choices are its subclasses, looked up by name."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pydantic_core import PydanticCustomError

if TYPE_CHECKING:
    from titanrun.config.base import ComponentConfig

# top-level modules of plug-ins imported for another recipe than the current one
_hidden_packages: set[str] = set()
# slot -> name -> module that defines the choice, for choices that are imported only when named
_lazy_modules: dict[str, dict[str, str]] = {}


def register_lazy(slot: str, modules: Mapping[str, str]) -> None:
    """Register choices of `slot` by name, each with the module to import when it is used."""
    _lazy_modules.setdefault(slot, {}).update(modules)


def hide_packages(packages: set[str]) -> None:
    """Hide the choices defined in these top-level packages, and show those of all others."""
    _hidden_packages.clear()
    _hidden_packages.update(packages)


def get_top_level_package(defined: type) -> str:
    """Return the top-level package or module that defines a class."""
    return defined.__module__.partition(".")[0]


def is_hidden_class(defined: type) -> bool:
    """Return whether a class belongs to a plug-in that is not in use."""
    return is_hidden_module(defined.__module__)


def is_hidden_module(module: str) -> bool:
    """Return whether a module belongs to a plug-in that is not in use."""
    return module.partition(".")[0] in _hidden_packages


def get_packages_by_choice(slot: "type[ComponentConfig]") -> dict[str, list[str]]:
    """Return the choice names of a slot with the top-level packages that define each name.

    There is one package per name unless two clash.
    """
    found: dict[str, list[str]] = {}
    offered = _lazy_modules.get(slot.slot, {})
    for name, module in offered.items():
        found.setdefault(name, []).append(module.partition(".")[0])
    for candidate in iter_loaded_choices(slot):
        if candidate.__module__ not in offered.values():
            found.setdefault(candidate.model_fields["name"].default, []).append(
                get_top_level_package(candidate)
            )
    return found


def find_slots_offering(name: str) -> list[str]:
    """Return the slots that offer a choice of this name, without importing any."""
    return [
        slot
        for slot, modules in _lazy_modules.items()
        if name in modules and not is_hidden_module(modules[name])
    ]


def load_choice(slot: "type[ComponentConfig]", name: str) -> "type[ComponentConfig]":
    """Return the config class registered as `name`. Raise KeyError if it is unknown."""
    module = _lazy_modules.get(slot.slot, {}).get(name)
    if module is not None:
        import_module(module)
    for candidate in iter_loaded_choices(slot):
        if candidate.model_fields["name"].default == name:
            return candidate
    raise KeyError(name)


def load_choices(slot: "type[ComponentConfig]") -> "dict[str, type[ComponentConfig]]":
    """Return all choices of a slot by name, sorted. Import every lazily registered module."""
    for module in _lazy_modules.get(slot.slot, {}).values():
        import_module(module)
    found = {
        candidate.model_fields["name"].default: candidate for candidate in iter_loaded_choices(slot)
    }
    return dict(sorted(found.items()))


def get_choice_names(slot: "type[ComponentConfig]") -> list[str]:
    """Return the names of a slot's choices without importing the lazily registered ones."""
    loaded = {candidate.model_fields["name"].default for candidate in iter_loaded_choices(slot)}
    return sorted(loaded | set(_lazy_modules.get(slot.slot, {})))


def iter_loaded_choice_names(slot: "type[ComponentConfig]") -> "Iterator[str]":
    """Yield the names of a slot's imported choices in order of declaration."""
    for candidate in iter_loaded_choices(slot):
        yield str(candidate.model_fields["name"].default)


def iter_loaded_choices(slot: "type[ComponentConfig]") -> "Iterator[type[ComponentConfig]]":
    """Yield the subclasses of a slot that are choices: they declare their own name."""
    for candidate in slot.__subclasses__():
        if (
            "name" in candidate.__annotations__
            and "builds" in candidate.__dict__
            and not is_hidden_class(candidate)
        ):
            yield candidate
        yield from iter_loaded_choices(candidate)


def validate_choice(slot: "type[ComponentConfig]", value: Any) -> "ComponentConfig":
    """Return the config of the choice that `value` names.

    `value` is a bare string, or a mapping with `name` and the choice's fields.
    """
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
            "component_name_missing",
            "no name",
            {"slot": slot.slot, "names": get_choice_names(slot)},
        )
    if not isinstance(name, str):
        raise PydanticCustomError("component_name_type", "expected a name", {"slot": slot.slot})
    try:
        chosen = load_choice(slot, name)
    except KeyError:
        context = {"slot": slot.slot, "name": name, "names": get_choice_names(slot)}
        raise PydanticCustomError("unknown_name", "unknown name", context) from None
    return chosen.model_validate({"name": name, **fields})


def load_implementation(config_class: "type[ComponentConfig]") -> Any:
    """Import and return the class or function that a config class builds."""
    module, _, attribute = config_class.builds.partition(":")
    return getattr(import_module(module), attribute)
