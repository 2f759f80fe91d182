"""Docstrings of config fields, read from the source only when they are shown."""

import ast
import inspect
from functools import cache
from pathlib import Path

from titanrun.config.base import Config


def field_docs(config: type[Config]) -> dict[str, str]:
    """The text under each field of a config class, inherited fields included, white space folded."""
    found: dict[str, str] = {}
    for base in reversed(config.__mro__):
        if issubclass(base, Config) and base is not Config:
            found |= class_docs(inspect.getfile(base)).get(base.__name__, {})
    return {name: text for name, text in found.items() if name in config.model_fields}


@cache
def class_docs(file: str) -> dict[str, dict[str, str]]:
    """Class name -> field name -> the string literal that follows the field, for one module."""
    module = ast.parse(Path(file).read_text(encoding="utf-8"))
    return {
        node.name: dict(documented(node)) for node in module.body if isinstance(node, ast.ClassDef)
    }


def documented(node: ast.ClassDef) -> list[tuple[str, str]]:
    """Fields of a class body that a string literal follows."""
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


def class_doc(config: type[Config]) -> str:
    """The docstring of a config class, white space folded."""
    return " ".join((config.__doc__ or "").split())


def class_summary(config: type[Config]) -> str:
    """The first paragraph of a config class's docstring, white space folded: what it is to someone who writes recipes."""
    return " ".join(inspect.cleandoc(config.__doc__ or "").partition("\n\n")[0].split())
