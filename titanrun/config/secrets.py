"""Secrets: a field declared `secret=True` holds `${env:NAME}`, never the value, until the worker builds what needs it."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, cast

from titanrun.config.base import Config, nested
from titanrun.config.fields import SECRET, is_secret
from titanrun.config.masking import likely_secrets, long_lines
from titanrun.config.problems import DataPath, Problem, ProblemsFound

C = TypeVar("C", bound=Config)


def secrets(config: Config) -> Iterator[tuple[DataPath, str]]:
    """The path of every secret below `config`, and the environment variable that holds it."""
    for path, holder in nested(config):
        for name, field in type(holder).model_fields.items():
            value = getattr(holder, name) if is_secret(field) else None
            if value is not None:
                yield (*path, name), variable(value)


def variable(reference: str) -> str:
    """The name in `${env:NAME}`."""
    found = SECRET.fullmatch(reference)
    assert found is not None, "a secret that is no reference"
    return found[1]


def unset_secrets(config: Config, environment: Mapping[str, str]) -> list[Problem]:
    """A problem for every secret whose environment variable is not set, or empty."""
    return [
        Problem(
            "interpolation",
            f"environment variable '{name}' is not set, and a secret comes from it",
            path,
            help=f"set {name}",
        )
        for path, name in secrets(config)
        if not environment.get(name)
    ]


def revealed(config: C, environment: Mapping[str, str]) -> C:
    """The config with the values of its secrets, for the process that uses them. Raises ProblemsFound where one is not set.

    What comes back is never written, and a component may hold it: only the worker makes it, and its words are masked.
    """
    problems = unset_secrets(config, environment)
    if problems:
        raise ProblemsFound(problems)
    return filled(config, environment)


def filled(config: C, environment: Mapping[str, str]) -> C:
    """A config in which each secret has its value; one without secrets as it is. No validation: it would refuse the values."""
    values: dict[str, Any] = {}
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        values[name] = (
            environment[variable(value)]
            if is_secret(field) and value is not None
            else filled_value(value, environment)
        )
    if all(values[name] is getattr(config, name) for name in values):
        return config
    return cast(C, type(config).model_construct(**values))


def filled_value(value: Any, environment: Mapping[str, str]) -> Any:
    """The same for the value of a field."""
    if isinstance(value, Config):
        return filled(value, environment)
    if isinstance(value, tuple):
        items = tuple(filled_value(item, environment) for item in value)
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    return value


def values_to_hide(environment: Mapping[str, str], config: Config) -> frozenset[str]:
    """The values that nothing written shows: those of the config's secrets, and of variables whose name says that they hold one."""
    referred = {environment[name] for _, name in secrets(config) if environment.get(name)}
    return likely_secrets(environment) | referred | long_lines(referred)
