"""Builders of plug-ins: how they are called, and what they return, is checked.

Otherwise the mistake would be an internal error, raised far from the plug-in.
"""

import inspect
import sys
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from titanrun.config.problems import Origin, ProblemsFound, SourceText, problem_error

if TYPE_CHECKING:
    from titanrun.config.base import ComponentConfig


def load_plugin_builder(config: "ComponentConfig") -> Callable[..., Any]:
    """Return what a config of a plug-in builds, with its calls checked.

    Raises:
        ProblemsFound: `builds` names nothing that can be called.
    """
    module, _, attribute = config.builds.partition(":")
    # the file of a recipe that was read later may have the same name as the one of this config
    own = sys.modules.get(type(config).__module__)
    try:
        owner = own if own is not None and own.__name__ == module else import_module(module)
        builder = getattr(owner, attribute or " ", None)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        builder = None
    if not callable(builder):
        message = f"builds is '{config.builds}', but there is no such class or function"
        raise build_builder_error(
            config, type(config), message, "write MODULE:ATTRIBUTE, where MODULE is the file's name"
        )

    @wraps(builder)
    def build(*arguments: Any, **keywords: Any) -> Any:
        check_call(config, builder, arguments, keywords)
        built = builder(*arguments, **keywords)
        check_built(config, builder, built)

        def fail(fault: str) -> NoReturn:
            raise build_builder_error(config, type(built), fault, f"return {config.builds_what}")

        return config.check_results(built, fail)

    return build


def check_call(
    config: "ComponentConfig", builder: Callable[..., Any], arguments: Any, keywords: Any
) -> None:
    """Raise ProblemsFound if a builder does not take the arguments of its slot."""
    try:
        inspect.signature(builder).bind(*arguments, **keywords)
    except TypeError as error:
        call = ", ".join(["config", *(f"{name}=..." for name in keywords)])
        called = f"{config.builds.partition(':')[2]}({call})"
        raise build_builder_error(
            config, builder, f"it is called as {called}: {error}", "take these arguments"
        ) from None
    except ValueError:
        # a builder in C has no signature
        return


def check_built(config: "ComponentConfig", builder: Callable[..., Any], built: Any) -> None:
    """Raise ProblemsFound if what a builder returned is no component of its slot."""
    fault = config.find_build_fault(built)
    if fault is not None:
        raise build_builder_error(config, builder, fault, f"return {config.builds_what}")


def build_builder_error(
    config: "ComponentConfig", culprit: Any, message: str, hint: str
) -> ProblemsFound:
    """Build the problem of a plug-in's code, with its place there."""
    named = f"{config.slot} '{getattr(config, 'name', type(config).__name__)}'"
    return problem_error(
        "usage", f"{named}: {message}", origin=locate_definition(culprit), hint=hint
    )


def locate_definition(culprit: Any) -> Origin | None:
    """Return where a class or function is defined, None if that is not known.

    The file is named without its folder: a run has a copy of it, which nobody should edit.
    """
    defined = inspect.unwrap(culprit)
    if not (inspect.isclass(defined) or inspect.isroutine(defined)):
        defined = type(defined)
    try:
        file, (lines, start) = inspect.getsourcefile(defined), inspect.getsourcelines(defined)
    except (OSError, TypeError):
        return None
    name = defined.__name__
    # decorators come first
    offset = next((number for number, line in enumerate(lines) if name in line), 0)
    column = max(lines[offset].find(name), 0) + 1
    source = SourceText(Path(file or "").name, "\n" * (start - 1) + "".join(lines))
    return Origin(source, start + offset, column, column + len(name))


def describe_value(value: Any) -> str:
    """Return a value for a message: None, a number, or its type."""
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
