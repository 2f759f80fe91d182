"""Rewriting of a recipe in the other of its two formats, YAML and TOML."""

from collections.abc import Mapping
from itertools import takewhile
from typing import Literal, cast

from titanrun.config.problems import SourceText
from titanrun.config.read_source import read_source_text
from titanrun.config.serialize import to_toml, to_yaml
from titanrun.config.tree import to_plain_data

Format = Literal["yaml", "toml"]
SCHEMA_COMMENTS = ("# yaml-language-server:", "#:schema")


def convert_recipe_text(text: str, name: str, *, source: Format, target: Format) -> str:
    """Return the text of a recipe in another format, with the comments at its top.

    What it extends and interpolates stays as it is written; other comments are lost.

    Args:
        text: The recipe.
        name: Its file, for problems.
        source: Format of the text.
        target: Format of the result.

    Raises:
        ProblemsFound: The text cannot be read.
    """
    node = read_source_text(SourceText(name, text), source)
    data = cast(Mapping[str, object], to_plain_data(node))
    comments = [
        line
        for line in takewhile(lambda line: line.startswith("#"), text.splitlines())
        if not line.startswith(SCHEMA_COMMENTS)
    ]
    body = to_toml(data) if target == "toml" else to_yaml(data)
    return "".join(f"{line}\n" for line in comments) + body
