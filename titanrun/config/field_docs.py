"""Docstrings of config fields, read from the source only when they are shown."""

import ast
import inspect
from functools import cache
from pathlib import Path

from titanrun.config.base import Config


def get_field_docs(config: type[Config]) -> dict[str, str]:
    """Return the text below each field of a config class, with normalized white space.

    Inherited fields are included.
    """
    found: dict[str, str] = {}
    for base in reversed(config.__mro__):
        if issubclass(base, Config) and base is not Config:
            found |= load_class_docs(inspect.getfile(base)).get(base.__name__, {})
    return {name: text for name, text in found.items() if name in config.model_fields}


@cache
def load_class_docs(file: str) -> dict[str, dict[str, str]]:
    """Return class name -> field name -> the string literal after the field, for one module."""
    module = ast.parse(Path(file).read_text(encoding="utf-8"))
    return {
        node.name: dict(get_documented_fields(node))
        for node in module.body
        if isinstance(node, ast.ClassDef)
    }


def get_documented_fields(node: ast.ClassDef) -> list[tuple[str, str]]:
    """Return the fields of a class body that are followed by a string literal."""
    found = []
    for field, after in zip(node.body, node.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if (
            isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and isinstance(after.value.value, str)
        ):
            found.append((field.target.id, " ".join(after.value.value.split())))
    return found


def get_class_doc(config: type[Config]) -> str:
    """Return the docstring of a config class with normalized white space."""
    return " ".join((config.__doc__ or "").split())


def get_class_summary(config: type[Config]) -> str:
    """Return the first paragraph of a config class's docstring with normalized white space.

    It describes the class to recipe authors.
    """
    return " ".join(inspect.cleandoc(config.__doc__ or "").partition("\n\n")[0].split())
