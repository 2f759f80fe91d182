"""Secret fields, which hold `${env:NAME}` instead of the value until the worker needs it.

A field is declared with `secret=True`. The value is inserted when the worker builds the component.
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, cast

from titanrun.config.base import Config, iter_nested_configs
from titanrun.config.fields import SECRET, is_secret
from titanrun.config.problems import DataPath, Problem, ProblemsFound
from titanrun.config.redaction import get_likely_secrets, get_long_lines

C = TypeVar("C", bound=Config)


def iter_secrets(config: Config) -> Iterator[tuple[DataPath, str]]:
    """Yield the path of every secret below `config` and its environment variable."""
    for path, holder in iter_nested_configs(config):
        for name, field in type(holder).model_fields.items():
            value = getattr(holder, name) if is_secret(field) else None
            if value is not None:
                yield (*path, name), parse_secret_variable(value)


def parse_secret_variable(reference: str) -> str:
    """Return the name in `${env:NAME}`."""
    found = SECRET.fullmatch(reference)
    assert found is not None, "a secret must be a reference"
    return found[1]


def find_unset_secret_problems(config: Config, environment: Mapping[str, str]) -> list[Problem]:
    """Return a problem for every secret whose environment variable is unset or empty."""
    return [
        Problem(
            "interpolation",
            f"environment variable '{name}' is not set, but a secret requires it",
            path,
            hint=f"set {name}",
        )
        for path, name in iter_secrets(config)
        if not environment.get(name)
    ]


def fill_secrets(config: C, environment: Mapping[str, str]) -> C:
    """Return the config with the values of its secrets. Raise ProblemsFound if one is not set.

    The result is for the process that uses the values and is never written. A component may hold
    it: only the worker builds it, and the worker's output is redacted.
    """
    problems = find_unset_secret_problems(config, environment)
    if problems:
        raise ProblemsFound(problems)
    return substitute_secrets(config, environment)


def substitute_secrets(config: C, environment: Mapping[str, str]) -> C:
    """Return the config with secret values filled in.

    A config without secrets is returned unchanged. The result is not validated: validation would
    reject the values.
    """
    values: dict[str, Any] = {}
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        values[name] = (
            environment[parse_secret_variable(value)]
            if is_secret(field) and value is not None
            else substitute_secrets_in_value(value, environment)
        )
    if all(values[name] is getattr(config, name) for name in values):
        return config
    return cast(C, type(config).model_construct(**values))


def substitute_secrets_in_value(value: Any, environment: Mapping[str, str]) -> Any:
    """Return a field value with secret values filled in."""
    if isinstance(value, Config):
        return substitute_secrets(value, environment)
    if isinstance(value, tuple):
        items = tuple(substitute_secrets_in_value(item, environment) for item in value)
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    return value


def get_secret_values(environment: Mapping[str, str], config: Config) -> frozenset[str]:
    """Return the values to redact from everything written.

    These are the config's secrets and the values of variables whose names suggest a secret.
    """
    referred = {environment[name] for _, name in iter_secrets(config) if environment.get(name)}
    return get_likely_secrets(environment) | referred | get_long_lines(referred)
